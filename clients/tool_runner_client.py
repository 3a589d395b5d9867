"""The tool runner of the `anthropic` client, which continues without a thread when refused one."""

import anthropic
from anthropic import beta_tool

from served import MODEL, URL, check

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
cities = []


@beta_tool
def get_weather(city: str) -> str:
    """Get the current weather in a city

    Args:
        city: The city
    """
    cities.append(city)
    return '{"temperature": 21, "sky": "sunny"}'


asked = [{"role": "user", "content": "What is the weather in Paris?"}]
request = {
    "model": MODEL, "max_tokens": 80, "messages": asked, "tools": [get_weather], "extra_body": {"temperature": 0}}

# The refusal that makes a runner continue without a thread.
try:
    client.beta.messages.create(
        model=MODEL, max_tokens=80, messages=asked, extra_body={"thread": {"type": "create"}})
    check("a thread is refused", False)
except anthropic.BadRequestError as error:
    check("error code", error.body["error"]["details"]["error_code"] == "thread_unsupported_request")

# The runner calls the tool, returns its result and ends with the answer.
replies = list(client.beta.messages.tool_runner(**request))
check("called", cities == ["Paris"] and [reply.stop_reason for reply in replies] == ["tool_use", "end_turn"])
said = replies[-1].content[0].text
check("answer", "21" in said or "sunny" in said)

# The same streamed.
streamed = [stream.get_final_message() for stream in client.beta.messages.tool_runner(**request, stream=True)]
check("streamed call", cities == ["Paris", "Paris"] and streamed[0].stop_reason == "tool_use")
check("streamed answer", streamed[-1].content[0].text == said)

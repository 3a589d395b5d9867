"""`langchain-openai`: chat, stream, tools, structured output, log-probabilities, errors, leaving early."""

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from served import MODEL, URL, check, complete

model = ChatOpenAI(
    model=MODEL, base_url=f"{URL}/v1", api_key="none", temperature=0, max_tokens=80, max_retries=0, stream_usage=True)
ask = [HumanMessage("What is the capital of France?")]

whole = model.invoke(ask)
check("chat", whole.content and whole.usage_metadata["output_tokens"] > 0)
pieces = list(model.stream(ask))
check("stream", "".join(piece.content for piece in pieces) == whole.content)
check("usage of a stream", any(p.usage_metadata and p.usage_metadata["output_tokens"] > 0 for p in pieces))
check("batch", [m.content for m in model.batch([ask, ask])] == [whole.content] * 2)
probed = model.bind(logprobs=True, top_logprobs=2).invoke(ask)
check("logprobs", len(probed.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2)


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return '{"temperature": 21, "sky": "sunny"}'


armed = model.bind_tools([get_weather])
weather = [HumanMessage("What is the weather in Paris?")]
called = armed.invoke(weather)
check("tool call", called.tool_calls[0]["args"] == {"city": "Paris"})
total = None
for piece in armed.stream(weather):
    total = piece if total is None else total + piece
check("streamed tool call", total.tool_calls[0]["args"] == {"city": "Paris"})
answer = get_weather.invoke(called.tool_calls[0])
check("tool result", isinstance(answer, ToolMessage) and armed.invoke([*weather, called, answer]).content)



class Place(BaseModel):
    """A country and its capital."""

    country: str
    capital: str


wanted = [HumanMessage("Give me France with the keys country and capital as JSON.")]
for method in ("json_schema", "function_calling"):
    place = model.with_structured_output(Place, method=method).invoke(wanted)
    check(f"structured output by {method}", place == Place(country="France", capital="Paris"))

try:
    model.bind(temperature=-1).invoke(ask)
    check("an error", False)
except openai.BadRequestError as error:
    check("the error names the parameter", error.param == "temperature")

before = complete()
stream = model.stream(ask, max_tokens=3900, extra_body={"ignore_eos": True})
next(stream)
stream.close()
check("cancellation", complete() == before)

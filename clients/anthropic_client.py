"""The official `anthropic` client: messages, streams, tools, counting, errors, leaving early."""

import anthropic

from served import MODEL, TOOL, URL, check

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
ask = [{"role": "user", "content": "What is the capital of France?"}]
common = {"model": MODEL, "max_tokens": 60}
greedy = {"extra_body": {"temperature": 0}}

# Messages, whole and streamed.
whole = client.messages.create(messages=ask, **common, **greedy)
said = whole.content[0].text
check("message", whole.stop_reason == "end_turn" and whole.type == "message" and said)
with client.messages.stream(messages=ask, **common, **greedy) as stream:
    check("stream", "".join(stream.text_stream) == said)
    final = stream.get_final_message()
check("final message", final.content[0].text == said and final.usage.output_tokens == whole.usage.output_tokens)

# The system prompt as blocks, stop texts, counting.
system = [{"type": "text", "text": "You are a helpful assistant.", "cache_control": {"type": "ephemeral"}}]
check("system", client.messages.create(messages=ask, system=system, **common, **greedy).content)
cut = client.messages.create(messages=ask, stop_sequences=[said[3:6]], **common, **greedy)
check("stop", cut.stop_reason == "stop_sequence" and cut.stop_sequence == said[3:6])
short = client.messages.create(messages=ask, model=MODEL, max_tokens=2, **greedy)
check("max_tokens", short.stop_reason == "max_tokens" and short.usage.output_tokens == 2)
counted = client.messages.count_tokens(model=MODEL, messages=ask).input_tokens
check("count", counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens)

# A tool is called, its result is used.
function = TOOL["function"]
tools = [{"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}]
weather = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.messages.create(messages=weather, tools=tools, **common, **greedy)
call = called.content[-1]
check("tool use", called.stop_reason == "tool_use" and call.type == "tool_use" and call.input == {"city": "Paris"})
with client.messages.stream(messages=weather, tools=tools, **common, **greedy) as stream:
    pieces = [event.partial_json for event in stream if event.type == "input_json"]
    check("streamed input", bool(pieces) and stream.get_final_message().content[-1].input == call.input)
forced = client.messages.create(messages=ask, tools=tools, tool_choice={"type": "tool", "name": function["name"]}, **common, **greedy)
check("forced tool", forced.stop_reason == "tool_use" and list(forced.content[-1].input) == ["city"])
result = {"type": "tool_result", "tool_use_id": call.id, "content": '{"temperature": 21, "sky": "sunny"}'}
turns = [*weather, {"role": "assistant", "content": [block.model_dump() for block in called.content]}, {"role": "user", "content": [result]}]
used = client.messages.create(messages=turns, tools=tools, **common, **greedy)
check("tool result", used.stop_reason == "end_turn" and used.content[0].text)

# A message of the assistant at the end is gone on with.
start, end = said.rsplit(" ", 1)
begun = [*ask, {"role": "assistant", "content": start}]
check("prefill", client.messages.create(messages=begun, **common, **greedy).content[0].text.strip() == end)


# Errors come as the client's own exceptions.
def refused(kind, param, **extra):
    try:
        client.messages.create(**{"messages": ask, **common, **extra})
    except kind as error:
        return error.body["type"] == "error" and error.body["error"]["param"] == param
    return False


image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
check("bad value", refused(anthropic.BadRequestError, "temperature", extra_body={"temperature": 9}))
check("unknown model", refused(anthropic.NotFoundError, "model", model="claude"))
check("media", refused(anthropic.BadRequestError, "messages[0].content[0].type", messages=[{"role": "user", "content": [image]}]))

# Leaving a stream ends its work, and the next request is served.
with client.messages.stream(messages=ask, model=MODEL, max_tokens=3900) as stream:
    next(iter(stream))
check("cancellation", client.messages.create(messages=ask, **common, **greedy).content)

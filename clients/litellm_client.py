"""`litellm` with an OpenAI endpoint: chat, stream, tools, JSON schema, log-probabilities, errors, a dropped stream."""

import json

import litellm

from served import MODEL, TOOL, URL, check, complete

litellm.suppress_debug_info = True
common = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none", "max_retries": 0}
ask = [{"role": "user", "content": "What is the capital of France?"}]

whole = litellm.completion(messages=ask, temperature=0, max_tokens=40, **common)
said = whole.choices[0].message.content
check("chat", said and whole.usage.completion_tokens > 0)
chunks = litellm.completion(messages=ask, temperature=0, max_tokens=40, stream=True, **common)
check("stream", "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said)
probed = litellm.completion(messages=ask, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2, **common)
check("logprobs", len(probed.choices[0].logprobs.content[0].top_logprobs) == 2)

weather = [{"role": "user", "content": "What is the weather in Paris?"}]
called = litellm.completion(messages=weather, tools=[TOOL], temperature=0, max_tokens=80, **common)
call = called.choices[0].message.tool_calls[0]
check("tool call", json.loads(call.function.arguments) == {"city": "Paris"})
pieces = list(litellm.completion(messages=weather, tools=[TOOL], temperature=0, max_tokens=80, stream=True, **common))
rebuilt = litellm.stream_chunk_builder(pieces).choices[0].message.tool_calls[0]
check("streamed tool call", rebuilt.function.arguments == call.function.arguments)
result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "sunny"}'}
turns = [*weather, called.choices[0].message.model_dump(exclude_none=True), result]
check("tool result", litellm.completion(messages=turns, tools=[TOOL], temperature=0, max_tokens=80, **common).choices[0].message.content)

schema = {"type": "object", "properties": {"country": {"type": "string"}, "capital": {"type": "string"}}, "required": ["country", "capital"]}
place = [{"role": "user", "content": "Give me France with the keys country and capital as JSON."}]
form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
held = litellm.completion(messages=place, response_format=form, temperature=0, max_tokens=80, **common)
check("structured output", json.loads(held.choices[0].message.content) == {"country": "France", "capital": "Paris"})

try:
    litellm.completion(messages=ask, temperature=-1, max_tokens=4, **common)
    check("an error", False)
except litellm.BadRequestError as error:
    check("the error names the parameter", "temperature" in str(error))

before = complete()
stream = litellm.completion(messages=ask, max_tokens=3900, stream=True, extra_body={"ignore_eos": True}, **common)
next(iter(stream))
stream.completion_stream.close()
check("cancellation", complete() == before)

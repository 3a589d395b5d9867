"""The official `openai` client: chat, responses, completions, embeddings, streams, tools, structured output,
log-probabilities, errors, dropped streams."""

import base64
import json

import openai
from pydantic import BaseModel

from served import MODEL, TOOL, URL, check, complete

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
ask = [{"role": "user", "content": "What is the capital of France?"}]

check("models", [m.id for m in client.models.list()] == [MODEL])

# Chat, whole and streamed.
whole = client.chat.completions.create(model=MODEL, messages=ask, temperature=0, max_tokens=40)
said = whole.choices[0].message.content
check("chat", said and whole.choices[0].finish_reason == "stop")
check("usage", whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens)
chunks = list(client.chat.completions.create(
    model=MODEL, messages=ask, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True}))
check("stream", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said)
check("one id", len({c.id for c in chunks}) == 1)
check("usage at the end", chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens)
with client.chat.completions.stream(model=MODEL, messages=ask, temperature=0, max_tokens=40) as stream:
    check("stream helper", stream.get_final_completion().choices[0].message.content == said)

# Stop texts, several answers, seeds.
cut = client.chat.completions.create(model=MODEL, messages=ask, temperature=0, max_tokens=40, stop=[said[3:6]])
check("stop", cut.choices[0].message.content == said[: said.find(said[3:6])])
seeded = [client.chat.completions.create(model=MODEL, messages=ask, n=2, seed=7, max_tokens=10) for _ in range(2)]
check("n and seed", [c.message.content for c in seeded[0].choices] == [c.message.content for c in seeded[1].choices])

# Log-probabilities.
probed = client.chat.completions.create(
    model=MODEL, messages=ask, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3).choices[0]
entries = probed.logprobs.content
check("logprobs", all(len(e.top_logprobs) == 3 and e.logprob <= 0 for e in entries))
check("greedy is likeliest", all(e.token == e.top_logprobs[0].token for e in entries))
check("bytes", b"".join(bytes(e.bytes) for e in entries).decode() .startswith(probed.message.content))

# A tool is called, its result is used.
weather = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.chat.completions.create(model=MODEL, messages=weather, tools=[TOOL], temperature=0, max_tokens=80)
call = called.choices[0].message.tool_calls[0]
check("tool call", called.choices[0].finish_reason == "tool_calls" and call.function.name == TOOL["function"]["name"])
check("arguments", json.loads(call.function.arguments) == {"city": "Paris"})
pieces = [c.choices[0].delta.tool_calls for c in client.chat.completions.create(
    model=MODEL, messages=weather, tools=[TOOL], temperature=0, max_tokens=80, stream=True) if c.choices]
streamed = [p[0] for p in pieces if p]
check("streamed arguments", "".join(p.function.arguments for p in streamed) == call.function.arguments)
result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "sky": "sunny"}'}
used = client.chat.completions.create(
    model=MODEL, messages=[*weather, called.choices[0].message, result], tools=[TOOL], temperature=0, max_tokens=80)
check("tool result", used.choices[0].finish_reason == "stop" and used.choices[0].message.content)

# An answer that has a form, read into an object; and one that must be one of two texts.
class Place(BaseModel):
    country: str
    capital: str


wanted = [{"role": "user", "content": "Give me France with the keys country and capital as JSON."}]
parsed = client.chat.completions.parse(model=MODEL, messages=wanted, response_format=Place, temperature=0, max_tokens=80)
check("structured output", parsed.choices[0].message.parsed == Place(country="France", capital="Paris"))
chosen = client.chat.completions.create(
    model=MODEL, messages=ask, temperature=0, extra_body={"structured_outputs": {"choice": ["Rome", "Paris"]}})
check("choice", chosen.choices[0].message.content == "Paris")
forced = client.chat.completions.create(model=MODEL, messages=ask, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=80)
check("required tool", list(json.loads(forced.choices[0].message.tool_calls[0].function.arguments)) == ["city"])

# Completions, echoed and from ids.
done = client.completions.create(model=MODEL, prompt=["one two", "three"], max_tokens=4, temperature=0, echo=True)
check("completions", [c.text.startswith(p) for c, p in zip(done.choices, ["one two", "three"])] == [True, True])
check("ids", client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=2).usage.prompt_tokens == 3)

# Responses, whole, streamed and with a tool.
response = client.responses.create(model=MODEL, input=ask[0]["content"], temperature=0, max_output_tokens=40)
check("responses", response.output_text == said and response.status == "completed")
events = list(client.responses.create(
    model=MODEL, input=ask[0]["content"], temperature=0, max_output_tokens=40, stream=True))
check("numbered events", [e.sequence_number for e in events] == list(range(len(events))))
check("deltas", "".join(e.delta for e in events if e.type == "response.output_text.delta") == said)
check("completed", events[-1].type == "response.completed" and events[-1].response.output_text == said)
flat = {"type": "function", **TOOL["function"]}
first = client.responses.create(model=MODEL, input=weather, tools=[flat], temperature=0, max_output_tokens=80)
check("responses tool", first.output[0].type == "function_call" and json.loads(first.output[0].arguments) == {"city": "Paris"})
output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": result["content"]}
second = client.responses.create(
    model=MODEL, input=[*weather, first.output[0].model_dump(), output], tools=[flat], temperature=0, max_output_tokens=80)
check("responses result", second.output_text == used.choices[0].message.content)


# Vectors: the client asks for base64 unless told otherwise, and unpacks it.
vectors = client.embeddings.create(model=MODEL, input=["hello there", "the capital of France", "hello there"])
first, other, again = (entry.embedding for entry in vectors.data)
check("embeddings", first == again != other and abs(sum(x * x for x in first) - 1) < 1e-4)
check("as floats", client.embeddings.create(model=MODEL, input="hello there", encoding_format="float").data[0].embedding == first)
check("embedded tokens", vectors.usage.prompt_tokens == vectors.usage.total_tokens > 0)


# Errors come as the client's own exceptions and name the parameter.
def refused(kind, param, **extra):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": ask, "max_tokens": 4, **extra})
    except kind as error:
        return error.param == param
    return False


check("bad value", refused(openai.BadRequestError, "temperature", temperature=-1))
named = client.chat.completions.with_raw_response.create(
    model=MODEL, messages=ask, max_tokens=4, extra_body={"nonsense": 1})
check("unknown field", named.headers["x-kvasir-ignored"] == "nonsense" and bool(named.parse().choices))
check("unknown model", refused(openai.NotFoundError, "model", model="gpt-9"))
check("too long", refused(openai.BadRequestError, "messages", messages=[{"role": "user", "content": "word " * 50_000}]))
clamped = client.chat.completions.with_raw_response.create(model=MODEL, messages=ask, max_tokens=1 << 20)
check("clamped limit", clamped.headers["x-kvasir-clamped"].startswith("max_tokens=") and bool(clamped.parse().choices))
image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(b"x").decode()}}
check("media", refused(openai.BadRequestError, "messages[0].content[0].type", messages=[{"role": "user", "content": [image]}]))

# Fields of vLLM and SGLang.
def extended(**extra):
    return client.chat.completions.create(
        model=MODEL, messages=ask, temperature=0, max_tokens=40, extra_body=extra).choices[0]


check("token ids", len(extended(return_token_ids=True).token_ids) == whole.usage.completion_tokens)
check("bad words", "Paris" in said and "Paris" not in extended(bad_words=["Paris"]).message.content)
check("allowed ids", set(extended(return_token_ids=True, allowed_token_ids=[30, 31]).token_ids) <= {30, 31})
kept = extended(stop=["Paris"], include_stop_str_in_output=True).message.content
check("stop text in the output", kept.endswith("Paris"))
check("control tokens in the output", "<|im_end|>" in extended(
    skip_special_tokens=False, include_stop_str_in_output=True).message.content)
check("regex", extended(regex="[0-9]{3}").message.content.isdigit())
check("template of the request", extended(
    chat_template="{{ '<|im_start|>user\n' + messages[0].content + '<|im_end|>\n<|im_start|>assistant\n' }}",
).message.content == said)

# Leaving a stream ends its work.
before = complete()
stream = client.chat.completions.create(
    model=MODEL, messages=ask, stream=True, max_tokens=3900, extra_body={"ignore_eos": True})
next(iter(stream))
stream.close()
check("cancellation", complete() == before)

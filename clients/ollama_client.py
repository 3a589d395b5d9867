"""The `ollama` client: lists, chat (streamed and whole), tools, structured output, generation, embeddings, errors."""

import json

import ollama
from ollama import Client

from served import MODEL, TOOL, URL, check

client = Client(host=URL)
options = {"temperature": 0, "seed": 1, "num_predict": 60}

# The model is listed, described and loaded.
check("listed", MODEL in [model.model for model in client.list().models])
check("loaded", MODEL in [model.model for model in client.ps().models])
shown = client.show(MODEL)
check("described", "completion" in shown.capabilities and "tools" in shown.capabilities)

# A chat: whole, streamed, and under the name that the client appends a tag to.
messages = [{"role": "user", "content": "What is the capital of France?"}]
whole = client.chat(model=MODEL, messages=messages, options=options)
check("answer", "Paris" in whole.message.content and whole.done and whole.eval_count > 0)
streamed = list(client.chat(model=f"{MODEL}:latest", messages=messages, options=options, stream=True))
check("streamed", "".join(part.message.content or "" for part in streamed) == whole.message.content)
check("one end", [part.done for part in streamed].count(True) == 1 and streamed[-1].done_reason == "stop")

# A tool call has arguments as an object; its result is found by the tool's name.
asked = [{"role": "user", "content": "What is the weather in Paris?"}]
called = client.chat(model=MODEL, messages=asked, tools=[TOOL], options=options)
call = called.message.tool_calls[0].function
check("call", call.name == "get_weather" and call.arguments == {"city": "Paris"})
result = {"role": "tool", "tool_name": "get_weather", "content": '{"temperature": 21, "sky": "sunny"}'}
answered = client.chat(model=MODEL, messages=[*asked, called.message, result], tools=[TOOL], options=options)
check("result", "21" in answered.message.content or "sunny" in answered.message.content)

# Structured output.
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
formatted = client.chat(model=MODEL, messages=messages, format=schema, options=options)
check("schema", list(json.loads(formatted.message.content)) == ["city"])

# Completion, with and without the chat template.
generated = client.generate(model=MODEL, prompt="What is the capital of France?", options=options)
check("generated", generated.response == whole.message.content)
raw = client.generate(model=MODEL, prompt="Once upon", raw=True, options=options)
check("raw", raw.eval_count == 60 or raw.done_reason == "stop")

# Embeddings are unit vectors.
vectors = client.embed(model=MODEL, input=["cat", "dog"]).embeddings
check("two vectors", len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-3)
check("older embeddings", len(client.embeddings(model=MODEL, prompt="cat").embedding) == len(vectors[0]))

# Another model is not found.
try:
    client.chat(model="other", messages=messages)
    check("another model is refused", False)
except ollama.ResponseError as error:
    check("404", error.status_code == 404 and "other" in error.error)

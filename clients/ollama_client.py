"""The `ollama` client: lists, chat (streamed and whole), tools, structured output, generation with its context,
embeddings, requests about models, errors."""

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

# The context of an answer continues its conversation.
turns = [*messages, {"role": "assistant", "content": whole.message.content}, {"role": "user", "content": "And of Italy?"}]
chatted = client.chat(model=MODEL, messages=turns, options=options)
continued = client.generate(model=MODEL, prompt="And of Italy?", context=generated.context, options=options)
check("context", continued.response == chatted.message.content)
check("context's prompt", continued.prompt_eval_count == chatted.prompt_eval_count)

# What the served model has succeeds; what would change the models is refused with what to do.
check("pull", [part.status for part in client.pull(MODEL, stream=True)][-1] == "success")
check("create", client.create(model=MODEL, from_=MODEL).status == "success")
for name, request, hint in [
    ("another pull", lambda: client.pull("llama3.2"), "--allow-pull"),
    ("a name", lambda: client.copy(MODEL, "mine"), "--model-name mine"),
    ("a deletion", lambda: client.delete(MODEL), "being served"),
    ("a system prompt", lambda: client.create(model="mario", from_=MODEL, system="You are Mario."), "`system`"),
]:
    try:
        request()
        check(f"{name} is refused", False)
    except ollama.ResponseError as error:
        check(name, hint in error.error)

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

"""The cases of the Open Responses compliance suite, checked against the models of `openresponses-types`.

The suite itself is in no package registry. Its schemas are: the package is generated from the published
OpenAPI description, so each response, each event and each request of this script is validated against them.
What the suite leaves open is checked as well: the order and the numbers of events, echoes of the request,
stored conversations, and errors."""

import json
import urllib.error
import urllib.request

import openresponses_types as types
from pydantic import TypeAdapter

from served import MODEL, URL, check

EVENTS = {
    kind.model_fields["type"].annotation: kind
    for name, kind in vars(types).items()
    if name.startswith("Response") and name.endswith("StreamingEvent")
}
EVENTS = {next(iter(values)).value: kind for values, kind in EVENTS.items()}
ENDS = {"response.completed", "response.incomplete", "response.failed"}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def call(method, path, body=None):
    """Status, content type and text of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}/v1{path}", data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read().decode()


def valid(body):
    """The response as it came, once it is known to match its schema."""
    seen = body
    if body["text"]["format"]["type"] == "json_schema":
        # The published description allows no value but null here, where OpenAI's responses hold the schema.
        seen = {**body, "text": {**body["text"], "format": {**body["text"]["format"], "schema": None}}}
    types.ResponseResource.model_validate(seen)
    required = {name for name, field in types.ResponseResource.model_fields.items() if field.is_required()}
    check(f"required fields {required - body.keys()}", required <= body.keys())
    return body


def create(body, **extra):
    """A whole response to a valid request."""
    body = {"model": MODEL, "temperature": 0, "max_output_tokens": 80, **body, **extra}
    types.CreateResponseBody.model_validate(body)
    status, kind, text = call("POST", "/responses", body)
    check(f"status {status}: {text}", status == 200 and kind.startswith("application/json"))
    return valid(json.loads(text))


def stream(body):
    """The events of a streamed response, each checked: its schema, its name, its number and its place."""
    body = {"model": MODEL, "temperature": 0, "max_output_tokens": 80, "stream": True, **body}
    types.CreateResponseBody.model_validate(body)
    status, kind, text = call("POST", "/responses", body)
    check(f"stream {status}: {text[:200]}", status == 200 and kind.startswith("text/event-stream"))
    events = []
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if fields["data"] == "[DONE]":
            continue
        event = json.loads(fields["data"])
        check("the event's name is its type", fields.get("event", event["type"]) == event["type"])
        check(f"a known event {event['type']}", event["type"] in EVENTS)
        EVENTS[event["type"]].model_validate(event)
        if "response" in event:
            valid(event["response"])
        events.append(event)
    check("numbered from 0", [event["sequence_number"] for event in events] == list(range(len(events))))
    names = [event["type"] for event in events]
    check("created first", names[:2] == ["response.created", "response.in_progress"])
    check("one end, last", [name in ENDS for name in names].index(True) == len(names) - 1)
    items_close(events)
    return events


def items_close(events):
    """Items and parts open before their deltas, close behind them, and hold the text of the deltas."""
    open_item, texts = None, {}
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            check("one item at a time", open_item is None)
            open_item = event["output_index"]
        elif kind == "output_item.done":
            check("the open item closes", open_item == event["output_index"])
            open_item = None
        elif kind.endswith(".delta"):
            check("a delta of the open item", event["output_index"] == open_item)
            texts[open_item] = texts.get(open_item, "") + event["delta"]
        elif kind in ("output_text.done", "function_call_arguments.done"):
            check("the deltas' text", texts[open_item] == event.get("text", event.get("arguments")))
    check("all items closed", open_item is None)
    ended = events[-1]["response"]["output"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    check("the end holds the items", ended == done)


def said(response):
    """The text of a response."""
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")


def refused(body, param):
    """Whether a request is refused, with an error that names the field."""
    status, _, text = call("POST", "/responses", {"model": MODEL, **body})
    return status == 400 and json.loads(text)["error"]["param"] == param


def user(content):
    return {"type": "message", "role": "user", "content": content}


# A text: one message, completed, and the echo of the request's parameters.
plain = create({"input": [user("What is the capital of France?")]})
check("completed", plain["status"] == "completed" and plain["completed_at"] >= plain["created_at"])
check("one message", [item["type"] for item in plain["output"]] == ["message"] and "Paris" in said(plain))
check("usage", plain["usage"]["total_tokens"] == plain["usage"]["input_tokens"] + plain["usage"]["output_tokens"])
echoed = {
    "temperature": 0.5, "top_p": 0.75, "presence_penalty": 0.5, "frequency_penalty": 0.25, "max_output_tokens": 16,
    "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k", "parallel_tool_calls": False,
    "instructions": "Be brief.", "store": False, "truncation": "auto", "tool_choice": "none",
}
echo = create({"input": "Hello"}, **echoed)
for name, value in echoed.items():
    check(f"echo of {name}: {echo[name]}", echo[name] == value)
check("a cut answer is incomplete", create({"input": "Tell me a story."}, max_output_tokens=16)["status"] == "incomplete")

# The same text, streamed; and a cut one.
events = stream({"input": [user("What is the capital of France?")]})
check("the same text", said(events[-1]["response"]) == said(plain))
check("text events", {"response.content_part.added", "response.content_part.done"} <= {e["type"] for e in events})
check("incomplete", stream({"input": "Tell me a story.", "max_output_tokens": 16})[-1]["type"] == "response.incomplete")

# Roles: a system prompt, a developer's, instructions, and a history of several turns.
for role in ("system", "developer"):
    prompt = {"type": "message", "role": role, "content": "You are helpful."}
    check(role, "Paris" in said(create({"input": [prompt, user("What is the capital of France?")]})))
turns = [
    user("My name is Alice."),
    {"type": "message", "role": "assistant", "content": "Hello Alice!"},
    user([{"type": "input_text", "text": "What is the capital of France?"}]),
]
check("several turns", said(create({"input": turns})))

# A tool: called, streamed, and its result used, in a history and by the id of the response before.
asked = [user("What is the weather in Paris?")]
called = create({"input": asked, "tools": [WEATHER]})
function = called["output"][0]
check("a call", function["type"] == "function_call" and json.loads(function["arguments"]) == {"city": "Paris"})
events = stream({"input": asked, "tools": [WEATHER]})
check("a streamed call", events[-1]["response"]["output"][0]["arguments"] == function["arguments"])
check("arguments", "response.function_call_arguments.delta" in {event["type"] for event in events})
result = {"type": "function_call_output", "call_id": function["call_id"], "output": '{"temperature": 21, "sky": "sunny"}'}
whole = create({"input": [*asked, function, result], "tools": [WEATHER]})
check("a result", "21" in said(whole) or "sunny" in said(whole))
chained = create({"input": [result], "previous_response_id": called["id"], "tools": [WEATHER]})
check("a result by id", said(chained) == said(whole) and chained["previous_response_id"] == called["id"])
for choice in ("required", {"type": "function", "name": "get_weather"},
               {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}):
    forced = create({"input": "Hello", "tools": [WEATHER], "tool_choice": choice})
    check(f"forced by {choice}", forced["output"][-1]["type"] == "function_call" and forced["tool_choice"] == choice)
check("no call", said(create({"input": asked, "tools": [WEATHER], "tool_choice": "none"})))

# Structured output.
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
shape = {"format": {"type": "json_schema", "name": "place", "schema": schema, "strict": True}}
shaped = create({"input": "What is the capital of France?", "text": shape})
check("structured", list(json.loads(said(shaped))) == ["city"] and shaped["text"]["format"]["schema"] == schema)

# A stored response: read, continued, listed, deleted.
status, _, text = call("GET", f"/responses/{plain['id']}")
check("stored", status == 200 and valid(json.loads(text)) == plain)
again = create({"input": "What is the capital of Italy?", "previous_response_id": plain["id"]})
check("the conversation goes on", again["usage"]["input_tokens"] > plain["usage"]["total_tokens"])
status, _, text = call("GET", f"/responses/{again['id']}/input_items")
check("its items", status == 200 and len(json.loads(text)["data"]) >= 1)
check("deleted", call("DELETE", f"/responses/{plain['id']}")[0] == 200 and call("GET", f"/responses/{plain['id']}")[0] == 404)
hidden = create({"input": "Hello"}, store=False)
check("not stored", call("GET", f"/responses/{hidden['id']}")[0] == 404)
status, _, text = call("POST", "/responses/input_tokens", {"model": MODEL, "input": asked})
check("counted", status == 200 and json.loads(text)["input_tokens"] == create({"input": asked})["usage"]["input_tokens"])

# What the model cannot read is refused by name, and so is what does not fit.
image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
check("image", refused({"input": [user([image])]}, "input[0].content[0].type"))
file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}
check("file", refused({"input": [user([file])]}, "input[0].content[0].type"))
check("temperature", refused({"input": "a", "temperature": -1}, "temperature"))
check("unknown id", refused({"input": "a", "previous_response_id": "resp_0"}, "previous_response_id"))
status, _, text = call("POST", "/responses/compact", {"model": MODEL, "input": asked})
check("compact", status == 200 and json.loads(text)["output"][0]["type"] == "compaction")

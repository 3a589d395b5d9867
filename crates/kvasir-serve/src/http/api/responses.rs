//! OpenAI `/v1/responses`: response object with output items, and its numbered SSE events.

use crate::answer::events::Delta;
use crate::answer::items::{Item, ItemEvent, ItemKind, Items};
use crate::error::{ApiError, Detail};
use crate::http::access::api_keys::Caller;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::sse::{self, event_stream};
use crate::http::answers::submit_chat::submit_chat;
use crate::http::answers::usage::Usage;
use crate::http::app::{App, unix_seconds};
use crate::http::body::read_body;
use crate::request::body::{Body, heap_bytes};
use crate::request::body_memory::BodyMemory;
use crate::request::conversation::Role;
use crate::request::fields::RESPONSES;
use crate::request::reader::Reader;
use crate::request::responses::ResponsesRequest;
use crate::request::responses_tools::custom_input;
use crate::request::tools::ToolKind;
use crate::session::responses::Conversation;
use axum::{
    Extension, Json,
    extract::{Path, Request, State},
    response::{IntoResponse, Response},
};
use futures_util::Stream;
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};

/// A response request that has been submitted to the engine.
pub(crate) struct Responses {
    object: ResponseObject,
    reply: Reply,
    storing: Option<Storing>,
    pub(crate) stream: bool,
}

/// What is needed to store a response when it has ended.
struct Storing {
    app: Arc<App>,
    key: u64,
    before: Conversation,
    own_input: Vec<Value>,
}

impl Storing {
    fn store(self, response: &Value) {
        self.app.responses.insert(self.key, &self.before, self.own_input, response.clone());
    }
}

/// The items of an `input`; a text is a message of the user. Fails with any other value but null.
fn input_items(input: Value) -> Result<Vec<Value>, Value> {
    match input {
        Value::Array(items) => Ok(items),
        Value::String(text) => Ok(vec![json!({"type": "message", "role": "user", "content": text})]),
        Value::Null => Ok(Vec::new()),
        other => Err(other),
    }
}

/// Puts the items of an earlier conversation in front of the body's `input`.
fn prepend(before: &Conversation, body: &mut Body) {
    let input = body.fields.entry("input").or_insert(Value::Null);
    *input = match input_items(input.take()) {
        Ok(own) => before.items().cloned().chain(own).collect(),
        // The parser names its type.
        Err(other) => other,
    };
}

/// Takes the items of `input` out of the body, without those of the conversation in front.
fn take_own_input(before: &Conversation, body: &mut Body) -> Vec<Value> {
    let input = body.fields.get_mut("input").map(Value::take).unwrap_or_default();
    let mut items = input_items(input).unwrap_or_default();
    items.split_off(before.items().count().min(items.len()))
}

/// Parses a request behind the conversation that its `previous_response_id` names; returns that, too.
/// The body's `input` then holds both.
fn read_request(app: &App, key: u64, body: &mut Body) -> Result<(ResponsesRequest, Conversation), ApiError> {
    let mut before = Conversation::default();
    if let Some(previous) = body.reader().text("previous_response_id")? {
        before = app.responses.conversation(previous, key).map_err(|error| ApiError {
            status: 400,
            param: Some("previous_response_id".into()),
            ..error
        })?;
        prepend(&before, body);
    }
    let facts = &app.model.facts;
    let request = ResponsesRequest::read(&body.reader(), &facts.sampling, facts.vocab)?;
    Ok((request, before))
}

/// Submits a conversation; with `truncate`, drops its oldest messages until it fits the context.
fn submit_truncated(app: &Arc<App>, key: u64, request: &mut ResponsesRequest) -> Result<Reply, ApiError> {
    loop {
        let error = match submit_chat(app, key, &request.chat, "input") {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        let messages = &mut request.chat.messages;
        let systems = messages.iter().take_while(|message| message.role == Role::System).count();
        let droppable = messages.len().saturating_sub(systems + 1);
        if !request.truncate || !matches!(error.detail, Some(Detail::Overflow(_))) || droppable == 0 {
            return Err(error);
        }
        messages.drain(systems..systems + droppable.div_ceil(8));
        // A result without its call would be refused.
        while messages.len() > systems + 1 && messages[systems].role == Role::Tool {
            messages.remove(systems);
        }
    }
}

impl Responses {
    /// Validates and submits the request. What the response keeps of the body stays charged to the
    /// memory of bodies.
    pub(crate) fn begin(app: &Arc<App>, key: u64, mut body: Body) -> Result<Self, ApiError> {
        let (mut request, before) = read_request(app, key, &mut body)?;
        let reply = submit_truncated(app, key, &mut request)?;
        let response = initial_response(app, &request, &body.reader());
        let own_input = if request.store { take_own_input(&before, &mut body) } else { Vec::new() };
        let kept = heap_bytes(&response) + own_input.iter().map(heap_bytes).sum::<usize>();
        let storing = request.store.then(|| Storing { app: app.clone(), key, before, own_input });
        let kinds = request.chat.tools.iter().filter(|tool| tool.kind != ToolKind::Function);
        let object = ResponseObject {
            id: app.new_id(),
            response,
            kinds: kinds.map(|tool| (tool.name.clone(), tool.kind.clone())).collect(),
            logprobs: HashMap::new(),
            _memory: body.keep(kept),
        };
        Ok(Self { object, reply, storing, stream: request.chat.stream.is_some() })
    }

    /// The non-streaming response.
    pub(crate) async fn whole(mut self) -> Result<Value, ApiError> {
        let (mut items, mut ended) = (Items::default(), None);
        let object = &mut self.object;
        let usage = self.reply.whole(|_, increment| {
            object.take(&mut items, increment.deltas, increment.logprobs);
            ended = increment.ended.or(ended.take());
        });
        let usage = usage.await?;
        let response = self.object.finished(&items, ended.as_ref(), &usage);
        self.storing.into_iter().for_each(|storing| storing.store(&response));
        Ok(response)
    }

    /// The response as server-sent events.
    pub(crate) fn events(self) -> impl Stream<Item = String> + Send {
        let Self { object, reply, storing, .. } = self;
        reply.events(Events { object, storing, items: Items::default(), ended: None, sequence: 0 })
    }
}

/// The initial response object, which echoes the request's parameters.
fn initial_response(app: &App, request: &ResponsesRequest, body: &Reader) -> Value {
    let requested = |name: &str, default: Value| body.get(name).cloned().unwrap_or(default);
    let ResponsesRequest { chat, store, truncate } = request;
    let sampling = &chat.sampling.sampling;
    let mut tools = requested("tools", json!([]));
    for tool in tools.as_array_mut().into_iter().flatten() {
        if tool["type"] != "function" {
            continue;
        }
        if tool.get("strict").is_none_or(Value::is_null) {
            tool["strict"] = false.into();
        }
        with_fields(tool, json!({"description": null, "parameters": null}));
    }
    let mut reasoning = requested("reasoning", json!({}));
    with_fields(&mut reasoning, json!({"effort": null, "summary": null}));
    let mut text = requested("text", json!({}));
    with_fields(&mut text, json!({"format": {"type": "text"}}));
    if text["format"]["type"] == "json_schema" {
        with_fields(&mut text["format"], json!({"description": null, "strict": false}));
    }
    json!({
        "object": "response",
        "created_at": unix_seconds(),
        "completed_at": null,
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": requested("instructions", Value::Null),
        "max_output_tokens": requested("max_output_tokens", Value::Null),
        "max_tool_calls": null,
        "metadata": requested("metadata", json!({})),
        "model": app.model.name,
        "output": [],
        "parallel_tool_calls": chat.parallel_tool_calls,
        "presence_penalty": requested("presence_penalty", sampling.presence_penalty.into()),
        "frequency_penalty": requested("frequency_penalty", sampling.frequency_penalty.into()),
        "previous_response_id": requested("previous_response_id", Value::Null),
        "prompt_cache_key": requested("prompt_cache_key", Value::Null),
        "safety_identifier": requested("safety_identifier", Value::Null),
        "reasoning": reasoning,
        "service_tier": "default",
        "store": store,
        "temperature": requested("temperature", sampling.temperature.into()),
        "text": text,
        "tool_choice": requested("tool_choice", "auto".into()),
        "tools": tools,
        "top_logprobs": requested("top_logprobs", 0.into()),
        "top_p": requested("top_p", sampling.top_p.into()),
        "truncation": if *truncate { "auto" } else { "disabled" },
        "usage": null,
        "user": requested("user", Value::Null),
    })
}

/// Adds fields that an object lacks: responses hold all of them.
fn with_fields(object: &mut Value, fields: Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        fields.into_iter().for_each(|(name, value)| {
            object.entry(name).or_insert(value);
        });
    }
}

/// Serializes the response object and its items.
struct ResponseObject {
    id: String,
    response: Value,
    /// Client-side kind of tools that are not plain functions, by name.
    kinds: HashMap<String, ToolKind>,
    /// Log-probabilities of text items, by item index.
    logprobs: HashMap<usize, Vec<Value>>,
    /// Charge of what is kept of the request's body: echoed parameters, and input to be stored.
    _memory: BodyMemory,
}

/// Item index, event, and the log-probabilities that belong to it.
type IndexedEvent = (usize, ItemEvent, Vec<Value>);

impl ResponseObject {
    /// Feeds deltas into the items. Log-probabilities that arrive together attach to the first text
    /// among their deltas.
    fn take(&mut self, items: &mut Items, deltas: Vec<Delta>, mut logprobs: Vec<Value>) -> Vec<IndexedEvent> {
        let mut events = Vec::new();
        for delta in deltas {
            for (index, event) in items.push(delta) {
                let is_text = items.all().get(index).is_some_and(|item| item.kind == ItemKind::Text);
                let own = match event {
                    ItemEvent::More(_) if is_text => std::mem::take(&mut logprobs),
                    _ => Vec::new(),
                };
                self.logprobs.entry(index).or_default().extend(own.iter().cloned());
                events.push((index, event, own));
            }
        }
        events
    }

    fn response(&self) -> Value {
        let mut response = self.response.clone();
        response["id"] = format!("resp_{}", self.id).into();
        response
    }

    fn finished(&self, items: &Items, ended: Option<&AnswerOutcome>, usage: &Usage) -> Value {
        let cut = ended.is_some_and(|ended| ended.reason == "length");
        let status = if cut { "incomplete" } else { "completed" };
        let mut response = self.response();
        response["status"] = status.into();
        response["completed_at"] = if cut { Value::Null } else { unix_seconds().into() };
        if cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let last = items.all().len().saturating_sub(1);
        let output = items.all().iter().enumerate().map(|(index, item)| {
            let status = if cut && index == last { "incomplete" } else { "completed" };
            self.item(index, item, status)
        });
        response["output"] = output.collect();
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": usage.details(),
            "total_tokens": usage.prompt + usage.completion,
        });
        response
    }

    fn item_id(&self, index: usize, item: &Item) -> String {
        let kind = match item.kind {
            ItemKind::Reasoning => "rs",
            ItemKind::Text => "msg",
            ItemKind::Call(_) if self.is_custom(item) => "ctc",
            ItemKind::Call(_) => "fc",
        };
        format!("{kind}_{}_{index}", self.id)
    }

    /// An output item; its content is empty while `in_progress`.
    fn item(&self, index: usize, item: &Item, status: &str) -> Value {
        let begun = status == "in_progress";
        let content = if begun { json!([]) } else { json!([self.part(index, item, &item.text)]) };
        let id = self.item_id(index, item);
        match &item.kind {
            ItemKind::Reasoning => {
                json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content})
            }
            ItemKind::Text => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            ItemKind::Call(name) => {
                let call = format!("call_{}_{index}", self.id);
                let arguments = if begun { "" } else { item.text.as_str() };
                let (name, namespace) = self.client_name(name);
                let mut object = json!({
                    "id": id, "type": "function_call", "status": status, "call_id": call, "name": name,
                });
                if let Some(namespace) = namespace {
                    object["namespace"] = namespace.into();
                }
                if self.is_custom(item) {
                    object["type"] = "custom_tool_call".into();
                    object["input"] = custom_input(arguments).into();
                } else {
                    object["arguments"] = arguments.into();
                }
                object
            }
        }
    }

    /// The name and namespace of a called function, as the client offered them.
    fn client_name<'a>(&'a self, function: &'a str) -> (&'a str, Option<&'a str>) {
        match self.kinds.get(function) {
            Some(ToolKind::Namespaced { namespace, name, .. }) => (name, Some(namespace)),
            _ => (function, None),
        }
    }

    fn is_custom(&self, item: &Item) -> bool {
        matches!(&item.kind, ItemKind::Call(name) if self.kinds.get(name).is_some_and(ToolKind::is_custom))
    }

    fn logprobs_of(&self, index: usize) -> &[Value] {
        self.logprobs.get(&index).map_or(&[], Vec::as_slice)
    }

    fn part(&self, index: usize, item: &Item, text: &str) -> Value {
        match item.kind {
            ItemKind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            _ => {
                let logprobs = if text.is_empty() { &[] } else { self.logprobs_of(index) };
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
        }
    }
}

/// Writes the SSE events of a response, numbered from 0.
struct Events {
    object: ResponseObject,
    storing: Option<Storing>,
    items: Items,
    ended: Option<AnswerOutcome>,
    sequence: u64,
}

/// Writes one event with the next number of `sequence`.
fn write_event(sequence: &mut u64, out: &mut String, name: &str, mut event: Value) {
    event["type"] = name.into();
    event["sequence_number"] = (*sequence).into();
    *sequence += 1;
    sse::typed(out, &event);
}

impl Events {
    /// Writes the events of one item event, including those of its single content part. The cost of
    /// a delta does not depend on the length of its item.
    fn item(&mut self, out: &mut String, index: usize, event: ItemEvent, logprobs: &[Value]) {
        let Self { object, items, ended, sequence, .. } = self;
        let Some(item) = items.all().get(index) else { return };
        let place = |mut event: Value| {
            event["item_id"] = object.item_id(index, item).into();
            event["output_index"] = index.into();
            if !matches!(item.kind, ItemKind::Call(_)) {
                event["content_index"] = 0.into();
            }
            event
        };
        let stem = match item.kind {
            ItemKind::Reasoning => "response.reasoning_text",
            ItemKind::Text => "response.output_text",
            ItemKind::Call(_) if object.is_custom(item) => "response.custom_tool_call_input",
            ItemKind::Call(_) => "response.function_call_arguments",
        };
        let is_custom = object.is_custom(item);
        let is_call = matches!(item.kind, ItemKind::Call(_));
        let mut events = Vec::new();
        match event {
            ItemEvent::Begin => {
                let begun = object.item(index, item, "in_progress");
                events.push((
                    "response.output_item.added".into(),
                    json!({"output_index": index, "item": begun}),
                ));
                if !is_call {
                    let part = place(json!({"part": object.part(index, item, "")}));
                    events.push(("response.content_part.added".into(), part));
                }
            }
            // A custom tool's input is nested in the JSON arguments, so it is sent once they are
            // complete.
            ItemEvent::More(_) if is_custom => {}
            ItemEvent::More(text) => {
                let mut delta = place(json!({"delta": text}));
                if item.kind == ItemKind::Text {
                    delta["logprobs"] = logprobs.into();
                }
                events.push((format!("{stem}.delta"), delta));
            }
            ItemEvent::End => {
                if is_custom {
                    let input = place(json!({"delta": custom_input(&item.text)}));
                    events.push((format!("{stem}.delta"), input));
                }
                let done = match &item.kind {
                    ItemKind::Call(_) if is_custom => json!({"input": custom_input(&item.text)}),
                    ItemKind::Call(name) => {
                        json!({"name": object.client_name(name).0, "arguments": item.text})
                    }
                    ItemKind::Text => json!({"text": item.text, "logprobs": object.logprobs_of(index)}),
                    ItemKind::Reasoning => json!({"text": item.text}),
                };
                events.push((format!("{stem}.done"), place(done)));
                if !is_call {
                    let part = place(json!({"part": object.part(index, item, &item.text)}));
                    events.push(("response.content_part.done".into(), part));
                }
                let cut = ended.as_ref().is_some_and(|ended| ended.reason == "length");
                let whole = object.item(index, item, if cut { "incomplete" } else { "completed" });
                events.push((
                    "response.output_item.done".into(),
                    json!({"output_index": index, "item": whole}),
                ));
            }
        }
        for (name, event) in events {
            write_event(sequence, out, &name, event);
        }
    }
}

impl EventWriter for Events {
    fn open(&mut self, out: &mut String) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.object.response();
            write_event(&mut self.sequence, out, name, json!({"response": response}));
        }
    }

    fn increment(&mut self, out: &mut String, _: usize, increment: AnswerIncrement) {
        for (index, event, logprobs) in
            self.object.take(&mut self.items, increment.deltas, increment.logprobs)
        {
            self.item(out, index, event, &logprobs);
        }
        self.ended = increment.ended;
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        let mut response = self.object.response();
        response["status"] = "failed".into();
        response["error"] = json!({"code": "server_error", "message": error.message});
        write_event(&mut self.sequence, out, "response.failed", json!({"response": response}));
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        if let Some((index, event)) = self.items.finish() {
            self.item(out, index, event, &[]);
        }
        let response = self.object.finished(&self.items, self.ended.as_ref(), usage);
        let name =
            if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.storing.take().into_iter().for_each(|storing| storing.store(&response));
        write_event(&mut self.sequence, out, name, json!({"response": response}));
    }
}

/// `GET /v1/responses/ID`.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.responses.get(&id, key).map(Json)
}

/// `DELETE /v1/responses/ID`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.responses.remove(&id, key)?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// `GET /v1/responses/ID/input_items`.
pub(crate) async fn input(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let mut items = app.responses.input(&id, key)?;
    for (i, item) in items.iter_mut().enumerate() {
        if let Some(item) = item.as_object_mut() {
            item.entry("id").or_insert_with(|| format!("item_{i}_{id}").into());
        }
    }
    let end = |item: Option<&Value>| item.map(|item| item["id"].clone());
    Ok(Json(json!({
        "object": "list", "first_id": end(items.first()), "last_id": end(items.last()), "has_more": false,
        "data": items,
    })))
}

/// `POST /v1/responses/input_tokens`: the length of the rendered input.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (key, mut body) = read_body(&app, request, RESPONSES).await?;
    let (request, _) = read_request(&app, key, &mut body)?;
    app.check_model(request.chat.model.as_deref())?;
    let count = app.model.chat_prompt(&request.chat)?.len();
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": count})))
}

/// `POST /v1/responses/compact`: encrypted summaries are a provider's own.
pub(crate) async fn compact() -> ApiError {
    ApiError::not_offered(
        "conversations are not compacted here; summarize them with a request, or send `truncation`: `auto`",
    )
}

pub(crate) async fn responses_create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, RESPONSES).await?;
    let response = Responses::begin(&app, key, body)?;
    if response.stream {
        Ok(event_stream(response.events()))
    } else {
        Ok(Json(response.whole().await?).into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use crate::session::responses::ResponseStore;
    use std::time::{Duration, Instant};

    fn events() -> Events {
        let object = ResponseObject {
            id: "1".into(),
            response: json!({}),
            kinds: HashMap::new(),
            logprobs: HashMap::new(),
            _memory: BodyMemory::default(),
        };
        Events { object, storing: None, items: Items::default(), ended: None, sequence: 0 }
    }

    fn push(events: &mut Events, text: &str) {
        let deltas = vec![Delta::Content(text.into())];
        events.increment(&mut String::new(), 0, AnswerIncrement { deltas, ..AnswerIncrement::default() });
    }

    #[test]
    fn stored_input_is_taken_out_of_the_body() {
        let store = ResponseStore::default();
        let earlier = json!({"id": "a", "output": [{"type": "message"}]});
        store.insert(1, &Conversation::default(), vec![json!({"role": "user"})], earlier);
        for before in [Conversation::default(), store.conversation("a", 1).unwrap()] {
            let text = br#"{"input": [{"role": "user", "content": "hi"}]}"#;
            let mut body = Body::parse(text, RESPONSES, IgnoredFields::default()).unwrap();
            let content = |items: &Value| items[0]["content"].as_str().unwrap().as_ptr();
            let parsed = content(&body.fields["input"]);
            prepend(&before, &mut body);
            assert_eq!(body.fields["input"].as_array().unwrap().len(), 1 + before.items().count());
            let own = take_own_input(&before, &mut body);
            assert_eq!((own.len(), content(&own.into())), (1, parsed), "it is no copy");
            assert_eq!(body.fields["input"], Value::Null);
        }
    }

    #[test]
    fn input_of_a_wrong_type_is_left_to_the_parser() {
        for (text, input) in [("{\"input\": 5}", json!(5)), ("{}", json!([]))] {
            let mut body = Body::parse(text.as_bytes(), RESPONSES, IgnoredFields::default()).unwrap();
            prepend(&Conversation::default(), &mut body);
            assert_eq!(body.fields["input"], input);
        }
    }

    #[test]
    fn the_cost_of_a_delta_does_not_depend_on_its_item() {
        let mut events = events();
        push(&mut events, &"x".repeat(64 << 20));
        let began = Instant::now();
        for _ in 0..400 {
            push(&mut events, "y");
        }
        // Copies of the item would take 25 GiB.
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(events.sequence, 403, "two events begin the item");
    }
}

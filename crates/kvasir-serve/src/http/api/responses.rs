//! OpenAI `/v1/responses`: creates responses, and continues stored ones and conversations.
//!
//! `background` generates without a connected client, `socket` takes requests over a WebSocket,
//! `compact` summarizes a conversation, and `stored` reads stored responses.

mod background;
pub(crate) mod compact;
mod events;
pub(crate) mod items;
mod object;
pub(crate) mod socket;
pub(crate) mod stored;
mod storing;
mod truncation;

use crate::error::ApiError;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::reply::Reply;
use crate::http::answers::sse::event_stream;
use crate::http::answers::submit_chat::{submit_chat, submit_recorded};
use crate::http::api::responses::events::Events;
use crate::http::api::responses::object::{ResponseObject, call_prefix, initial_response};
use crate::http::api::responses::storing::{Destination, Storing};
use crate::http::api::responses::truncation::submit_truncated;
use crate::http::app::App;
use crate::http::body::read_body;
use crate::request::body::{Body, heap_bytes};
use crate::request::chat::ChatRequest;
use crate::request::fields::RESPONSES;
use crate::request::responses::{ResponsesRequest, conversation_id};
use crate::session::recorder::TurnRecorder;
use crate::session::responses::{Conversation, ResponseStore};
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::Stream;
use kvasir_chat::ToolKind;
use kvasir_chat::answer::Items;
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};

/// Bytes of output that a conversation must have room for when a response in it begins.
const OUTPUT_ROOM: usize = 1 << 20;

/// A response request that has been submitted to the engine.
pub(crate) struct Responses {
    object: ResponseObject,
    reply: Reply,
    storing: Option<Storing>,
    pub(crate) stream: bool,
    is_background: bool,
}

/// Parameters of a request over a WebSocket that a `POST` does not have.
struct SocketRequest {
    /// Store of the connection's newest response with `store: false`.
    newest: Arc<ResponseStore>,
    /// False for a warm-up: the prompt is prefilled, and the response is empty (`generate: false`).
    generates: bool,
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

/// Parses a request that continues the conversation of its `previous_response_id` or
/// `conversation`, or the `earlier` messages of its session. Returns the request, and the
/// conversation, which is empty for a session. The body's `input` then holds the items of both.
fn read_request(
    app: &App,
    key: u64,
    body: &mut Body,
    earlier: &[Value],
    socket: Option<&SocketRequest>,
) -> Result<(ResponsesRequest, Conversation), ApiError> {
    let mut before = Conversation::default();
    let wrong = |param: &str, error| ApiError { status: 400, param: Some(param.to_owned()), ..error };
    if let Some(id) = conversation_id(&body.reader())? {
        before = app.conversations.items(&id, key).map_err(|error| wrong("conversation", error))?;
        prepend(&before, body);
    } else if let Some(previous) = body.reader().text("previous_response_id")? {
        let own = socket.and_then(|socket| socket.newest.conversation(previous, key).ok());
        let found = own.map_or_else(|| app.responses.conversation(previous, key), Ok);
        before = found.map_err(|error| wrong("previous_response_id", error))?;
        prepend(&before, body);
    }
    let facts = &app.model.facts;
    let (reader, defaults, vocab) = (body.reader(), &facts.sampling, facts.vocab);
    let request = match socket {
        Some(SocketRequest { generates: false, .. }) => {
            ResponsesRequest::read_warm_up(earlier, &reader, defaults, vocab)
        }
        _ => ResponsesRequest::read_after(earlier, &reader, defaults, vocab),
    };
    Ok((request?, before))
}

impl Responses {
    /// Validates and submits the request. What the response keeps of the body stays charged to the
    /// memory of bodies.
    fn begin(
        app: &Arc<App>,
        key: u64,
        mut body: Body,
        socket: Option<SocketRequest>,
    ) -> Result<Self, ApiError> {
        let (earlier, turn) = app.begin_messages_turn(key, &body.reader())?.unzip();
        let earlier = earlier.unwrap_or_default();
        let (mut request, before) = read_request(app, key, &mut body, &earlier, socket.as_ref())?;
        if request.background && socket.is_some() {
            return Err(ApiError::unsupported(
                "background",
                "a WebSocket streams every response; send `background` with POST",
            ));
        }
        if let Some(id) = &request.conversation {
            let input = body.fields.get("input").map_or(0, heap_bytes);
            let room =
                app.conversations.check_room(id, key, input.saturating_sub(before.bytes()) + OUTPUT_ROOM);
            room.map_err(|error| ApiError { param: Some("conversation".into()), ..error })?;
        }
        let id = app.new_id();
        let count = earlier.len();
        let is_warm_up = socket.as_ref().is_some_and(|socket| !socket.generates);
        // A warm-up has an empty answer, which is not recorded as a turn.
        let recorder = turn.filter(|_| !is_warm_up).map(|turn| {
            let messages = earlier.into_iter().chain(request.chat_messages(count)).collect();
            TurnRecorder::of_messages(turn, messages, call_prefix(&id))
        });
        let reply = if request.truncate {
            submit_truncated(&mut request.chat, |chat: &ChatRequest| submit_chat(app, key, chat, "input"))?
        } else {
            submit_recorded(app, key, &request.chat, "input", recorder)?
        };
        let response = initial_response(app, &request, &body.reader());
        let destination = match socket {
            _ if request.background => Destination::Background,
            _ if request.store => Destination::Store,
            Some(socket) => Destination::Connection(socket.newest),
            None => Destination::None,
        };
        let conversation = request.conversation.take();
        let mut storing =
            Storing { app: app.clone(), key, destination, before, own_input: Vec::new(), conversation };
        if storing.is_needed() {
            storing.own_input = take_own_input(&storing.before, &mut body);
        }
        let kept = heap_bytes(&response) + storing.own_input.iter().map(heap_bytes).sum::<usize>();
        let storing = storing.is_needed().then_some(storing);
        let kinds = request.chat.tools.iter().filter(|tool| tool.kind != ToolKind::Function);
        let object = ResponseObject {
            id,
            response,
            timings: request.chat.timings,
            calls: Vec::new(),
            kinds: kinds.map(|tool| (tool.name.clone(), tool.kind.clone())).collect(),
            logprobs: HashMap::new(),
            is_warm_up,
            _memory: body.keep(kept),
        };
        let (stream, is_background) = (request.chat.stream.is_some(), request.background);
        Ok(Self { object, reply, storing, stream, is_background })
    }

    /// The non-streaming response.
    pub(crate) async fn whole(mut self, app: &Arc<App>) -> Result<JsonAnswer, ApiError> {
        let (mut items, mut ended) = (Items::default(), None);
        let object = &mut self.object;
        let usage = self.reply.whole(|_, increment| {
            object.take(&mut items, increment.deltas, increment.logprobs);
            ended = increment.ended.or(ended.take());
        });
        let (usage, memory) = usage.await?;
        let response = self.object.finished(&items, ended.as_ref(), &usage);
        self.storing.into_iter().for_each(|storing| storing.store(&response));
        JsonAnswer::collected(app, memory, response).await
    }

    /// The response as server-sent events.
    pub(crate) fn events(self) -> impl Stream<Item = String> + Send {
        let Self { object, reply, storing, .. } = self;
        let prompt_tokens = u32::try_from(reply.prompt_tokens()).unwrap_or(u32::MAX);
        let items = Items::default();
        reply.events(Events { object, storing, items, ended: None, prompt_tokens, sequence: 0 })
    }
}

/// `POST /v1/responses/input_tokens`: the length of the rendered input.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (key, mut body) = read_body(&app, request, RESPONSES).await?;
    let count = app.run_work(body.cost(), move |app| {
        let earlier = app.messages_of_session(key, &body.reader())?;
        let (request, _) = read_request(app, key, &mut body, &earlier, None)?;
        app.model_names().check(request.chat.model.as_deref())?;
        Ok(app.model.chat_prompt(&request.chat)?.len())
    });
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": count.await?})))
}

pub(crate) async fn responses_create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, RESPONSES).await?;
    let response = app.run_work(body.cost(), move |app| Responses::begin(app, key, body, None)).await?;
    let stream = response.stream;
    if response.is_background {
        let Some((first, log)) = background::start(response) else {
            return Err(ApiError::failed("the response is not stored"));
        };
        return Ok(if stream {
            event_stream(background::follow(log, 0))
        } else {
            Json(first).into_response()
        });
    }
    if stream { Ok(event_stream(response.events())) } else { Ok(response.whole(&app).await?.into_response()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use crate::session::responses::ResponseStore;

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
}

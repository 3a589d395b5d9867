//! Anthropic `/v1/messages` and `/v1/messages/count_tokens`: responses as one object or as typed
//! SSE events.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::sse::{self, event_stream};
use crate::http::answers::submit_chat::submit_chat;
use crate::http::answers::usage::Usage;
use crate::http::app::App;
use crate::http::body::read_body;
use crate::model::marked_prefixes::MarkedPrefix;
use crate::request::fields::{COUNT_TOKENS, MESSAGES};
use crate::request::messages::MessagesRequest;
use crate::request::reader::Reader;
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::Stream;
use kvasir_chat::answer::{Item, ItemEvent, ItemKind, Items};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The longer ttl of a mark.
const HOUR: Duration = Duration::from_secs(3600);

/// Paths of Anthropic's endpoints, which have an error format of their own.
pub(crate) const MESSAGES_PATH: &str = "/v1/messages";
pub(crate) const COUNT_TOKENS_PATH: &str = "/v1/messages/count_tokens";

/// A Messages API request that has been submitted to the engine.
pub(crate) struct Messages {
    head: Head,
    reply: Reply,
    pub(crate) stream: bool,
}

impl Messages {
    /// Validates and submits the request.
    pub(crate) fn begin(app: &Arc<App>, key: u64, body: &Reader) -> Result<Self, ApiError> {
        let facts = &app.model.facts;
        let request =
            MessagesRequest::read(body, &facts.sampling, facts.vocab, app.rules.strip_billing_header)?.chat;
        let reply = submit_chat(app, key, &request, "messages")?;
        let marked = reply.marked().to_vec();
        let head = Head { id: app.new_id(), model: app.model.name.clone(), marked };
        Ok(Self { head, reply, stream: request.stream.is_some() })
    }

    /// The non-streaming response.
    pub(crate) async fn whole(self, app: &Arc<App>) -> Result<JsonAnswer, ApiError> {
        let (mut items, mut ended) = (Items::default(), None);
        let usage = self.reply.whole(|_, increment| {
            for delta in increment.deltas {
                items.push(delta);
            }
            ended = increment.ended.or(ended.take());
        });
        let (usage, memory) = usage.await?;
        let blocks = items.all().iter().enumerate().map(|(index, item)| self.head.block(index, item, true));
        let (reason, sequence) = stop(ended.as_ref());
        let message = self.head.message(blocks.collect(), reason, sequence, self.head.tokens(&usage));
        JsonAnswer::collected(app, memory, message).await
    }

    /// The response as server-sent events.
    pub(crate) fn events(self) -> impl Stream<Item = String> + Send {
        let prompt = self.reply.prompt_tokens();
        let writer = Events { head: self.head, prompt, is_open: false, items: Items::default(), ended: None };
        self.reply.events(writer)
    }
}

/// `/v1/messages/count_tokens`.
pub(crate) fn count(app: &App, body: &Reader) -> Result<Value, ApiError> {
    let facts = &app.model.facts;
    let request =
        MessagesRequest::read_for_count(body, &facts.sampling, facts.vocab, app.rules.strip_billing_header)?
            .chat;
    app.model_names().check(request.model.as_deref())?;
    Ok(json!({"input_tokens": app.model.chat_prompt(&request)?.len()}))
}

/// `stop_reason` and `stop_sequence`.
fn stop(ended: Option<&AnswerOutcome>) -> (Value, Value) {
    match ended {
        None => (Value::Null, Value::Null),
        Some(AnswerOutcome { stop: Some(text), .. }) => ("stop_sequence".into(), text.as_str().into()),
        Some(AnswerOutcome { reason, .. }) => {
            let reason = match *reason {
                "length" => "max_tokens",
                "tool_calls" => "tool_use",
                _ => "end_turn",
            };
            (reason.into(), Value::Null)
        }
    }
}

struct Head {
    id: String,
    model: String,
    /// Prefixes whose K/V is kept.
    marked: Vec<MarkedPrefix>,
}

impl Head {
    /// Usage object. Input tokens are those behind the cache hit and behind what is kept; between
    /// them is what the request adds to the cache.
    fn tokens(&self, usage: &Usage) -> Value {
        let beyond = |len: u64| len.saturating_sub(usage.cached);
        let longest = |hours: bool| {
            let marked = self.marked.iter().filter(|prefix| (prefix.ttl >= HOUR) == hours);
            beyond(marked.map(|prefix| prefix.len.into()).max().unwrap_or(0))
        };
        // What is kept for an hour is the beginning of what is kept for minutes.
        let (hour, all) = (longest(true), longest(true).max(longest(false)));
        json!({
            "input_tokens": beyond(usage.prompt).saturating_sub(all),
            "cache_creation_input_tokens": all,
            "cache_creation": {"ephemeral_5m_input_tokens": all - hour, "ephemeral_1h_input_tokens": hour},
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.completion,
        })
    }

    fn message(&self, content: Vec<Value>, reason: Value, sequence: Value, usage: Value) -> Value {
        json!({
            "id": format!("msg_{}", self.id), "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": reason, "stop_sequence": sequence, "usage": usage,
        })
    }

    /// A content block: empty at its start, or with its whole text.
    fn block(&self, index: usize, item: &Item, whole: bool) -> Value {
        let text = if whole { item.text.as_str() } else { "" };
        match &item.kind {
            ItemKind::Text => json!({"type": "text", "text": text}),
            // Signatures cannot be verified here, so none is issued.
            ItemKind::Reasoning => json!({"type": "thinking", "thinking": text, "signature": ""}),
            ItemKind::Call(name) => {
                let input = serde_json::from_str(text).ok().filter(Value::is_object);
                let input = input.unwrap_or_else(|| json!({}));
                json!({"type": "tool_use", "id": format!("toolu_{}_{index}", self.id), "name": name, "input": input})
            }
        }
    }
}

/// Writes the SSE events of a message.
struct Events {
    head: Head,
    prompt: u64,
    /// Whether `message_start` is written.
    is_open: bool,
    items: Items,
    ended: Option<AnswerOutcome>,
}

impl Events {
    /// Writes `message_start`, once: on admission, when it is known what the cache holds.
    fn start(&mut self, out: &mut String, cached: u32) {
        if std::mem::replace(&mut self.is_open, true) {
            return;
        }
        let usage =
            self.head.tokens(&Usage { prompt: self.prompt, cached: cached.into(), ..Usage::default() });
        let message = self.head.message(Vec::new(), Value::Null, Value::Null, usage);
        sse::typed(out, &json!({"type": "message_start", "message": message}));
    }

    fn item(&self, out: &mut String, index: usize, event: &ItemEvent) {
        let Some(item) = self.items.all().get(index) else { return };
        let value = match event {
            ItemEvent::Begin => {
                let block = self.head.block(index, item, false);
                json!({"type": "content_block_start", "index": index, "content_block": block})
            }
            ItemEvent::More(text) => {
                let delta = match item.kind {
                    ItemKind::Text => json!({"type": "text_delta", "text": text}),
                    ItemKind::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
                    ItemKind::Call(_) => json!({"type": "input_json_delta", "partial_json": text}),
                };
                json!({"type": "content_block_delta", "index": index, "delta": delta})
            }
            ItemEvent::End => json!({"type": "content_block_stop", "index": index}),
        };
        sse::typed(out, &value);
    }
}

impl EventWriter for Events {
    fn open(&mut self, _: &mut String) {}

    fn admitted(&mut self, out: &mut String, cached: u32) {
        self.start(out, cached);
    }

    fn increment(&mut self, out: &mut String, _: usize, increment: AnswerIncrement) {
        self.start(out, 0);
        for delta in increment.deltas {
            for (index, event) in self.items.push(delta) {
                self.item(out, index, &event);
            }
        }
        self.ended = increment.ended;
    }

    fn ping(&mut self, out: &mut String) {
        sse::typed(out, &json!({"type": "ping"}));
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        sse::typed(out, &error.to_anthropic());
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        if let Some((index, event)) = self.items.finish() {
            self.item(out, index, &event);
        }
        let (reason, sequence) = stop(self.ended.as_ref());
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        sse::typed(out, &json!({"type": "message_delta", "delta": delta, "usage": self.head.tokens(usage)}));
        sse::typed(out, &json!({"type": "message_stop"}));
    }
}

pub(crate) async fn anthropic_messages(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, MESSAGES).await?;
    let message = app.run_work(body.cost(), move |app| Messages::begin(app, key, &body.reader())).await?;
    if message.stream {
        Ok(event_stream(message.events()))
    } else {
        Ok(message.whole(&app).await?.into_response())
    }
}

pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, COUNT_TOKENS).await?;
    Ok(Json(app.run_work(body.cost(), move |app| count(app, &body.reader())).await?))
}

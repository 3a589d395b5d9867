//! OpenAI `/v1/chat/completions`: builds the request, and writes the response as one object or as
//! SSE chunks.

mod calls;

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::progress::PromptProgress;
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::sse::{self, ChunkTemplate, event_stream};
use crate::http::answers::submit_chat::submit_recorded;
use crate::http::answers::usage::Usage;
use crate::http::api::chat::calls::{CallWriter, DeltaWriter};
use crate::http::app::{App, FINGERPRINT, unix_seconds};
use crate::http::body::read_body;
use crate::request::chat::{ChatRequest, StreamOptions};
use crate::request::fields::CHAT;
use crate::request::reader::Reader;
use crate::session::recorder::TurnRecorder;
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::Stream;
use kvasir_chat::Delta;
use kvasir_chat::{Content, Message, Role};
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::sync::Arc;

/// A chat completion that has been submitted to the engine.
pub(crate) struct Chat {
    head: Value,
    reply: Reply,
    calls: CallWriter,
    /// Text in front of the answer: the last message, with `echo`.
    echo: String,
    timings: bool,
    pub(crate) stream: Option<StreamOptions>,
}

impl Chat {
    /// Validates and submits the request.
    pub(crate) fn begin(app: &Arc<App>, key: u64, body: &Reader) -> Result<Self, ApiError> {
        let facts = &app.model.facts;
        let id = app.new_id();
        let prefix = format!("call_{id}");
        let in_session = app.begin_chat_turn(key, body)?;
        let (request, recorder) = match in_session {
            None => (ChatRequest::read(body, &facts.sampling, facts.vocab)?, None),
            Some((fields, earlier, turn)) => {
                let body = body.derived(&fields);
                let request = ChatRequest::read_after(earlier, &body, &facts.sampling, facts.vocab)?;
                let messages = fields.get("messages").and_then(Value::as_array).cloned().unwrap_or_default();
                (request, Some(TurnRecorder::of_messages(turn, messages, format!("{prefix}_0"))))
            }
        };
        let reply = submit_recorded(app, key, &request, "messages", recorder)?;
        Ok(Self {
            head: json!({"id": format!("chatcmpl-{id}"), "created": unix_seconds(), "model": app.model.name, "system_fingerprint": FINGERPRINT}),
            reply,
            calls: CallWriter::new(prefix, &request.tools),
            echo: echoed(&request),
            timings: request.timings,
            stream: request.stream,
        })
    }

    /// The non-streaming response.
    pub(crate) async fn whole(self, app: &Arc<App>) -> Result<JsonAnswer, ApiError> {
        let whole = |_| Whole { content: self.echo.clone(), ..Whole::default() };
        let mut choices: Vec<_> = (0..self.reply.len()).map(whole).collect();
        let (prompt_ids, verbose) = (self.reply.prompt_ids(0), self.reply.verbose());
        let (mut prompt_logprobs, mut timings) = (None, None);
        let take = |index: usize, mut increment: AnswerIncrement| {
            prompt_logprobs = prompt_logprobs.take().or(increment.prompt.take().map(|prompt| prompt.by_id));
            timings = increment.ended.as_ref().map(AnswerOutcome::timings).or(timings.take());
            choices[index].take(increment);
        };
        let (usage, memory) = self.reply.whole(take).await?;
        let (calls, mut object) = (self.calls, self.head);
        object["object"] = "chat.completion".into();
        object["choices"] =
            choices.into_iter().enumerate().map(|(index, choice)| choice.into_json(index, &calls)).collect();
        object["usage"] = usage.to_json();
        if let Some(timings) = timings.filter(|_| self.timings) {
            object["timings"] = timings;
        }
        object["prompt_logprobs"] = prompt_logprobs.unwrap_or_default();
        if let Some(prompt) = prompt_ids {
            object["prompt_token_ids"] = prompt.into();
        }
        if let Some(verbose) = verbose {
            object["__verbose"] = verbose;
        }
        JsonAnswer::collected(app, memory, object).await
    }

    /// The response as server-sent events. Chunks of `n` choices are interleaved, each with its
    /// index.
    pub(crate) fn events(mut self, options: StreamOptions) -> impl Stream<Item = String> + Send {
        self.head["object"] = "chat.completion.chunk".into();
        let mut template = ChunkTemplate::new(&self.head, options, self.reply.prompt_tokens());
        template.timings = self.timings;
        let mut first = template.clone();
        let (ids, verbose) = (self.reply.prompt_ids(0), self.reply.verbose());
        if ids.is_some() || verbose.is_some() {
            ids.into_iter().for_each(|ids| self.head["prompt_token_ids"] = ids.into());
            verbose.into_iter().for_each(|verbose| self.head["__verbose"] = verbose);
            first = ChunkTemplate::new(&self.head, options, self.reply.prompt_tokens());
        }
        let answers = (0..self.reply.len()).map(DeltaWriter::new).collect();
        self.reply.events(Chunks { template, first, answers, calls: self.calls, echo: self.echo })
    }
}

/// The text that `echo` repeats: the last message, if it is the assistant's.
fn echoed(request: &ChatRequest) -> String {
    match request.messages.last() {
        Some(Message { role: Role::Assistant, content: Content::Text(text), .. }) if request.echo => {
            text.clone()
        }
        _ => String::new(),
    }
}

/// Writes `chat.completion.chunk` events.
struct Chunks {
    template: ChunkTemplate,
    /// Template of each choice's first chunk, which has the prompt and its ids if they are requested.
    first: ChunkTemplate,
    /// Delta writers, one per choice.
    answers: Vec<DeltaWriter>,
    calls: CallWriter,
    echo: String,
}

impl EventWriter for Chunks {
    fn open(&mut self, out: &mut String) {
        let mut part = json!({"role": "assistant", "content": self.echo}).to_string();
        part.insert_str(0, "\"delta\":");
        for index in 0..self.answers.len() {
            self.first.chunk(out, index, &part, None, None);
        }
    }

    fn prompt_progress(&mut self, out: &mut String, index: usize, progress: PromptProgress) {
        let part = r#""delta":{"role":"assistant","content":null}"#;
        self.template.progress_chunk(out, index, part, progress);
    }

    fn increment(&mut self, out: &mut String, index: usize, increment: AnswerIncrement) {
        self.template.set_usage(increment.tokens);
        let logprobs = (!increment.logprobs.is_empty()).then(|| json!({"content": increment.logprobs}));
        let (mut logprobs, mut ids) = (logprobs.as_ref(), sse::ids_part(&increment.ids));
        let writer = &mut self.answers[index];
        let mut parts: Vec<String> = Vec::new();
        for delta in increment.deltas {
            parts.extend(writer.write(&self.calls, delta));
        }
        if increment.ended.is_some() {
            parts.extend(writer.finish());
        } else if parts.is_empty() && (logprobs.is_some() || !ids.is_empty()) {
            parts.push("\"delta\":{}".into());
        }
        for part in parts {
            let part = part + &std::mem::take(&mut ids);
            self.template.chunk(out, index, &part, logprobs.take(), None);
        }
        if let Some(ended) = increment.ended {
            let part = format!("\"delta\":{{}}{ids}");
            self.template.last_chunk(out, index, &part, logprobs.take(), &ended);
        }
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        out.push_str(&sse::error(error));
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        self.template.close(out, usage);
    }
}

/// Accumulates one choice of a non-streaming response.
#[derive(Default)]
struct Whole {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    logprobs: Vec<Value>,
    ids: Vec<Token>,
    reason: &'static str,
}

impl Whole {
    fn take(&mut self, increment: AnswerIncrement) {
        if let Some(ended) = increment.ended {
            self.reason = ended.reason;
        }
        self.logprobs.extend(increment.logprobs);
        self.ids.extend(increment.ids);
        for delta in increment.deltas {
            match delta {
                Delta::Content(text) => self.content += &text,
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::CallBegin { name, .. } => self.calls.push((name, String::new())),
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        *arguments += &text;
                    }
                }
            }
        }
    }

    fn into_json(self, index: usize, calls: &CallWriter) -> Value {
        let content =
            if self.content.is_empty() && !self.calls.is_empty() { Value::Null } else { self.content.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            let call =
                |(i, (name, arguments)): (usize, (String, String))| calls.whole(index, i, &name, &arguments);
            message["tool_calls"] = self.calls.into_iter().enumerate().map(call).collect();
        }
        let logprobs = if self.logprobs.is_empty() { Value::Null } else { json!({"content": self.logprobs}) };
        let mut choice =
            json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.reason});
        if !self.ids.is_empty() {
            choice["token_ids"] = self.ids.into();
        }
        choice
    }
}

pub(crate) async fn chat_completions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, CHAT).await?;
    let chat = app.run_work(body.cost(), move |app| Chat::begin(app, key, &body.reader())).await?;
    match chat.stream {
        Some(options) => Ok(event_stream(chat.events(options))),
        None => Ok(chat.whole(&app).await?.into_response()),
    }
}

/// `POST /v1/chat/completions/input_tokens`: the length of the rendered conversation.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, CHAT).await?;
    let count = app.run_work(body.cost(), move |app| {
        let facts = &app.model.facts;
        let request = ChatRequest::read(&body.reader(), &facts.sampling, facts.vocab)?;
        app.model_names().check(request.model.as_deref())?;
        Ok(app.model.chat_prompt(&request)?.len())
    });
    let count = count.await?;
    Ok(Json(json!({"object": "chat.completion.input_tokens", "input_tokens": count})))
}

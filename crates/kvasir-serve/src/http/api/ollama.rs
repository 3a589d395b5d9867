//! Ollama's API: chat and completion as newline-delimited JSON (NDJSON), embeddings, and the model's
//! description.
//!
//! Requests are translated to OpenAI's form (`request/ollama.rs`) and run like those. One model is
//! served and always loaded, so pulling, creating and deleting are not offered.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::submit_chat::submit_chat;
use crate::http::answers::usage::Usage;
use crate::http::api::completions::Completion;
use crate::http::api::embeddings::{Embedded, Vector, embed_all};
use crate::http::app::App;
use crate::http::body::{ContentTypes, read_body_as};
use crate::request::body;
use crate::request::chat::ChatRequest;
use crate::request::completions::CompletionRequest;
use crate::request::embeddings::{EmbeddingsRequest, Encoding};
use crate::request::fields::{OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE, OLLAMA_SHOW};
use crate::request::ollama::{NUM_PREDICT, OllamaEmbedding, OllamaRequest, OllamaTask};
use crate::request::reader::Reader;
use crate::request::sampling::SamplingFields;
use crate::timestamp::rfc3339;
use axum::{
    Json,
    body::Body,
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use kvasir_chat::Delta;
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// `POST /api/chat`.
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body_as(ContentTypes::Any, &app, request, OLLAMA_CHAT).await?;
    generate_answer(&app, key, body, Form::Chat, OllamaRequest::chat).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body_as(ContentTypes::Any, &app, request, OLLAMA_GENERATE).await?;
    generate_answer(&app, key, body, Form::Generate, OllamaRequest::generate).await
}

/// Parses a body by `read`, submits the request, and answers it.
async fn generate_answer(
    app: &Arc<App>,
    key: u64,
    body: body::Body,
    form: Form,
    read: fn(&Reader) -> Result<OllamaRequest, ApiError>,
) -> Result<Response, ApiError> {
    let submitted = app.run_work(body.cost(), move |app| {
        let request = read(&body.reader())?;
        let reply = submit(app, key, &body.reader(), &request)?;
        Ok((request, reply))
    });
    let (request, reply) = submitted.await?;
    answer(app, form, request, reply).await
}

/// `POST /api/embed`.
pub(crate) async fn embed(State(app): State<Arc<App>>, request: Request) -> Result<JsonAnswer, ApiError> {
    let began = Instant::now();
    let (key, body) = read_body_as(ContentTypes::Any, &app, request, OLLAMA_EMBED).await?;
    let request = OllamaEmbedding::embed(&body.reader())?;
    let Embedded { vectors, tokens, memory } = embedded(&app, key, &body, &request).await?;
    #[derive(Serialize)]
    struct Answer {
        model: String,
        embeddings: Vec<Vector>,
        total_duration: u64,
        load_duration: u64,
        prompt_eval_count: u64,
    }
    let answer = Answer {
        model: app.model.name.clone(),
        embeddings: vectors.into_iter().map(|vector| Vector { vector, encoding: Encoding::Float }).collect(),
        total_duration: nanos(began.elapsed()),
        load_duration: 0,
        prompt_eval_count: tokens,
    };
    JsonAnswer::collected(&app, memory, answer).await
}

/// `POST /api/embeddings`.
pub(crate) async fn embeddings(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body_as(ContentTypes::Any, &app, request, OLLAMA_EMBEDDINGS).await?;
    let request = OllamaEmbedding::embeddings(&body.reader())?;
    let embedded = embedded(&app, key, &body, &request).await;
    let mut vectors = embedded.map_err(|error| error.renamed("input", "prompt"))?.vectors;
    Ok(Json(json!({"embedding": vectors.pop().unwrap_or_default()})))
}

/// The vectors of all inputs; none for a request that only loads the model.
async fn embedded(
    app: &Arc<App>,
    key: u64,
    body: &body::Body,
    request: &OllamaEmbedding,
) -> Result<Embedded, ApiError> {
    check_model(app, request.model.as_deref())?;
    let Some(fields) = &request.fields else { return Ok(Embedded::default()) };
    let requested = EmbeddingsRequest::read(&body.reader().derived(fields), app.model.facts.vocab)?;
    embed_all(app, key, body.cost(), requested).await
}

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`: the names of the served model.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": app.model_names().listed().map(|name| entry(&app, name)).collect::<Vec<_>>()}))
}

/// `GET /api/ps`: the loaded models, which are all.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let running = |name| {
        let mut entry = entry(&app, name);
        entry["expires_at"] = "9999-12-31T23:59:59Z".into();
        entry["size_vram"] = 0.into();
        entry["context_length"] = app.model.facts.max_len.into();
        entry
    };
    Json(json!({"models": app.model_names().listed().map(running).collect::<Vec<_>>()}))
}

/// `POST /api/show`.
pub(crate) async fn show(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body_as(ContentTypes::Any, &app, request, OLLAMA_SHOW).await?;
    let body = body.reader();
    body.classify(OLLAMA_SHOW)?;
    let name = body.text("model")?.or(body.text("name")?).ok_or_else(|| body.error("model", "is missing"))?;
    check_model(&app, Some(name))?;
    let (facts, model) = (&app.model.facts, &app.model);
    let family = &facts.card.family;
    let mut capabilities = vec!["completion"];
    if model.chat.has_template() {
        capabilities.push("tools");
    }
    if model.chat.reasoning_dialect().is_some() {
        capabilities.push("thinking");
    }
    let template = model.chat.template_source();
    Ok(Json(json!({
        "modelfile": format!("FROM {}\n", model.name),
        "parameters": "",
        "template": template.unwrap_or_default(),
        "details": details(&app),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": facts.card.parameters,
            format!("{family}.context_length"): facts.max_len,
            format!("{family}.embedding_length"): facts.hidden,
            format!("{family}.vocab_size"): facts.vocab,
        },
        "capabilities": capabilities,
        "modified_at": rfc3339(modified(&app)),
    })))
}

fn entry(app: &App, name: &str) -> Value {
    let card = &app.model.facts.card;
    json!({
        "name": name, "model": name, "modified_at": rfc3339(modified(app)), "size": card.bytes,
        "digest": digest(app), "details": details(app),
    })
}

/// When the model's file was written; for a model without one, when the server started, as in
/// `/v1/models`.
fn modified(app: &App) -> SystemTime {
    match app.model.facts.card.modified {
        UNIX_EPOCH => UNIX_EPOCH + Duration::from_secs(app.since),
        modified => modified,
    }
}

/// 64 hexadecimal digits that identify the model: a hash of its name, size and time. Hashing the file
/// would take long.
fn digest(app: &App) -> String {
    let (model, card) = (&app.model, &app.model.facts.card);
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let part = |i: u8| hasher.hash_one((i, &model.name, card.bytes, card.parameters, card.modified));
    (0..4).map(|i| format!("{:016x}", part(i))).collect()
}

fn details(app: &App) -> Value {
    let card = &app.model.facts.card;
    json!({
        "parent_model": "", "format": card.format, "family": card.family, "families": [card.family],
        "parameter_size": card.parameter_size(), "quantization_level": card.quantization,
    })
}

/// Refuses unknown model names with the message that Ollama's clients match on.
fn check_model(app: &App, name: Option<&str>) -> Result<(), ApiError> {
    match name {
        Some(name) if !app.model_names().accepts(name) => {
            Err(ApiError::not_found("model", format!("model '{name}' not found")))
        }
        _ => Ok(()),
    }
}

/// Submits the translated request. Returns `None` for requests that only load or unload the model.
fn submit(
    app: &Arc<App>,
    key: u64,
    body: &Reader,
    request: &OllamaRequest,
) -> Result<Option<Reply>, ApiError> {
    check_model(app, request.model.as_deref())?;
    if request.thinks && app.model.chat.reasoning_dialect().is_none() {
        let name = request.model.as_deref().unwrap_or(&app.model.name);
        return Err(ApiError::param("think", format!("\"{name}\" does not support thinking")));
    }
    let facts = &app.model.facts;
    let context_shift = request.context_shift(body, facts.context_shift);
    let set_ollama_fields = |sampling: &mut SamplingFields| {
        sampling.length.field = NUM_PREDICT;
        sampling.context_shift = context_shift;
    };
    let reply = match &request.task {
        OllamaTask::Load | OllamaTask::Unload => return Ok(None),
        OllamaTask::Chat(fields) => ChatRequest::read(&body.derived(fields), &facts.sampling, facts.vocab)
            .and_then(|mut request| {
                set_ollama_fields(&mut request.sampling);
                submit_chat(app, key, &request, "messages")
            }),
        OllamaTask::Completion(fields) => {
            let body = body.derived(fields);
            CompletionRequest::read_unlimited(&body, &facts.sampling, facts.vocab)
                .and_then(|mut request| {
                    set_ollama_fields(&mut request.sampling);
                    Completion::submit(app, key, &body, request)
                })
                .map(Completion::into_reply)
        }
    };
    reply.map(Some).map_err(|error| request.client_error(error))
}

/// Response schema of a line: which fields hold the text.
#[derive(Clone, Copy)]
enum Form {
    /// `message`, with content, thinking and tool calls.
    Chat,
    /// `response` and `thinking`.
    Generate,
}

async fn answer(
    app: &Arc<App>,
    form: Form,
    request: OllamaRequest,
    reply: Option<Reply>,
) -> Result<Response, ApiError> {
    let model = request.model.unwrap_or_else(|| app.model.name.clone());
    let mut lines = Lines::new(form, model, &app.new_id());
    let Some(reply) = reply else {
        let mut line = lines.line(Piece::default(), true);
        line["done_reason"] = if request.task == OllamaTask::Unload { "unload" } else { "load" }.into();
        return Ok(Json(line).into_response());
    };
    if request.stream {
        let body = Body::from_stream(reply.events(lines).map(Ok::<_, Infallible>));
        return Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response());
    }
    let (mut whole, mut outcome) = (Piece::default(), None);
    let collected = reply.whole(|_, increment| {
        for piece in lines.pieces(increment.deltas, increment.ended.is_some()) {
            whole.append(piece);
        }
        whole.logprobs.extend(increment.logprobs);
        outcome = increment.ended;
    });
    let (_, memory) = collected.await?;
    let mut line = lines.line(whole, true);
    if let Some(outcome) = outcome {
        lines.put_outcome(&mut line, &outcome);
    }
    Ok(JsonAnswer::collected(app, memory, line).await?.into_response())
}

/// A part of an answer.
#[derive(Default)]
struct Piece {
    content: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Piece {
    fn append(&mut self, other: Self) {
        self.content += &other.content;
        self.thinking += &other.thinking;
        self.calls.extend(other.calls);
    }
}

/// Writes an answer as JSON lines. A tool call is written when it is complete: its arguments are an
/// object.
struct Lines {
    form: Form,
    model: String,
    began: Instant,
    /// Prefix of the ids of tool calls.
    ids: String,
    /// Number of tool calls written.
    calls: usize,
    /// Name and arguments of the open tool call.
    call: Option<(String, String)>,
}

impl Lines {
    /// A writer of the answer `id`, which begins now.
    fn new(form: Form, model: String, id: &str) -> Self {
        Self { form, model, began: Instant::now(), ids: format!("call_{id}"), calls: 0, call: None }
    }

    fn line(&self, piece: Piece, done: bool) -> Value {
        let mut line = json!({"model": self.model, "created_at": rfc3339(SystemTime::now())});
        match self.form {
            Form::Chat => {
                line["message"] = json!({"role": "assistant", "content": piece.content});
                if !piece.thinking.is_empty() {
                    line["message"]["thinking"] = piece.thinking.into();
                }
                if !piece.calls.is_empty() {
                    line["message"]["tool_calls"] = piece.calls.into();
                }
            }
            Form::Generate => {
                line["response"] = piece.content.into();
                if !piece.thinking.is_empty() {
                    line["thinking"] = piece.thinking.into();
                }
            }
        }
        if !piece.logprobs.is_empty() {
            line["logprobs"] = piece.logprobs.into();
        }
        line["done"] = done.into();
        line
    }

    /// Splits deltas into pieces; `ended` completes an open tool call.
    fn pieces(&mut self, deltas: Vec<Delta>, ended: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for delta in deltas {
            match delta {
                Delta::Content(content) => pieces.push(Piece { content, ..Piece::default() }),
                Delta::Reasoning(thinking) => pieces.push(Piece { thinking, ..Piece::default() }),
                Delta::CallBegin { name, .. } => {
                    pieces.extend(self.take_call());
                    self.call = Some((name, String::new()));
                }
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        if ended {
            pieces.extend(self.take_call());
        }
        pieces
    }

    /// Closes the open tool call. A call whose arguments are no object is dropped: the answer was cut
    /// short, or an unconstrained model wrote something else.
    fn take_call(&mut self) -> Option<Piece> {
        let (name, arguments) = self.call.take()?;
        let arguments = serde_json::from_str(&arguments).ok().filter(Value::is_object)?;
        let index = self.calls;
        self.calls += 1;
        let function = json!({"index": index, "name": name, "arguments": arguments});
        let call = json!({"id": format!("{}_{index}", self.ids), "function": function});
        Some(Piece { calls: vec![call], ..Piece::default() })
    }

    fn put_outcome(&self, line: &mut Value, outcome: &AnswerOutcome) {
        // Ollama has no reason of its own for tool calls.
        line["done_reason"] = if outcome.reason == "length" { "length" } else { "stop" }.into();
        let total = self.began.elapsed();
        // A single token has no time between tokens. Clients divide by this duration.
        let eval = match outcome.decode_time {
            Duration::ZERO => total.saturating_sub(outcome.ttft).max(Duration::from_nanos(1)),
            time => time,
        };
        line["total_duration"] = nanos(total).into();
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = outcome.prompt.into();
        line["prompt_eval_duration"] = nanos(outcome.ttft).into();
        line["eval_count"] = outcome.tokens.into();
        line["eval_duration"] = nanos(eval).into();
    }
}

impl EventWriter for Lines {
    fn open(&mut self, _: &mut String) {}

    fn increment(&mut self, out: &mut String, _: usize, increment: AnswerIncrement) {
        let mut logprobs = increment.logprobs;
        for mut piece in self.pieces(increment.deltas, increment.ended.is_some()) {
            piece.logprobs = std::mem::take(&mut logprobs);
            push(out, &self.line(piece, false));
        }
        if let Some(outcome) = increment.ended {
            let mut line = self.line(Piece { logprobs, ..Piece::default() }, true);
            self.put_outcome(&mut line, &outcome);
            push(out, &line);
        }
    }

    // The format has no keep-alive.
    fn ping(&mut self, _: &mut String) {}

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        push(out, &error.to_ollama());
    }

    fn close(&mut self, _: &mut String, _: &Usage) {}
}

fn push(out: &mut String, line: &Value) {
    out.push_str(&line.to_string());
    out.push('\n');
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(index: usize) -> Delta {
        Delta::CallBegin { index, name: "f".into() }
    }

    fn arguments(index: usize, text: &str) -> Delta {
        Delta::CallArguments { index, text: text.into() }
    }

    #[test]
    fn calls_have_ids_and_incomplete_ones_are_dropped() {
        let mut lines = Lines::new(Form::Chat, "tiny".into(), "7");
        let deltas = vec![
            begin(0),
            arguments(0, r#"{"a":"#),
            arguments(0, "1}"),
            begin(1),
            arguments(1, r#"{"a": "x"#),
        ];
        let calls = |pieces: Vec<Piece>| pieces.into_iter().flat_map(|piece| piece.calls).collect::<Vec<_>>();
        let function = json!({"index": 0, "name": "f", "arguments": {"a": 1}});
        assert_eq!(calls(lines.pieces(deltas, true)), [json!({"id": "call_7_0", "function": function})]);
        // Text instead of an object, and no arguments at all.
        let deltas = vec![begin(0), arguments(0, "[1]"), begin(1), begin(2), arguments(2, "{}")];
        let last = calls(lines.pieces(deltas, true));
        assert_eq!((last.len(), &last[0]["function"]["index"]), (1, &json!(1)));
    }
}

//! Ollama's API: chat and completion as newline-delimited JSON (NDJSON), embeddings, and models.
//!
//! Requests are translated to OpenAI's form (`request/ollama.rs`) and run like those. `lines`
//! writes their answers, `models` describes the served model, `manage` handles requests to change
//! the models, and `pull` reports the progress of a fetch.

mod lines;
pub(crate) mod manage;
pub(crate) mod models;
mod pull;

use crate::error::ApiError;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::reply::Reply;
use crate::http::answers::sse::streaming_body;
use crate::http::answers::submit_chat::submit_chat;
use crate::http::api::completions::Completion;
use crate::http::api::embeddings::{Embedded, Vector, embed_all};
use crate::http::api::ollama::lines::{Form, Lines, Piece, nanos};
use crate::http::api::ollama::models::check_model;
use crate::http::app::App;
use crate::http::body::{ContentTypes, read_body_as};
use crate::request::body;
use crate::request::chat::ChatRequest;
use crate::request::completions::CompletionRequest;
use crate::request::embeddings::{EmbeddingsRequest, Encoding};
use crate::request::fields::{OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE};
use crate::request::ollama::{NUM_PREDICT, OllamaEmbedding, OllamaRequest, OllamaTask};
use crate::request::reader::Reader;
use crate::request::sampling::SamplingFields;
use axum::{
    Json,
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Value, json};
use std::{sync::Arc, time::Instant};

/// Content type of newline-delimited JSON.
const NDJSON: &str = "application/x-ndjson";

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
    if let Some(unread) = &request.unread_media {
        return Err(unread.refusal(&app.model.name));
    }
    let facts = &app.model.facts;
    let context_shift = request.context_shift(body, facts.context_shift);
    if let Some(id) = request.context.iter().flatten().find(|id| **id >= facts.vocab) {
        let why = format!("`context` must hold token ids below {}, not {id}", facts.vocab);
        return Err(ApiError::param("context", why));
    }
    let set_ollama_fields = |sampling: &mut SamplingFields| {
        sampling.length.field = NUM_PREDICT;
        sampling.context_shift = context_shift;
    };
    let reply = match &request.task {
        OllamaTask::Load | OllamaTask::Unload => return Ok(None),
        OllamaTask::Chat(fields) => ChatRequest::read(&body.derived(fields), &facts.sampling, facts.vocab)
            .and_then(|mut chat| {
                set_ollama_fields(&mut chat.sampling);
                if let Some(context) = &request.context {
                    chat.sampling.output.token_ids = true;
                    chat.earlier.clone_from(context);
                }
                submit_chat(app, key, &chat, "messages")
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
    if request.context.is_some() {
        lines = lines.with_context(reply.prompt_ids(0).unwrap_or_default());
    }
    if request.stream {
        let body = streaming_body(reply.events(lines));
        return Ok(([(header::CONTENT_TYPE, NDJSON)], body).into_response());
    }
    let (mut whole, mut outcome) = (Piece::default(), None);
    let collected = reply.whole(|_, mut increment| {
        for piece in lines.take(&mut increment) {
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

//! `/health` (`/ready`), `/version`, `/metrics` and `/v1/models`: state and description of the server.

use crate::error::ApiError;
use crate::http::access::api_keys::SeesAll;
use crate::http::app::App;
use crate::http::error_response::ANTHROPIC_VERSION;
use crate::metrics::page::ServerStatus;
use crate::metrics::{Names, process};
use crate::timestamp::rfc3339;
use axum::{
    Extension, Json,
    extract::{Path, State},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use kvasir_engine::Replicas;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Readiness probe: the engine's thread runs, and completes steps while answers are pending. The
/// status is `degraded` if a replica or a tokenizer process is not ready.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    match app.host.why_not_ready() {
        None if app.host.is_degraded() || app.model.has_unready_tokenizer() => {
            Ok(Json(json!({"status": "degraded"})))
        }
        None => Ok(Json(json!({"status": "ok"}))),
        Some(why) => Err(ApiError::unavailable(why)),
    }
}

/// `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Prometheus metrics.
pub(crate) async fn metrics(
    State(app): State<Arc<App>>,
    Extension(SeesAll(sees_all)): Extension<SeesAll>,
) -> Response {
    let replicas = app.host.replicas().map(Replicas::status).unwrap_or_default();
    let tokenizers = app.model.tokenizer_status().unwrap_or_default();
    let reports = app.host.reports();
    let status = ServerStatus {
        replicas: &replicas,
        tokenizers: &tokenizers,
        dropped_reports: reports.dropped(),
        lost_log_lines: reports.lost_lines(),
        sees_all,
    };
    let mut text = app.host.metrics().page(app.names, &app.model.name, app.host.open(), status);
    process::append(&mut text);
    let mut response =
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response();
    if app.names == Names::LlamaCpp {
        response.headers_mut().insert("process-start-time-unix", app.since.into());
    }
    response
}

fn model_object(app: &App, name: &str) -> Value {
    let facts = &app.model.facts;
    json!({
        "id": name, "object": "model", "created": app.since, "owned_by": "kvasir",
        "max_model_len": facts.max_len, "vocab_size": facts.vocab, "root": app.model.name, "parent": null,
        "permission": [], "meta": meta(app),
    })
}

/// What the model is: llama.cpp's keys, and further ones that the web page shows.
fn meta(app: &App) -> Value {
    let (facts, model) = (&app.model.facts, &app.model);
    let card = &facts.card;
    json!({
        "n_params": card.parameters, "size": card.bytes, "n_vocab": facts.vocab, "n_embd": facts.hidden,
        "architecture": card.family, "format": card.format,
        "quantization": card.quantization, "chat_template": model.chat.has_template(),
        "tools": model.chat.has_template() && !model.chat.needs_tool_prompt(), "reasoning": model.chat.reasoning_dialect().is_some(),
    })
}

/// The model in Anthropic's shape.
fn anthropic_model(app: &App, name: &str) -> Value {
    let created = SystemTime::UNIX_EPOCH + Duration::from_secs(app.since);
    json!({"type": "model", "id": name, "display_name": name, "created_at": rfc3339(created)})
}

/// `GET /v1/models`, in Anthropic's shape for its clients.
pub(crate) async fn models(State(app): State<Arc<App>>, headers: HeaderMap) -> Json<Value> {
    if headers.contains_key(ANTHROPIC_VERSION) {
        let data: Vec<Value> = app.model_names().listed().map(|name| anthropic_model(&app, name)).collect();
        let id = |model: Option<&Value>| model.map(|model| model["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        return Json(json!({"data": data, "has_more": false, "first_id": first, "last_id": last}));
    }
    let data: Vec<Value> = app.model_names().listed().map(|name| model_object(&app, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

pub(crate) async fn model(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.model_names().check(Some(&id))?;
    let write = if headers.contains_key(ANTHROPIC_VERSION) { anthropic_model } else { model_object };
    Ok(Json(write(&app, &id)))
}

//! Ollama's descriptions of the served model and the server: `/api/tags`, `/api/ps`, `/api/show`
//! and `/api/version`.

use crate::error::ApiError;
use crate::http::app::App;
use crate::http::body::{ContentTypes, read_body_as};
use crate::request::fields::OLLAMA_SHOW;
use crate::request::ollama::models::named_model;
use crate::timestamp::rfc3339;
use axum::{
    Json,
    extract::{Request, State},
};
use serde_json::{Value, json};
use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Ollama version whose API is implemented. Clients refuse a server older than they require.
const OLLAMA_VERSION: &str = "0.13.0";

/// `GET /api/version`: Ollama's version, which clients compare, and this server's.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": OLLAMA_VERSION, "kvasir": env!("CARGO_PKG_VERSION")}))
}

/// `GET /api/tags`: the names of the served model.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({"models": app.model_names().listed().map(|name| entry(&app, name)).collect::<Vec<_>>()}))
}

/// `GET /api/ps`: the served model, which is always loaded.
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
    check_model(&app, Some(named_model(&body)?))?;
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

/// Refuses unknown model names.
pub(super) fn check_model(app: &App, name: Option<&str>) -> Result<(), ApiError> {
    match name {
        Some(name) if !app.model_names().accepts(name) => {
            // Ollama's clients match on these first words.
            let own = &app.model.name;
            let why = format!(
                "model '{name}' not found: this server serves `{own}`, and --model-name gives it more names"
            );
            Err(ApiError::not_found("model", why))
        }
        _ => Ok(()),
    }
}

//! `/health` (`/ready`), `/version`, `/metrics` and `/v1/models`: state and description of the server.

use crate::error::ApiError;
use crate::http::app::App;
use crate::metrics::process;
use axum::{
    Json,
    extract::{Path, State},
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Readiness probe: the engine's thread runs, and completes steps while answers are pending.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    match app.host.why_not_ready() {
        None => Ok(Json(json!({"status": "ok"}))),
        Some(why) => Err(ApiError::unavailable(why)),
    }
}

/// `GET /version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// Prometheus metrics.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut text = app.host.metrics().page(app.names, &app.model.name, app.host.open());
    process::append(&mut text);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn model_object(app: &App, name: &str) -> Value {
    let facts = &app.model.facts;
    json!({
        "id": name, "object": "model", "created": app.since, "owned_by": "kvasir",
        "max_model_len": facts.max_len, "vocab_size": facts.vocab, "root": app.model.name, "parent": null,
        "permission": [],
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> = app.model_names().map(|name| model_object(&app, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

pub(crate) async fn model(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(Some(&id))?;
    Ok(Json(model_object(&app, &id)))
}

//! `/v1/admin/tokenizers`: lists the tokenizer processes.

use crate::error::ApiError;
use crate::http::access::api_keys::SeesAll;
use crate::http::app::App;
use axum::{Extension, Json, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /v1/admin/tokenizers`: status of each tokenizer process.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(sees_all): Extension<SeesAll>,
) -> Result<Json<Value>, ApiError> {
    sees_all.check()?;
    let none = || ApiError::not_found("id", "the server has no tokenizer processes: it tokenizes in its own");
    let data = app.model.tokenizer_status().ok_or_else(none)?;
    Ok(Json(json!({"object": "list", "data": data})))
}

use super::{App, read_body};
use crate::{
    ApiError,
    request::{DETOKENIZE, Reader, TOKENIZE, classify},
};
use axum::{Json, extract::Request, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Most ids in one `/detokenize`.
const MAX_IDS: usize = 1 << 20;

/// `{"prompt": text, "add_special_tokens"?: bool}` → `{"tokens", "count", "max_model_len"}`.
pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(request).await?;
    classify(TOKENIZE, &body)?;
    let body = Reader::new(&body);
    app.known_model(body.text("model")?)?;
    let text = body.text("prompt")?.ok_or_else(|| body.error("prompt", "is missing"))?;
    let tokens = app.model.encode(text, body.flag("add_special_tokens", true)?)?;
    Ok(Json(json!({"count": tokens.len(), "max_model_len": app.model.facts.max_len, "tokens": tokens})))
}

/// `{"tokens": [id]}` → `{"prompt": text}`.
pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(request).await?;
    classify(DETOKENIZE, &body)?;
    let body = Reader::new(&body);
    app.known_model(body.text("model")?)?;
    let items = body.list("tokens", MAX_IDS)?.ok_or_else(|| body.error("tokens", "is missing"))?;
    let vocab = app.model.facts.vocab;
    let id = |item: &Value| item.as_u64().filter(|id| *id < u64::from(vocab)).map(|id| id as u32);
    let ids: Option<Vec<u32>> = items.iter().map(id).collect();
    let ids = ids.ok_or_else(|| body.error("tokens", format!("must hold token ids below {vocab}")))?;
    Ok(Json(json!({"prompt": app.model.decode(&ids)})))
}

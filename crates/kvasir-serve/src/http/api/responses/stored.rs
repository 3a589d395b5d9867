//! Stored responses: `GET` and `DELETE /v1/responses/ID`, cancellation, and pagination of their
//! input items.
//!
//! Responses of background mode are streamed from their event log, while they are generated and
//! later.

use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::sse::event_stream;
use crate::http::api::responses::background;
use crate::http::api::responses::items::{listed, page_of};
use crate::http::app::App;
use crate::http::query::Query;
use crate::work_pool::fair_queue::Cost;
use axum::{
    Extension, Json,
    extract::{Path, RawQuery, State},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /v1/responses/ID`.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref());
    query.only(&["include", "include_obfuscation", "stream", "starting_after"], app.rules.unknown_fields)?;
    query.ignore_values("include");
    query.ignore_values("include_obfuscation");
    let after = query.integer("starting_after", 0..=u32::MAX as usize)?;
    if query.flag("stream")? {
        let why = "only responses with `background` can be streamed again; read others without `stream`";
        let log = app.responses.log(&id, key)?.ok_or_else(|| ApiError::param("stream", why))?;
        return Ok(event_stream(background::follow(log, after.map_or(0, |last| last + 1))));
    }
    if after.is_some() {
        return Err(ApiError::param("starting_after", "`starting_after` needs `stream` to be true"));
    }
    let answer = app.run_work(Cost::Light, move |app| JsonAnswer::of(&app.responses.get(&id, key)?));
    Ok(answer.await?.into_response())
}

/// `POST /v1/responses/ID/cancel`: cancels a response of background mode.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<JsonAnswer, ApiError> {
    let answer = app.run_work(Cost::Light, move |app| {
        JsonAnswer::of(&app.responses.cancel(&id, key, background::canceled_event)?)
    });
    answer.await
}

/// `DELETE /v1/responses/ID`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.responses.remove(&id, key)?;
    Ok(Json(json!({"id": id, "object": "response", "deleted": true})))
}

/// `GET /v1/responses/ID/input_items`: a page of the items, the last one first by default.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<JsonAnswer, ApiError> {
    let items = move |app: &Arc<App>| {
        let items = app.responses.input(&id, key)?.into_iter().enumerate();
        Ok(items.map(|(i, item)| listed(item, || format!("item_{i}_{id}"))).collect())
    };
    page_of(&app, query.as_deref(), items).await
}

//! OpenAI `/v1/conversations`: stored lists of items, to which `/v1/responses` appends its turns.

use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::api::responses::items::{page_of, with_ids};
use crate::http::app::{App, unix_seconds};
use crate::http::body::read_body;
use crate::http::query::Query;
use crate::request::conversations::{ConversationRequest, read_items, read_update};
use crate::request::fields::{CONVERSATION, CONVERSATION_ITEMS, CONVERSATIONS};
use crate::session::conversations::{ConversationHead, no_item};
use crate::work_pool::fair_queue::Cost;
use axum::{
    Extension, Json,
    extract::{Path, RawQuery, Request, State},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn object(id: &str, head: &ConversationHead) -> Value {
    json!({"id": id, "object": "conversation", "created_at": head.created, "metadata": head.metadata})
}

/// `POST /v1/conversations`.
pub(crate) async fn create(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, CONVERSATIONS).await?;
    let created = app.run_work(body.cost(), move |app| {
        let ConversationRequest { metadata, items } = ConversationRequest::read(&body.reader())?;
        let id = format!("conv_{}", app.new_id());
        let head = ConversationHead { created: unix_seconds(), metadata };
        let answer = object(&id, &head);
        app.conversations.insert(key, id, head, with_ids(app, items))?;
        Ok(Json(answer))
    });
    created.await
}

/// `GET /v1/conversations/ID`.
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(object(&id, &app.conversations.head(&id, key)?)))
}

/// `POST /v1/conversations/ID`: replaces the metadata.
pub(crate) async fn update(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, CONVERSATION).await?;
    let metadata = read_update(&body.reader())?;
    Ok(Json(object(&id, &app.conversations.update(&id, key, metadata)?)))
}

/// `DELETE /v1/conversations/ID`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.conversations.remove(&id, key)?;
    Ok(Json(json!({"id": id, "object": "conversation.deleted", "deleted": true})))
}

/// `GET /v1/conversations/ID/items`: a page of the items, newest first by default.
pub(crate) async fn items(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<JsonAnswer, ApiError> {
    let items = move |app: &Arc<App>| Ok(app.conversations.items(&id, key)?.items().cloned().collect());
    page_of(&app, query.as_deref(), items).await
}

/// `POST /v1/conversations/ID/items`.
pub(crate) async fn add_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<JsonAnswer, ApiError> {
    let (key, body) = read_body(&app, request, CONVERSATION_ITEMS).await?;
    let added = app.run_work(body.cost(), move |app| {
        let items = with_ids(app, read_items(&body.reader())?);
        drop(body);
        app.conversations.append(&id, key, items.clone())?;
        let id = |item: Option<&Value>| item.map(|item| item["id"].clone());
        JsonAnswer::of(&json!({
            "object": "list", "first_id": id(items.first()), "last_id": id(items.last()),
            "has_more": false, "data": items,
        }))
    });
    added.await
}

/// `GET /v1/conversations/ID/items/ITEM`.
pub(crate) async fn item(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path((id, item)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<JsonAnswer, ApiError> {
    let query = Query::parse(query.as_deref());
    query.only(&["include"], app.rules.unknown_fields)?;
    query.ignore_values("include");
    let answer = app.run_work(Cost::Light, move |app| {
        let items = app.conversations.items(&id, key)?;
        let found = items.items().find(|found| found["id"] == item.as_str());
        JsonAnswer::of(found.ok_or_else(|| no_item(&item))?)
    });
    answer.await
}

/// `DELETE /v1/conversations/ID/items/ITEM`; returns the conversation.
pub(crate) async fn remove_item(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path((id, item)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let removed = app.run_work(Cost::Light, move |app| {
        let head = app.conversations.remove_item(&id, key, &item)?;
        Ok(Json(object(&id, &head)))
    });
    removed.await
}

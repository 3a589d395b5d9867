//! llama.cpp's slots: `GET /slots`, and `POST /slots/ID?action=erase`.
//!
//! Requests share one block pool. A slot of this API is a place for a concurrent request, and owns
//! no K/V: the prefix cache finds a prompt by its content, from any slot.

use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::app::App;
use crate::http::query::Query;
use axum::{
    Extension, Json,
    extract::{Path, RawQuery, State},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /slots`: one per concurrent request; open requests occupy the first.
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let open = app.host.open();
    let slot = |id| json!({"id": id, "n_ctx": app.model.facts.max_len, "is_processing": id < open});
    Json((0..app.host.at_once(1).max(open)).map(slot).collect())
}

/// `POST /slots/ID?action=erase`: later requests of the key hit no prefix that was cached before.
/// Ends its pinned prefixes.
pub(crate) async fn run_action(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let slots = app.host.at_once(1);
    let wrong =
        || ApiError::param("id", format!("`id` must be a slot from 0 to {}", slots.saturating_sub(1)));
    let id = id.parse::<usize>().ok().filter(|id| *id < slots).ok_or_else(wrong)?;
    match Query::parse(query.as_deref()).get("action") {
        Some("erase") => {
            app.erasures.erase(caller.0);
            // No later request could hit them.
            app.end_pins(None, Some(caller.0));
            // `n_erased` is null: cached tokens are not counted by key.
            Ok(Json(json!({"id_slot": id, "n_erased": null})))
        }
        Some("save" | "restore") => Err(ApiError::not_offered(
            "slots are not saved to files: the prefix cache finds a prompt by its content, and sessions (POST /v1/sessions) keep a conversation's K/V",
        )),
        _ => Err(ApiError::param("action", "`action` must be `erase`")),
    }
}

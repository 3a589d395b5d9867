//! `/v1/pins` and `/v1/admin/pins`: lists and ends pinned prefixes, of the caller's key or of all keys.

use crate::error::ApiError;
use crate::http::access::api_keys::{Caller, SeesAll};
use crate::http::app::App;
use crate::session::pins;
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Instant};

type Answer = Result<Json<Value>, ApiError>;

/// `GET /v1/pins`
pub(crate) async fn list(State(app): State<Arc<App>>, Extension(Caller(key)): Extension<Caller>) -> Answer {
    Ok(listed(&app, Some(key)))
}

/// `GET /v1/admin/pins`
pub(crate) async fn list_all(State(app): State<Arc<App>>, Extension(sees_all): Extension<SeesAll>) -> Answer {
    sees_all.check()?;
    Ok(listed(&app, None))
}

/// `DELETE /v1/pins`
pub(crate) async fn delete_own(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
) -> Answer {
    Ok(deleted(&app, None, Some(key)))
}

/// `DELETE /v1/pins/{id}`
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer {
    delete_one(&app, &id, Some(key))
}

/// `DELETE /v1/admin/pins`
pub(crate) async fn delete_all(
    State(app): State<Arc<App>>,
    Extension(sees_all): Extension<SeesAll>,
) -> Answer {
    sees_all.check()?;
    Ok(deleted(&app, None, None))
}

/// `DELETE /v1/admin/pins/{id}`
pub(crate) async fn delete_any(
    State(app): State<Arc<App>>,
    Extension(sees_all): Extension<SeesAll>,
    Path(id): Path<String>,
) -> Answer {
    sees_all.check()?;
    delete_one(&app, &id, None)
}

/// The pins of a key, or of all keys with their names.
fn listed(app: &App, owner: Option<u64>) -> Json<Value> {
    app.expire_sessions();
    let pins = app.pins.list(owner, Instant::now()).into_iter().map(|pin| {
        let mut listed = json!({
            "id": pins::name(pin.id),
            "object": "pin",
            "tokens": app.host.retained_tokens(pin.id),
            "expires_in": pin.expires_in.as_secs(),
        });
        if owner.is_none() {
            listed["key"] = app.access.keys.name(pin.owner).into();
        }
        listed
    });
    Json(json!({"object": "list", "data": pins.collect::<Vec<_>>()}))
}

/// Ends pins: one or all, of a key or of all keys.
fn deleted(app: &App, id: Option<kvasir_engine::SessionId>, owner: Option<u64>) -> Json<Value> {
    let names: Vec<String> = app.end_pins(id, owner).into_iter().map(pins::name).collect();
    Json(json!({"object": "list", "deleted": names}))
}

fn delete_one(app: &App, name: &str, owner: Option<u64>) -> Answer {
    let id = pins::id_of(name).filter(|id| {
        let is_it = |pin: &pins::ListedPin| pin.id == *id;
        app.pins.list(owner, Instant::now()).iter().any(is_it)
    });
    let missing = || ApiError::not_found("id", format!("there is no pin `{name}`, or it has expired"));
    Ok(deleted(app, Some(id.ok_or_else(missing)?), owner))
}

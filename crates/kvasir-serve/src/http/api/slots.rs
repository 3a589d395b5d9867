//! llama.cpp's slots: `GET /slots`, and `POST /slots/ID?action=save`, `restore` and `erase`.
//!
//! Requests share one block pool. A slot of this API identifies a concurrent request and owns no
//! K/V: the prefix cache finds a prompt by its content, whatever its slot.

use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::app::App;
use crate::http::body::read_body;
use crate::http::query::Query;
use crate::http::slot_files::SlotFiles;
use crate::http::slot_transfer::{SlotTransfer, TransferSize, no_such_slot};
use crate::request::fields::SLOT_ACTION;
use crate::session::slots::{SlotBusy, SlotId};
use axum::{
    Extension, Json,
    extract::{Path, RawQuery, Request, State},
};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::Arc, time::Instant};

/// `GET /slots`: the slots of the caller's key. Without recorded slots, the first ones count as
/// running, one per open request.
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(Caller(owner)): Extension<Caller>,
) -> Json<Value> {
    let open = app.host.open();
    let is_running = |number| match app.rules.slot_files {
        Some(_) => app.slots.is_running(SlotId { owner, number }),
        None => (number as usize) < open,
    };
    let slot = |id| json!({"id": id, "n_ctx": app.model.facts.max_len, "is_processing": is_running(id)});
    Json((0..app.slot_count(owner)).map(slot).collect())
}

/// `POST /slots/ID?action=ACTION`.
pub(crate) async fn run_action(
    State(app): State<Arc<App>>,
    Extension(Caller(owner)): Extension<Caller>,
    Path(number): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let count = app.slot_count(owner);
    let number = number.parse().ok().filter(|number| *number < count);
    let number = number.ok_or_else(|| no_such_slot("id", count))?;
    let slot = SlotId { owner, number };
    match Query::parse(query.as_deref()).get("action") {
        Some("erase") => erase(&app, slot),
        Some("save") => save(&app, slot, request).await,
        Some("restore") => restore(&app, slot, request).await,
        _ => Err(ApiError::param("action", "`action` must be `save`, `restore` or `erase`")),
    }
}

/// Empties the slot. Later requests of the key hit no prefix that was cached before, and its pinned
/// prefixes end.
fn erase(app: &App, slot: SlotId) -> Result<Json<Value>, ApiError> {
    let erased = app.slots.replace(slot, None).map_err(|SlotBusy| busy(slot))?;
    app.erasures.erase(slot.owner);
    // No later request could hit them.
    app.end_pins(None, Some(slot.owner));
    // Without recorded slots, the number is unknown.
    let erased = app.rules.slot_files.is_some().then_some(erased);
    Ok(Json(json!({"id_slot": slot.number, "n_erased": erased})))
}

async fn save(app: &Arc<App>, slot: SlotId, request: Request) -> Result<Json<Value>, ApiError> {
    let (files, filename, path) = named_file(app, request).await?;
    let content = app.slots.content(slot).map_err(|SlotBusy| busy(slot))?;
    let content = content.ok_or_else(|| {
        ApiError::conflict("id", format!("slot {} is empty: run a request in it first", slot.number))
    })?;
    let began = Instant::now();
    let transfer = SlotTransfer { app, files: &files, key: slot.owner };
    let TransferSize { tokens, bytes } = transfer.save(content, path).await?;
    Ok(Json(json!({
        "id_slot": slot.number, "filename": filename, "n_saved": tokens, "n_written": bytes,
        "timings": {"save_ms": elapsed_ms(began)},
    })))
}

async fn restore(app: &Arc<App>, slot: SlotId, request: Request) -> Result<Json<Value>, ApiError> {
    let (files, filename, path) = named_file(app, request).await?;
    app.slots.content(slot).map_err(|SlotBusy| busy(slot))?;
    let began = Instant::now();
    let transfer = SlotTransfer { app, files: &files, key: slot.owner };
    let (content, TransferSize { tokens, bytes }) = transfer.restore(path).await?;
    app.slots.replace(slot, Some(content)).map_err(|SlotBusy| busy(slot))?;
    Ok(Json(json!({
        "id_slot": slot.number, "filename": filename, "n_restored": tokens, "n_read": bytes,
        "timings": {"restore_ms": elapsed_ms(began)},
    })))
}

/// Reads `filename` from the body; returns the slot files, the name and its path.
async fn named_file(app: &Arc<App>, request: Request) -> Result<(SlotFiles, String, PathBuf), ApiError> {
    let Some(files) = &app.rules.slot_files else {
        return Err(ApiError::not_offered(
            "slots are saved to files only with `kvasir serve --slot-save-path DIRECTORY`; without it, the prefix cache finds a prompt by its content, and sessions (POST /v1/sessions) keep a conversation's K/V",
        ));
    };
    let (key, body) = read_body(app, request, SLOT_ACTION).await?;
    let filename = body.reader().need_text("filename")?.to_owned();
    let (keys, name) = (&app.access.keys, app.access.keys.name(key));
    let path = files.path(name.as_deref(), keys.count() <= 1, &filename)?;
    Ok((files.clone(), filename, path))
}

fn busy(slot: SlotId) -> ApiError {
    ApiError::conflict("id", format!("a request is running in slot {}", slot.number))
}

fn elapsed_ms(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

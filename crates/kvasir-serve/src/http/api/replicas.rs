//! `/v1/admin/replicas`: lists, drains and restarts engines in other processes (data parallelism).

use crate::error::ApiError;
use crate::http::access::api_keys::SeesAll;
use crate::http::app::App;
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use kvasir_engine::Replicas;
use serde_json::{Value, json};
use std::sync::Arc;

type Answer = Result<Json<Value>, ApiError>;

/// `GET /v1/admin/replicas`: status and statistics of each replica, and the routing.
pub(crate) async fn list(State(app): State<Arc<App>>, Extension(sees_all): Extension<SeesAll>) -> Answer {
    let replicas = replicas(&app, sees_all)?;
    let metrics = app.host.metrics().replicas.as_ref();
    let entries = replicas.status().into_iter().map(|status| {
        let mut entry = json!(status);
        let stats = metrics.map(|metrics| json!(metrics.stats(status.replica)));
        if let (Value::Object(entry), Some(Value::Object(stats))) = (&mut entry, stats) {
            entry.extend(stats);
        }
        entry
    });
    let data: Vec<Value> = entries.collect();
    Ok(Json(json!({"object": "list", "data": data, "routing": replicas.routing()})))
}

/// `POST /v1/admin/replicas/{id}/drain`
pub(crate) async fn drain(
    State(app): State<Arc<App>>,
    Extension(sees_all): Extension<SeesAll>,
    Path(id): Path<String>,
) -> Answer {
    let replicas = replicas(&app, sees_all)?;
    run_command(replicas, &id, "draining", |replica| replicas.drain(replica))
}

/// `POST /v1/admin/replicas/{id}/restart`
pub(crate) async fn restart(
    State(app): State<Arc<App>>,
    Extension(sees_all): Extension<SeesAll>,
    Path(id): Path<String>,
) -> Answer {
    let replicas = replicas(&app, sees_all)?;
    run_command(replicas, &id, "restarting", |replica| replicas.restart(replica))
}

fn replicas(app: &App, sees_all: SeesAll) -> Result<&dyn Replicas, ApiError> {
    sees_all.check()?;
    let none = || ApiError::not_found("id", "the server has no replicas: its engine runs in its own process");
    app.host.replicas().ok_or_else(none)
}

/// Runs a command on the replica with this id; answers with the `status` that it begins.
fn run_command(
    replicas: &dyn Replicas,
    id: &str,
    status: &str,
    command: impl FnOnce(usize) -> bool,
) -> Answer {
    let replica = id.parse().ok().filter(|replica| command(*replica));
    let replica = replica.ok_or_else(|| {
        let last = replicas.status().len().saturating_sub(1);
        ApiError::not_found("id", format!("there is no replica `{id}`; ids are 0 to {last}"))
    })?;
    Ok(Json(json!({"object": "replica", "replica": replica, "status": status})))
}

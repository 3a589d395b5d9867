//! Serves a bound listener while the model loads: `/live` succeeds, all other paths get `503`.
//!
//! The port is bound before the model is read, so a port in use fails at once, and probes reach a
//! server that is not ready. Connections close after their response; connections that are open when
//! loading ends still receive theirs.

use crate::error::ApiError;
use crate::http::connections::Connections;
use crate::http::transport::limit_listener::LimitListener;
use axum::{
    Json, Router,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
    serve::Listener,
};
use serde_json::json;
use tokio::{sync::oneshot, task::JoinHandle};

/// A running service of a listener, until the model is loaded.
pub struct Loading {
    task: JoinHandle<LimitListener>,
    loaded: oneshot::Sender<()>,
}

impl Loading {
    /// Serves `listener` on a task of the current runtime.
    pub fn start(mut listener: LimitListener) -> Self {
        let (loaded, mut on_loaded) = oneshot::channel();
        let task = tokio::spawn(async move {
            let connections = Connections::one_request_each(routes(), &listener);
            loop {
                tokio::select! {
                    (connection, client) = listener.accept() => connections.serve(connection, client),
                    _ = &mut on_loaded => break,
                }
            }
            // Dropping the sender would close connections whose request has not arrived yet.
            tokio::spawn(async move { connections.shutdown.closed().await });
            listener
        });
        Self { task, loaded }
    }

    /// Stops the service and returns the listener; `None` if the runtime shuts down.
    pub async fn finish(self) -> Option<LimitListener> {
        let _ = self.loaded.send(());
        self.task.await.ok()
    }
}

fn routes() -> Router {
    Router::new()
        .route("/live", get(async || "live"))
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/ready", get(health))
        .fallback(async || {
            ApiError::unavailable("the model is loading; GET /health reports when it is ready")
        })
}

/// llama.cpp's error while a model loads, with `status` added.
async fn health() -> impl IntoResponse {
    let error = json!({"code": 503, "message": "Loading model", "type": "unavailable_error"});
    let body = Json(json!({"status": "loading", "error": error}));
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body)
}

//! What a bound listener answers while the model loads: `/live`, and `503` everywhere else.
//!
//! The port is taken before the model is read, so a taken port fails at once, and probes see a server
//! that is not ready instead of none. Connections close after their response.

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

/// A listener that answers while the model loads.
pub struct Loading {
    task: JoinHandle<LimitListener>,
    loaded: oneshot::Sender<()>,
}

impl Loading {
    /// Starts to answer, on a task of the current runtime.
    pub fn start(mut listener: LimitListener) -> Self {
        let (loaded, mut is_loaded) = oneshot::channel();
        let task = tokio::spawn(async move {
            let connections = Connections::closing(routes(), &listener);
            loop {
                tokio::select! {
                    (connection, client) = listener.accept() => connections.serve(connection, client),
                    _ = &mut is_loaded => return listener,
                }
            }
        });
        Self { task, loaded }
    }

    /// Ends when the model is loaded; returns the listener. `None` if the runtime shuts down.
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
        .fallback(async || ApiError::unavailable("the model is loading; /health tells when it is ready"))
}

/// As llama.cpp's server answers, with the state under `status`.
async fn health() -> impl IntoResponse {
    let error = json!({"code": 503, "message": "Loading model", "type": "unavailable_error"});
    let body = Json(json!({"status": "loading", "error": error}));
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], body)
}

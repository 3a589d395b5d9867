//! HTTP/1.1 server loop with graceful shutdown.
//!
//! Shutdown: stop accepting, drain the engine for at most `grace`, abort remaining answers, notify
//! clients, flush logs and traces.

use crate::http::{
    app::App,
    transport::{connection::Connection, limit_listener::Gate},
};
use axum::{Extension, Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{future::Future, pin::pin, sync::Arc, time::Duration};
use tokio::time::{interval, timeout};

/// Time for clients to receive the error after their answers were aborted.
const FAREWELL: Duration = Duration::from_secs(5);

/// Time for the log and the trace collector to flush.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// HTTP service of the connections of one gate.
struct Connections {
    service: TowerToHyperService<Router>,
    http: http1::Builder,
    /// Without keep-alive, for probes on reserve places.
    once: http1::Builder,
    open: GracefulShutdown,
}

impl Connections {
    fn new(router: Router, gate: &Gate) -> Self {
        let patience = gate.patience();
        let service = TowerToHyperService::new(router.layer(Extension(patience)));
        let mut http = http1::Builder::new();
        // Also the idle timeout of a kept-alive connection.
        http.timer(TokioTimer::new()).header_read_timeout(patience.0);
        let mut once = http.clone();
        once.keep_alive(false);
        Self { service, http, once, open: GracefulShutdown::new() }
    }

    fn serve(&self, connection: Connection) {
        let http = if connection.is_probe() { &self.once } else { &self.http };
        let connection = http.serve_connection(TokioIo::new(connection), self.service.clone());
        let connection = self.open.watch(connection);
        tokio::spawn(async move {
            // Errors here are those of the client's connection.
            let _ = connection.await;
        });
    }
}

/// Serves `/live`, `/health` and, without API keys, `/metrics` on a separate listener for the
/// lifetime of the process, including graceful shutdown.
pub async fn serve_probes(app: Arc<App>, mut gate: Gate) {
    let connections = Connections::new(app.probes(), &gate);
    loop {
        let (connection, _) = gate.accept().await;
        connections.serve(connection);
    }
}

/// Serves until `stop` resolves, then shuts down gracefully within `grace`. Returns the number of
/// answers that were aborted.
pub async fn serve(app: Arc<App>, mut gate: Gate, stop: impl Future<Output = ()>, grace: Duration) -> usize {
    let connections = Connections::new(app.router(), &gate);
    let mut stop = pin!(stop);
    let mut seconds = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            (connection, _) = gate.accept() => connections.serve(connection),
            // Expires sessions even without requests, because their KV cache is needed by others.
            _ = seconds.tick() => app.expire_sessions(),
            () = &mut stop => break,
        }
    }
    app.host.drain();
    drop(gate);
    let mut all_gone = pin!(connections.open.shutdown());
    let cut = match timeout(grace, &mut all_gone).await {
        Ok(()) => 0,
        // Aborts the remaining answers; connected clients receive an error.
        Err(_) => {
            let cut = app.host.cut();
            let _ = timeout(FAREWELL, all_gone).await;
            cut
        }
    };
    app.host.reports().flush(LAST_WORDS);
    cut
}

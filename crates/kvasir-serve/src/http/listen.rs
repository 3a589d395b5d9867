//! Serves the connections of a gate: over HTTP/1.1, until the server is told to stop.

use super::{App, Gate, gate::Connection};
use axum::{Extension, Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{future::Future, pin::pin, sync::Arc, time::Duration};
use tokio::time::{interval, timeout};

/// How long a client may take to go on with a request that it has begun; where nothing is said, for ever.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience(pub(super) Duration);

/// How long clients may take to hear that their answers were cut.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the log and the collector may take to hear the last.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Serves the connections of one gate.
struct Connections {
    service: TowerToHyperService<Router>,
    http: http1::Builder,
    /// For probes with a place of the reserve: one answer each.
    once: http1::Builder,
    open: GracefulShutdown,
}

impl Connections {
    fn new(router: Router, gate: &Gate) -> Self {
        let patience = gate.patience();
        let service = TowerToHyperService::new(router.layer(Extension(patience)));
        let mut http = http1::Builder::new();
        // Also bounds how long a connection may lie idle between two requests.
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
            // What ends a connection early is its client's matter.
            let _ = connection.await;
        });
    }
}

/// Serves `/live`, `/health` and, where no key is asked for, `/metrics` on a listener of their own,
/// for as long as the process runs: a probe is answered while the server is leaving, too.
pub async fn serve_probes(app: Arc<App>, mut gate: Gate) {
    let connections = Connections::new(app.probes(), &gate);
    loop {
        let (connection, _) = gate.accept().await;
        connections.serve(connection);
    }
}

/// Serves until `stop` is ready, then takes no more requests, lets those under way end for at most `grace`, and leaves. How many answers
/// were cut then.
pub async fn serve(app: Arc<App>, mut gate: Gate, stop: impl Future<Output = ()>, grace: Duration) -> usize {
    let connections = Connections::new(app.router(), &gate);
    let mut stop = pin!(stop);
    let mut seconds = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            (connection, _) = gate.accept() => connections.serve(connection),
            // Whether or not anybody asks: what they hold is wanted by others.
            _ = seconds.tick() => app.expire_sessions(),
            () = &mut stop => break,
        }
    }
    app.host.drain();
    drop(gate);
    let mut all_gone = pin!(connections.open.shutdown());
    let cut = match timeout(grace, &mut all_gone).await {
        Ok(()) => 0,
        // Answers that take longer than they may are cut, and whoever still listens hears of it.
        Err(_) => {
            let cut = app.host.cut();
            let _ = timeout(FAREWELL, all_gone).await;
            cut
        }
    };
    app.host.reports().flush(LAST_WORDS);
    cut
}

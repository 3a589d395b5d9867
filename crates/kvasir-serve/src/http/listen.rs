use super::{App, Gate};
use axum::{Extension, serve::Listener};
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

/// Serves until `stop` is ready, then takes no more requests, lets those under way end for at most `grace`, and leaves. How many answers
/// were cut then.
pub async fn serve(app: Arc<App>, mut gate: Gate, stop: impl Future<Output = ()>, grace: Duration) -> usize {
    let router = app.router().layer(Extension(gate.patience()));
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    // Also bounds how long a connection may lie idle between two requests.
    http.timer(TokioTimer::new()).header_read_timeout(gate.patience().0);
    let open = GracefulShutdown::new();
    let mut stop = pin!(stop);
    let mut seconds = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            (connection, _) = gate.accept() => {
                let connection = http.serve_connection(TokioIo::new(connection), service.clone());
                let connection = open.watch(connection);
                tokio::spawn(async move {
                    // What ends a connection early is its client's matter.
                    let _ = connection.await;
                });
            }
            // Whether or not anybody asks: what they hold is wanted by others.
            _ = seconds.tick() => app.expire_sessions(),
            () = &mut stop => break,
        }
    }
    app.host.drain();
    drop(gate);
    let mut all_gone = pin!(open.shutdown());
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

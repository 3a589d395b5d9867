use super::{App, Gate};
use std::{future::Future, io, sync::Arc, time::Duration};
use tokio::time::timeout;

/// Serves until `stop` is ready, then takes no more requests, lets those under way end for at most `grace`, and leaves.
pub async fn serve(
    app: Arc<App>,
    gate: Gate,
    stop: impl Future<Output = ()> + Send + 'static,
    grace: Duration,
) -> io::Result<()> {
    let (host, router) = (app.host.clone(), app.router());
    let (told, heard) = tokio::sync::oneshot::channel();
    let stopping = async move {
        stop.await;
        host.drain();
        // Nobody listens if the server has failed already.
        let _ = told.send(());
    };
    let mut server = tokio::spawn(async { axum::serve(gate, router).with_graceful_shutdown(stopping).await });
    tokio::select! {
        done = &mut server => return done.unwrap_or_else(|gone| Err(io::Error::other(gone))),
        _ = heard => {}
    }
    match timeout(grace, &mut server).await {
        Ok(done) => done.unwrap_or_else(|gone| Err(io::Error::other(gone))),
        Err(_) => {
            server.abort();
            Ok(())
        }
    }
}

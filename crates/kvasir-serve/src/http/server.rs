//! HTTP/1.1 server loop with graceful shutdown, and the probe listener.
//!
//! Shutdown: stop accepting, drain the engine until `cut` resolves, abort remaining answers, notify
//! clients, flush logs and traces.

use crate::http::{
    app::App, connections::Connections, loading::Loading, transport::limit_listener::LimitListener,
};
use axum::serve::Listener;
use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, thread, time::Duration};
use tokio::{
    runtime::Builder,
    sync::oneshot,
    time::{interval, timeout},
};

/// Time for clients to receive the error after their answers were aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the log and the trace collector to flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves `/live`, `/health` and, without API keys, `/metrics` on a separate listener for the
/// lifetime of the process, including graceful shutdown. Until [`Probes::serve_app`] is called,
/// [`Loading`] serves the listener.
///
/// It has a thread and a runtime of its own, so probes never wait for other requests.
pub fn start_probes(address: SocketAddr, connections: usize, read_timeout: Duration) -> io::Result<Probes> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _context = runtime.enter();
        LimitListener::open(address, connections, None)?.with_read_timeout(read_timeout)
    };
    let address = listener.address()?;
    let (sender, app) = oneshot::channel();
    let probes = move || runtime.block_on(serve_probes(app, listener));
    thread::Builder::new().name("probes".into()).spawn(probes)?;
    Ok(Probes { address, app: sender })
}

/// The probe listener while the model loads.
pub struct Probes {
    address: SocketAddr,
    app: oneshot::Sender<(Arc<App>, oneshot::Sender<()>)>,
}

impl Probes {
    /// The listener's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves probes from the app of the loaded model. Connections opened after it returns reach
    /// the app.
    pub async fn serve_app(self, app: Arc<App>) {
        let (taken_over, done) = oneshot::channel();
        // Fails only if the thread of the listener has ended.
        if self.app.send((app, taken_over)).is_ok() {
            let _ = done.await;
        }
    }
}

async fn serve_probes(app: oneshot::Receiver<(Arc<App>, oneshot::Sender<()>)>, listener: LimitListener) {
    let loading = Loading::start(listener);
    let Ok((app, taken_over)) = app.await else { return };
    let Some(mut listener) = loading.finish().await else { return };
    let connections = Connections::new(app.probes(), &listener);
    let _ = taken_over.send(());
    loop {
        let (connection, client) = listener.accept().await;
        connections.serve(connection, client);
    }
}

/// Time limit for the exit of the engine's thread after the last answer.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until `stop` resolves, then shuts down gracefully: running answers have until `cut`
/// resolves. Returns the number of answers that were aborted.
pub async fn serve(
    app: Arc<App>,
    mut listener: LimitListener,
    stop: impl Future<Output = ()>,
    cut: impl Future<Output = ()>,
) -> usize {
    let connections = Connections::new(app.router(), &listener);
    let mut stop = pin!(stop);
    let mut unix_seconds = interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            (connection, client) = listener.accept() => connections.serve(connection, client),
            // Expires sessions even without requests, because their KV cache is needed by others.
            _ = unix_seconds.tick() => app.expire_sessions(),
            () = &mut stop => break,
        }
    }
    app.host.drain();
    drop(listener);
    connections.shutdown.send_replace(());
    let mut all_gone = pin!(connections.shutdown.closed());
    let aborted = tokio::select! {
        () = &mut all_gone => 0,
        // Aborts the remaining answers; connected clients receive an error.
        () = cut => {
            let aborted = app.host.abort_all();
            let _ = timeout(ABORT_TIMEOUT, all_gone).await;
            aborted
        }
    };
    app.host.ended(EXIT_TIMEOUT).await;
    app.host.reports().flush(FLUSH_TIMEOUT);
    aborted
}

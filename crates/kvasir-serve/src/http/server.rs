//! HTTP/1.1 server loop with graceful shutdown.
//!
//! Shutdown: stop accepting, drain the engine until `cut` resolves, abort remaining answers, notify
//! clients, flush logs and traces.

use crate::error::ApiError;
use crate::http::{
    app::App,
    transport::{
        connection::{Client, Connection},
        exchange::{ClientGone, Handling},
        limit_listener::LimitListener,
    },
};
use axum::{
    Extension, Router,
    body::Body,
    http::{Request, Version, header},
    response::IntoResponse,
    serve::Listener,
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use std::{
    convert::Infallible, future::Future, io, net::SocketAddr, panic::resume_unwind, pin::pin, sync::Arc,
    thread, time::Duration,
};
use tokio::{
    runtime::Builder,
    time::{interval, timeout},
};

/// Time for clients to receive the error after their answers were aborted.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the log and the trace collector to flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP service of the connections of one listener.
struct Connections {
    service: TowerToHyperService<Router>,
    http: http1::Builder,
    /// Without keep-alive, for probes on permits of the reserve.
    once: http1::Builder,
    open: GracefulShutdown,
}

impl Connections {
    fn new(router: Router, listener: &LimitListener) -> Self {
        let read_timeout = listener.read_timeout();
        let service = TowerToHyperService::new(router.layer(Extension(read_timeout)));
        let mut http = http1::Builder::new();
        // Also the idle timeout of a kept-alive connection.
        http.timer(TokioTimer::new()).header_read_timeout(read_timeout.0);
        let mut once = http.clone();
        once.keep_alive(false);
        Self { service, http, once, open: GracefulShutdown::new() }
    }

    fn serve(&self, connection: Connection, client: SocketAddr) {
        let http = if connection.is_probe() { &self.once } else { &self.http };
        let service = self.service.clone();
        let exchange = connection.exchange();
        let service = service_fn(move |request: Request<Incoming>| {
            let (service, exchange) = (service.clone(), exchange.clone());
            let checked = one_host(&request);
            let takes_interim = request.version() == Version::HTTP_11;
            // Not in the future: hyper may read the end of the stream before it polls that.
            let mut request = request.map(|body| exchange.begin(Body::new(body), takes_interim));
            async move {
                let response = match checked {
                    Ok(()) => {
                        let gone = ClientGone::default();
                        request.extensions_mut().insert(Client(client.ip()));
                        request.extensions_mut().insert(gone.clone());
                        let mut handling = Handling { task: tokio::spawn(service.call(request)), gone };
                        match (&mut handling.task).await {
                            Ok(response) => response?,
                            Err(failed) => resume_unwind(failed.into_panic()),
                        }
                    }
                    Err(error) => error.into_response(),
                };
                Ok::<_, Infallible>(response.map(|body| exchange.respond(body)))
            }
        });
        let connection = http.serve_connection(TokioIo::new(connection), service);
        let connection = self.open.watch(connection);
        tokio::spawn(async move {
            // Errors here are those of the client's connection.
            let _ = connection.await;
        });
    }
}

/// Serves `/live`, `/health` and, without API keys, `/metrics` on a separate listener for the
/// lifetime of the process, including graceful shutdown. Returns its address.
///
/// It has a thread and a runtime of its own, so probes never wait for other requests.
pub fn start_probes(
    app: Arc<App>,
    address: SocketAddr,
    connections: usize,
    read_timeout: Duration,
) -> io::Result<SocketAddr> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _context = runtime.enter();
        LimitListener::open(address, connections, None)?.with_read_timeout(read_timeout)
    };
    let address = listener.address()?;
    let probes = move || runtime.block_on(serve_probes(app, listener));
    thread::Builder::new().name("probes".into()).spawn(probes)?;
    Ok(address)
}

async fn serve_probes(app: Arc<App>, mut listener: LimitListener) {
    let connections = Connections::new(app.probes(), &listener);
    loop {
        let (connection, client) = listener.accept().await;
        connections.serve(connection, client);
    }
}

/// Rejects HTTP/1.1 requests without a `host`, or with several, as RFC 9112 demands: servers that
/// disagree on the host of a request can be played off against each other.
fn one_host(request: &Request<Incoming>) -> Result<(), ApiError> {
    let count = request.headers().get_all(header::HOST).iter().count();
    match (request.version(), count) {
        (_, 1) | (Version::HTTP_09 | Version::HTTP_10, 0) => Ok(()),
        _ => Err(ApiError::body("the request must have one `host` header")),
    }
}

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
    let mut all_gone = pin!(connections.open.shutdown());
    let aborted = tokio::select! {
        () = &mut all_gone => 0,
        // Aborts the remaining answers; connected clients receive an error.
        () = cut => {
            let aborted = app.host.abort_all();
            let _ = timeout(ABORT_TIMEOUT, all_gone).await;
            aborted
        }
    };
    app.host.reports().flush(FLUSH_TIMEOUT);
    aborted
}

//! Serves HTTP/1.1 on the connections of a listener.

use crate::error::ApiError;
use crate::http::transport::{
    connection::{Client, Connection, Shutdown},
    exchange::{ClientGone, Handling},
    limit_listener::LimitListener,
};
use axum::{
    Extension, Router,
    body::Body,
    http::{Request, Version, header},
    response::IntoResponse,
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{convert::Infallible, net::SocketAddr, panic::resume_unwind, pin::pin};
use tokio::sync::watch;

/// HTTP service of all connections of one listener.
pub(super) struct Connections {
    service: TowerToHyperService<Router>,
    http: http1::Builder,
    /// For connections that close after one response, such as probes on reserved permits.
    without_keep_alive: http1::Builder,
    /// Notifies connections of shutdown; closed when none is left.
    pub(super) shutdown: watch::Sender<()>,
}

impl Connections {
    /// A service of `router`, with keep-alive.
    pub(super) fn new(router: Router, listener: &LimitListener) -> Self {
        let read_timeout = listener.read_timeout();
        let service = TowerToHyperService::new(router.layer(Extension(read_timeout)));
        let mut http = http1::Builder::new();
        // Also the idle timeout of a kept-alive connection.
        http.timer(TokioTimer::new()).header_read_timeout(read_timeout.0);
        let mut without_keep_alive = http.clone();
        without_keep_alive.keep_alive(false);
        Self { service, http, without_keep_alive, shutdown: watch::Sender::new(()) }
    }

    /// A service of `router` that closes each connection after one response.
    pub(super) fn one_request_each(router: Router, listener: &LimitListener) -> Self {
        let connections = Self::new(router, listener);
        Self { http: connections.without_keep_alive.clone(), ..connections }
    }

    /// Serves a connection on a new task.
    pub(super) fn serve(&self, connection: Connection, client: SocketAddr) {
        let http = if connection.is_probe() { &self.without_keep_alive } else { &self.http };
        let service = self.service.clone();
        let exchange = connection.exchange();
        let mut shutdown = self.shutdown.subscribe();
        let request_shutdown = Shutdown(shutdown.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (service, exchange) = (service.clone(), exchange.clone());
            let shutdown = request_shutdown.clone();
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
                        request.extensions_mut().insert(exchange.connection().clone());
                        request.extensions_mut().insert(shutdown);
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
        let connection = http.serve_connection(TokioIo::new(connection), service).with_upgrades();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            // Errors here are those of the client's connection.
            tokio::select! {
                _ = connection.as_mut() => return,
                _ = shutdown.changed() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
}

/// Rejects HTTP/1.1 requests without a `host`, or with several, as RFC 9112 demands: a proxy that
/// picks another host than this server would let requests bypass its rules.
fn one_host(request: &Request<Incoming>) -> Result<(), ApiError> {
    let count = request.headers().get_all(header::HOST).iter().count();
    match (request.version(), count) {
        (_, 1) | (Version::HTTP_09 | Version::HTTP_10, 0) => Ok(()),
        _ => Err(ApiError::body("the request must have one `host` header")),
    }
}

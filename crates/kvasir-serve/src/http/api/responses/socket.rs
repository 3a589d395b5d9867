//! `/v1/responses` as a WebSocket: the client sends `response.create` messages and gets the events
//! of each response as text messages, one response after the other.
//!
//! 1. Wait for a message, at most [`IDLE_TIMEOUT`].
//! 2. Submit it as the body of `POST /v1/responses`, and send the events. Meanwhile, read at most
//!    one further message. Abort the response if the client disconnects.
//!
//! A message with `generate: false` is a warm-up: its prompt is prefilled into the prefix cache,
//! and the response is empty. A later message continues it with `previous_response_id`.
//!
//! A connection keeps its newest response with `store: false`, so that the next message can name it
//! in `previous_response_id`. A browser opens a WebSocket for any page without a CORS preflight, so
//! the `origin` must be an allowed one or the server's own.

use crate::context::clamped_limit::ClampRecord;
use crate::context::ignored_fields::IgnoredFields;
use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::access::rate_limits::Charge;
use crate::http::api::responses::{Responses, SocketRequest};
use crate::http::app::App;
use crate::http::transport::connection::Shutdown;
use crate::memory_budget::{HeldMemory, SOCKETS};
use crate::request::body::Body;
use crate::request::fields::SOCKET;
use crate::session::responses::ResponseStore;
use crate::work_pool::fair_queue::Cost;
use axum::{
    Extension,
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::{HeaderMap, header},
    response::Response,
};
use futures_util::StreamExt;
use serde_json::Value;
use std::{
    future::pending,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::timeout;

/// Maximum size of a message in bytes. Each open connection holds as much of the memory budget.
const MAX_MESSAGE_BYTES: usize = 8 << 20;
/// Time without a message after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// `GET /v1/responses`.
pub(crate) async fn socket(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    shutdown: Option<Extension<Shutdown>>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|_| {
        let why =
            "GET /v1/responses opens a WebSocket; send other requests with POST, or GET /v1/responses/ID";
        ApiError { status: 426, ..ApiError::param("upgrade", why) }
    })?;
    check_origin(&app, &headers)?;
    let mut memory = SOCKETS.hold();
    memory.grow_to(MAX_MESSAGE_BYTES)?;
    let context = RequestContext::current();
    let upgrade = upgrade.max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    let newest = Arc::new(app.responses.sharing_memory());
    let shutdown = shutdown.map(|Extension(shutdown)| shutdown);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let connection = Connection { app, key, context, socket, next: None, newest, _memory: memory };
        connection.serve(shutdown).await;
    }))
}

/// Refuses requests of web pages whose origin is neither allowed nor the server's own.
fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let own = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let is_own = own.is_some_and(|(_, own)| Some(own) == host);
    if is_own || app.access.origins.allow_origin(headers).is_some() {
        return Ok(());
    }
    let why = "pages of this origin may not open a WebSocket; allow it with --allowed-origins";
    Err(ApiError { status: 403, ..ApiError::param("origin", why) })
}

/// Sets [`RequestContext::gone`] of a request when it is dropped, which ends the request's work.
struct GoneOnDrop(Arc<AtomicBool>);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Whether the connection continues after a message.
enum Flow {
    Continue,
    End,
}

struct Connection {
    app: Arc<App>,
    key: u64,
    context: Arc<RequestContext>,
    socket: WebSocket,
    /// A message received during a response, to be answered next.
    next: Option<Message>,
    /// Holds the newest response with `store: false`.
    newest: Arc<ResponseStore>,
    _memory: HeldMemory,
}

impl Connection {
    /// Answers messages until the client disconnects, the connection is idle for too long, or the
    /// server shuts down.
    async fn serve(mut self, mut shutdown: Option<Shutdown>) {
        loop {
            let stop = async {
                match &mut shutdown {
                    Some(Shutdown(receiver)) => drop(receiver.changed().await),
                    None => pending().await,
                }
            };
            let message = match self.next.take() {
                Some(message) => message,
                None => tokio::select! {
                    received = timeout(IDLE_TIMEOUT, self.socket.recv()) => match received {
                        Ok(Some(Ok(message))) => message,
                        _ => return,
                    },
                    () = stop => return,
                },
            };
            let flow = match message {
                Message::Text(text) => self.respond(text.as_bytes()).await,
                Message::Binary(bytes) => self.respond(&bytes).await,
                Message::Close(_) => return,
                // axum answers pings.
                Message::Ping(_) | Message::Pong(_) => Flow::Continue,
            };
            if matches!(flow, Flow::End) {
                return;
            }
        }
    }

    /// Answers one message.
    async fn respond(&mut self, text: &[u8]) -> Flow {
        let gone = GoneOnDrop(Arc::default());
        let context = Arc::new(RequestContext {
            id: self.app.new_id(),
            ignored: IgnoredFields::default(),
            clamped: ClampRecord::default(),
            rate: Arc::default(),
            gone: gone.0.clone(),
            ..(*self.context).clone()
        });
        let begun = context.scope(begin(&self.app, self.key, text, self.newest.clone())).await;
        match begun {
            Ok(response) => self.send_events(response).await,
            Err(error) => self.send_error(&error).await,
        }
    }

    async fn send_events(&mut self, response: Responses) -> Flow {
        let mut events = pin!(response.events());
        loop {
            tokio::select! {
                text = events.next() => {
                    let Some(text) = text else { return Flow::Continue };
                    for message in messages(&text) {
                        if self.socket.send(message).await.is_err() {
                            return Flow::End;
                        }
                    }
                }
                message = self.socket.recv() => match message {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Flow::End,
                    Some(Ok(message)) if self.next.is_none() => self.next = Some(message),
                    // The socket stays read, so that a client that left is noticed.
                    Some(Ok(_)) => {
                        let error = ApiError::too_many("a response is generated and another message waits");
                        if let Flow::End = self.send_error(&error).await {
                            return Flow::End;
                        }
                    }
                }
            }
        }
    }

    async fn send_error(&mut self, error: &ApiError) -> Flow {
        let mut event = error.to_json();
        event["type"] = "error".into();
        event["status"] = error.status.into();
        match self.socket.send(Message::Text(event.to_string().into())).await {
            Ok(()) => Flow::Continue,
            Err(_) => Flow::End,
        }
    }
}

/// Parses a message and submits its request.
async fn begin(
    app: &Arc<App>,
    key: u64,
    text: &[u8],
    newest: Arc<ResponseStore>,
) -> Result<Responses, ApiError> {
    app.access.charge(key, Charge { requests: 1, tokens: 0 }, app.host.metrics())?;
    let ignored = RequestContext::current().ignored.with_rule(app.rules.unknown_fields);
    let text = text.to_vec();
    let mut body = app.work.run(Cost::Light, move || Body::parse(&text, SOCKET, ignored)).await?;
    match body.fields.shift_remove("type") {
        Some(Value::String(kind)) if kind == "response.create" => {}
        _ => return Err(ApiError::param("type", "`type` must be `response.create`")),
    }
    let generates = match body.fields.shift_remove("generate") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(generates)) => generates,
        Some(_) => return Err(ApiError::param("generate", "`generate` must be true or false")),
    };
    if !generates && body.fields.get("input").is_none_or(Value::is_null) {
        body.fields.insert("input".into(), Value::Array(Vec::new()));
    }
    let socket = SocketRequest { newest, generates };
    app.run_work(body.cost(), move |app| Responses::begin(app, key, body, Some(socket))).await
}

/// Converts server-sent events to messages: data to text, a comment to a ping.
fn messages(events: &str) -> impl Iterator<Item = Message> {
    let events = events.split("\n\n").filter(|event| !event.is_empty());
    events.map(|event| match event.lines().find_map(|line| line.strip_prefix("data: ")) {
        Some(data) => Message::Text(data.into()),
        None => Message::Ping(Vec::new().into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_messages() {
        let events = "event: a\ndata: {\"type\":\"a\"}\n\nevent: b\ndata: {}\n\n: keep-alive\n\n";
        let messages: Vec<Message> = messages(events).collect();
        let text = |text: &str| Message::Text(text.into());
        assert_eq!(messages, [text("{\"type\":\"a\"}"), text("{}"), Message::Ping(Vec::new().into())]);
    }
}

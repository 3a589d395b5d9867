//! HTTP layer (axum): routes and handlers of the OpenAI- and Anthropic-compatible APIs, sessions,
//! tokenization and metrics.
//!
//! Each handler parses and validates its body, submits an engine request, drops the body, and then
//! writes the response as JSON or SSE. Middleware, outermost first: CORS (`origins`), request
//! context and access log (`announce`), authentication and host check (`authorize`).

mod announce;
mod ask;
mod auth;
mod body;
mod chat;
mod completions;
mod embeddings;
mod gate;
mod hosts;
mod listen;
mod messages;
mod openapi;
mod origins;
mod page;
mod reply;
mod reserve;
mod responses;
mod sessions;
mod speaker;
mod sse;
mod steps;
mod talk;
mod tls;
mod tokens;
mod usage;

pub use auth::{AccessControl, Keys};
pub use gate::Gate;
pub use hosts::Hosts;
pub use listen::{serve, serve_probes};
pub use origins::Origins;
pub use speaker::{Ended, Gain, Speaker};
pub use tls::tls;
pub use tokio_rustls::TlsAcceptor;

use crate::{
    ApiError, Watch,
    error::Overflow,
    host::{Answers, Host, Order, refused},
    metrics::Names,
    model::Model,
    request::{self, SamplingFields, UnknownFields},
    session::Sessions,
};
use axum::{
    Json, Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use body::read_body;
use futures_util::{Stream, StreamExt};
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// Anthropic's endpoints, which have an error format of their own.
const MESSAGES: &str = "/v1/messages";
const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

/// Answer tokens that admission charges for a request without `max_tokens`: few answers are as long
/// as the model allows.
const OPEN_ANSWER: u32 = 1024;

/// State shared by all handlers.
pub struct App {
    pub(crate) model: Arc<Model>,
    pub(crate) host: Arc<Host>,
    door: AccessControl,
    live: Live,
    sessions: Arc<Sessions>,
    names: Names,
    pub(crate) rules: ClientRules,
    seen: announce::Seen,
    ids: AtomicU64,
    random: RandomState,
    /// Start time in seconds since 1970, reported as the model's creation time.
    since: u64,
}

/// Compatibility options for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRules {
    /// Further names of the model; `*` accepts any.
    pub aliases: Vec<String>,
    /// Handling of unknown fields.
    pub unknown_fields: UnknownFields,
    /// Strips Claude Code's billing header from system prompts: it changes with every request and
    /// would defeat the prefix cache.
    pub strip_billing_header: bool,
}

impl Default for ClientRules {
    fn default() -> Self {
        Self { aliases: Vec::new(), unknown_fields: UnknownFields::default(), strip_billing_header: true }
    }
}

/// Live view of the engine's steps.
pub struct Live {
    /// The step subscription service.
    pub watch: Watch,
    /// The engine's configuration, in the trace page's format.
    pub setup: Value,
}

/// Index of the authenticated API key, as a request extension.
#[derive(Clone, Copy)]
struct Caller(u64);

impl App {
    /// An app that serves `model`, run by `host`, under the access rules `door`.
    pub fn new(
        model: Arc<Model>,
        host: Arc<Host>,
        door: AccessControl,
        live: Live,
        names: Names,
        rules: ClientRules,
    ) -> Arc<Self> {
        let (sessions, random) = (Arc::default(), RandomState::new());
        let (ids, since) = (AtomicU64::new(1), seconds());
        let seen = announce::Seen::default();
        Arc::new(Self { model, host, door, live, sessions, names, rules, seen, ids, random, since })
    }

    /// All routes with their middleware.
    pub fn router(self: &Arc<Self>) -> Router {
        let keyed = Router::new()
            .route("/health", get(health))
            .route("/openapi.json", get(openapi::openapi))
            .route("/metrics", get(metrics))
            .route("/v1/models", get(models))
            .route("/v1/models/{id}", get(model))
            .route("/v1/chat/completions", post(chat_completions))
            .route("/v1/completions", post(text_completions))
            .route("/v1/embeddings", post(embeddings::embeddings))
            .route("/v1/responses", post(responses_create))
            .route(MESSAGES, post(anthropic_messages))
            .route(COUNT_TOKENS, post(count_tokens))
            .route("/v1/sessions", get(sessions::list).post(sessions::create))
            .route("/v1/sessions/{id}", get(sessions::show).delete(sessions::delete))
            .route("/v1/sessions/{id}/fork", post(sessions::fork))
            .route("/v1/sessions/{id}/rewind", post(sessions::rewind))
            .route("/tokenize", post(tokens::tokenize))
            .route("/detokenize", post(tokens::detokenize))
            .route("/tokenizer_info", get(tokens::tokenizer_info))
            .route("/v1/engine/steps", get(steps::steps))
            .fallback(async || ApiError::not_found("path", "no such route"))
            .method_not_allowed_fallback(async || ApiError {
                status: 405,
                code: Some("method_not_allowed"),
                ..ApiError::not_found("method", "this route takes another method")
            })
            .layer(from_fn_with_state(self.clone(), authorize))
            .layer(from_fn_with_state(self.clone(), announce::announce))
            .with_state(self.clone());
        // Without authentication: liveness probes, and the web page, which asks for a key itself.
        let open = Router::new().route("/live", get(async || "live")).merge(page::routes());
        open.merge(keyed).layer(from_fn_with_state(self.clone(), origins::share))
    }

    fn answers_to(&self, name: &str) -> bool {
        name == self.model.name || self.rules.aliases.iter().any(|alias| alias == "*" || alias == name)
    }

    /// Routes of the probe listener: `/live` and `/health` without a key, and `/metrics` if no keys
    /// are configured.
    pub fn probes(self: &Arc<Self>) -> Router {
        let probes = Router::new().route("/live", get(async || "live")).route("/health", get(health));
        let counted = Router::new().route("/metrics", get(metrics));
        // The host check applies to metrics, as on the main listener.
        let counted = counted.route_layer(from_fn_with_state(self.clone(), authorize));
        let probes = if self.door.keys.is_empty() { probes.merge(counted) } else { probes };
        let not_found = async || ApiError::not_found("path", "this listener has /live and /health only");
        probes.fallback(not_found).with_state(self.clone())
    }

    fn known_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(name) if !self.answers_to(name) => Err(ApiError::not_found(
                "model",
                format!(
                    "there is no model `{name}`; this is `{}`, and --model-name gives it more names",
                    self.model.name
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Builds the engine request; checks its length against the context length.
    fn order(
        &self,
        param: &str,
        prompt: Vec<Token>,
        fields: &SamplingFields,
        key: u64,
    ) -> Result<Order, ApiError> {
        let longest = self.model.facts.max_len;
        let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if used == 0 {
            return Err(ApiError::param(param, format!("`{param}` has no token")));
        }
        if used >= longest {
            return Err(ApiError::overflow(param, Overflow { prompt: used, asked: None, limit: longest }));
        }
        if fields.sampling.logprobs.is_some() || fields.prompt_logprobs.is_some() {
            self.model.computes("probability")?;
        }
        let left = longest - used;
        if let Some(asked) = fields.length.max_tokens.filter(|asked| *asked > left) {
            let overflow = Overflow { prompt: used, asked: Some(asked), limit: longest };
            return Err(ApiError::overflow(param, overflow));
        }
        let most = self.model.facts.max_new_tokens.unwrap_or(left).max(fields.length.min_tokens);
        let mut params = fields.params(fields.length.max_tokens.unwrap_or(left).min(most));
        if fields.seed.is_none() {
            params.sampling.seed = self.noise();
        }
        params.eos = self.model.facts.eos.clone();
        params.key = key;
        // The salt isolates prefix caches by key: no hits, and no timing side channel, across keys.
        let final_len = used.saturating_add(params.max_tokens).min(longest);
        params.salt =
            self.salt(key, fields.cache_salt.as_deref()) << 1 | (self.model.facts.prefix_salt)(final_len);
        // Checked before streaming starts, so that the error has an HTTP status.
        params.check().map_err(refused)?;
        let expected = fields.length.max_tokens.unwrap_or(params.max_tokens.min(OPEN_ANSWER));
        let tokens = u64::from(used) + u64::from(expected);
        Ok(Order { request: kvasir_engine::Request { tag: 0, prompt, params }, tokens })
    }

    /// Submits orders of one key to the engine, each with `n` answers.
    fn submit(&self, orders: Vec<Order>, n: u32) -> Result<Vec<Answers>, ApiError> {
        let sessions: Vec<_> = orders.iter().filter_map(|order| order.request.params.session).collect();
        let answers = self.host.submit(orders, n)?;
        // A session deleted while its turn was prepared: the engine saw the deletion too early, so
        // it is repeated.
        let deleted = sessions.into_iter().filter(|id| !self.sessions.holds(*id));
        deleted.for_each(|id| self.host.end_session(id));
        Ok(answers)
    }

    fn salt(&self, key: u64, text: Option<&str>) -> u64 {
        match (key, text) {
            (0, None) => 0,
            both => self.random.hash_one(both),
        }
    }

    fn noise(&self) -> u64 {
        self.random.hash_one(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn new_id(&self) -> String {
        format!("{:016x}", self.noise())
    }
}

/// Unix time in seconds.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.to_json();
        self.with_body(body)
    }
}

impl ApiError {
    fn with_body(self, body: Value) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Middleware needs the error value, not only its text.
        response.extensions_mut().insert(self);
        response
    }
}

async fn authorize(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let anthropic = matches!(request.uri().path(), MESSAGES | COUNT_TOKENS);
    let AccessControl { keys, origins, hosts } = &app.door;
    let known = hosts.check(request.uri(), request.headers(), origins).map_err(ApiError::unknown_host);
    let mut response = match known.and_then(|()| keys.check(request.headers())) {
        Ok(key) => {
            request.extensions_mut().insert(Caller(key));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    match response.extensions_mut().remove::<ApiError>() {
        Some(error) if anthropic => {
            let body = error.to_anthropic();
            error.with_body(body)
        }
        Some(error) => {
            response.extensions_mut().insert(error);
            response
        }
        None => response,
    }
}

fn event_stream(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Disables response buffering in proxies such as nginx.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

/// Readiness probe: the engine's thread runs, and completes steps while answers are pending.
async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    match app.host.trouble() {
        None => Ok(Json(json!({"status": "ok"}))),
        Some(why) => Err(ApiError::unavailable(why)),
    }
}

/// Prometheus metrics.
async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.host.metrics().page(app.names, &app.model.name, app.host.open());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn model_object(app: &App, name: &str) -> Value {
    let facts = &app.model.facts;
    json!({
        "id": name, "object": "model", "created": app.since, "owned_by": "kvasir",
        "max_model_len": facts.max_len, "vocab_size": facts.vocab,
    })
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let aliases = app.rules.aliases.iter().map(String::as_str).filter(|alias| *alias != "*");
    let names = std::iter::once(app.model.name.as_str()).chain(aliases);
    let data: Vec<Value> = names.map(|name| model_object(&app, name)).collect();
    Json(json!({"object": "list", "data": data}))
}

async fn model(
    State(app): State<Arc<App>>,
    axum::extract::Path(id): axum::extract::Path<String>,
) -> Result<Json<Value>, ApiError> {
    app.known_model(Some(&id))?;
    Ok(Json(model_object(&app, &id)))
}

async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, request::CHAT).await?;
    let chat = chat::Chat::begin(&app, key, &body.reader())?;
    drop(body);
    match chat.stream {
        Some(options) => Ok(event_stream(chat.events(options))),
        None => Ok(Json(chat.whole().await?).into_response()),
    }
}

async fn text_completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, request::COMPLETIONS).await?;
    let completion = completions::Completion::begin(&app, key, &body.reader())?;
    drop(body);
    match completion.stream {
        Some(options) => Ok(event_stream(completion.events(options))),
        None => Ok(Json(completion.whole().await?).into_response()),
    }
}

async fn responses_create(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, request::RESPONSES).await?;
    let response = responses::Responses::begin(&app, key, &body.reader())?;
    drop(body);
    match response.stream {
        true => Ok(event_stream(response.events())),
        false => Ok(Json(response.whole().await?).into_response()),
    }
}

async fn anthropic_messages(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, request::MESSAGES).await?;
    let message = messages::Messages::begin(&app, key, &body.reader())?;
    drop(body);
    match message.stream {
        true => Ok(event_stream(message.events())),
        false => Ok(Json(message.whole().await?).into_response()),
    }
}

async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, request::COUNT_TOKENS).await?;
    Ok(Json(messages::count(&app, &body.reader())?))
}

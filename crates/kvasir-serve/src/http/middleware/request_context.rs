//! Outer HTTP middleware: request id, access log, trace context, and the headers `x-kvasir-ignored`
//! and `x-kvasir-clamped`.

use crate::context::clamped_limit::ClampRecord;
use crate::context::connection_cut::ConnectionCut;
use crate::context::ignored_fields::IgnoredFields;
use crate::context::request_context::{RequestContext, sane_id};
use crate::http::app::App;
use crate::http::error_response::ErrorFormat;
use crate::http::transport::connection::Client;
use crate::http::transport::exchange::ClientGone;
use crate::report::event::ReportEvent;
use axum::{
    extract::{Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use std::{
    sync::Arc,
    time::{Instant, SystemTime},
};

/// Wraps a request: sets its task-local context, adds response headers, and reports its outcome.
pub(crate) async fn request_context(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let context = Arc::new(context_of(&app, &request));
    let is_anthropic = ErrorFormat::of(&request) == ErrorFormat::Anthropic;
    let mut response = context.clone().scope(next.run(request)).await;
    if let Ok(id) = HeaderValue::from_str(&context.id) {
        if is_anthropic {
            response.headers_mut().insert("request-id", id.clone());
        }
        response.headers_mut().insert("x-request-id", id);
    }
    for (name, value) in context.take_rate() {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    let ignored = context.ignored.names();
    if let Some(names) =
        (!ignored.is_empty()).then(|| HeaderValue::from_str(&ignored.join(", ")).ok()).flatten()
    {
        response.headers_mut().insert("x-kvasir-ignored", names);
    }
    let clamped = context.clamped.get();
    if let Some(value) = clamped.and_then(|clamped| HeaderValue::from_str(&clamped.to_string()).ok()) {
        response.headers_mut().insert("x-kvasir-clamped", value);
    }
    let reports = app.host.reports();
    let names = app.logged_fields.first_time(ignored);
    if !names.is_empty() && reports.is_wanted() {
        reports.send(ReportEvent::Ignored { context: context.clone(), names, at: SystemTime::now() });
    }
    if let Some(limit) = clamped.filter(|_| reports.is_wanted()) {
        reports.send(ReportEvent::Clamped { context: context.clone(), limit, at: SystemTime::now() });
    }
    if reports.is_wanted() {
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let status = response.status().as_u16();
        reports.send(ReportEvent::Answered { context, status, micros, at: SystemTime::now() });
    }
    response
}

fn context_of(app: &App, request: &Request) -> RequestContext {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    // Authentication happens in another layer; here the key only labels the request.
    let key = app.access.keys.check(request.headers()).unwrap_or(0);
    RequestContext {
        id: header("x-request-id").and_then(sane_id).map_or_else(|| app.new_id(), str::to_owned),
        key,
        key_name: app.access.keys.name(key),
        client: request.extensions().get::<Client>().map(|client| client.0),
        route: request.uri().path().chars().take(256).collect(),
        parent: header("traceparent").and_then(RequestContext::parse_parent),
        ignored: IgnoredFields::default(),
        clamped: ClampRecord::default(),
        rate: Arc::default(),
        gone: request.extensions().get::<ClientGone>().map(|gone| gone.0.clone()).unwrap_or_default(),
        connection: request.extensions().get::<Arc<ConnectionCut>>().cloned().unwrap_or_default(),
    }
}

//! Outer HTTP middleware: request id, access log, trace context, and the `x-kvasir-ignored`
//! header.

use crate::{
    context::{
        call::{Call, sane_id},
        ignored_fields::IgnoredFields,
    },
    http::app::App,
    report::event::Told,
};
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
pub(crate) async fn announce(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let call = Arc::new(call(&app, &request));
    let mut response = call.clone().scope(next.run(request)).await;
    if let Ok(id) = HeaderValue::from_str(&call.id) {
        response.headers_mut().insert("x-request-id", id);
    }
    let ignored = call.ignored.names();
    if let Some(names) =
        (!ignored.is_empty()).then(|| HeaderValue::from_str(&ignored.join(", ")).ok()).flatten()
    {
        response.headers_mut().insert("x-kvasir-ignored", names);
    }
    let reports = app.host.reports();
    let names = app.seen.first_time(ignored);
    if !names.is_empty() && reports.is_wanted() {
        reports.tell(Told::Ignored { call: call.clone(), names, at: SystemTime::now() });
    }
    if reports.is_wanted() {
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let status = response.status().as_u16();
        reports.tell(Told::Answered { call, status, micros, at: SystemTime::now() });
    }
    response
}

fn call(app: &App, request: &Request) -> Call {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    Call {
        id: header("x-request-id").and_then(sane_id).map_or_else(|| app.new_id(), str::to_owned),
        // Authentication happens in another layer; here the key only labels the request.
        key: app.door.keys.check(request.headers()).unwrap_or(0),
        route: request.uri().path().chars().take(256).collect(),
        parent: header("traceparent").and_then(Call::parse_parent),
        ignored: IgnoredFields::default(),
    }
}

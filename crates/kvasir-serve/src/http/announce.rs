use super::App;
use crate::{Call, call::sane_id, report::Told};
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

/// Makes a request known to logs and traces, and its id to its client.
pub(super) async fn announce(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let call = Arc::new(call(&app, &request));
    let mut response = call.clone().scope(next.run(request)).await;
    if let Ok(id) = HeaderValue::from_str(&call.id) {
        response.headers_mut().insert("x-request-id", id);
    }
    let reports = app.host.reports();
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
        // Whether it is let in is decided elsewhere.
        key: app.door.keys.check(request.headers()).unwrap_or(0),
        route: request.uri().path().chars().take(256).collect(),
        parent: header("traceparent").and_then(Call::parse_parent),
    }
}

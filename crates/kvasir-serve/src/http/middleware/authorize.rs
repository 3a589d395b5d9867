//! Middleware that checks the host name and the API key of a request.

use crate::error::ApiError;
use crate::http::access::AccessControl;
use crate::http::access::api_keys::{Caller, SeesAll, presents};
use crate::http::app::App;
use crate::http::error_response::ErrorFormat;
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// The error of a route that only some keys may use. `key` is the caller's, 0 without one.
fn reserved_route(access: &AccessControl, key: u64) -> ApiError {
    let required = match (&access.metrics_key, access.keys.has_admin()) {
        (Some(_), true) => "the key of --metrics-key or an admin's key",
        (Some(_), false) => "the key of --metrics-key",
        (None, _) => "an admin's key",
    };
    let message = format!("this route takes {required}");
    if key == 0 { ApiError { message, ..ApiError::unauthorized() } } else { ApiError::forbidden(message) }
}

/// Checks host name and API key; errors get the format of the client's API.
pub(crate) async fn authorize(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let format = ErrorFormat::of(&request);
    let AccessControl { keys, origins, hosts, metrics_key, .. } = &app.access;
    let known = hosts.check(request.uri(), request.headers(), origins).map_err(ApiError::unknown_host);
    let (is_metrics, is_steps) =
        (request.uri().path() == "/metrics", request.uri().path() == "/v1/engine/steps");
    let has_metrics_key = metrics_key.as_deref().is_some_and(|key| presents(request.headers(), key));
    let caller = known.and_then(|()| {
        if has_metrics_key && (is_metrics || is_steps) {
            return Ok((0, true));
        }
        let key = keys.check(request.headers())?;
        let sees_all = keys.is_admin(key) || keys.is_empty() && metrics_key.is_none();
        // Without a key for it, every API key opens `/metrics`, which names no key.
        let is_reserved = metrics_key.is_some() || keys.has_admin();
        let is_reserved = is_reserved && (is_metrics || is_steps && keys.is_empty());
        if is_reserved && !sees_all { Err(reserved_route(&app.access, key)) } else { Ok((key, sees_all)) }
    });
    let response = match caller {
        Ok((key, sees_all)) => {
            request.extensions_mut().insert(Caller(key));
            request.extensions_mut().insert(SeesAll(sees_all));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    format.apply(response)
}

//! Middleware that checks the host name and the API key of a request.

use crate::error::ApiError;
use crate::http::access::AccessControl;
use crate::http::access::api_keys::{Caller, presents};
use crate::http::app::App;
use crate::http::error_response::ErrorFormat;
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Checks host name and API key; errors get the format of the client's API.
pub(crate) async fn authorize(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let format = ErrorFormat::of(&request);
    let AccessControl { keys, origins, hosts, metrics_key, .. } = &app.access;
    let known = hosts.check(request.uri(), request.headers(), origins).map_err(ApiError::unknown_host);
    let observed = matches!(request.uri().path(), "/metrics" | "/v1/engine/steps");
    let caller = known.and_then(|()| match metrics_key.as_deref().filter(|_| observed) {
        Some(key) if presents(request.headers(), key) => Ok(0),
        Some(_) => Err(ApiError::unauthorized()),
        None => keys.check(request.headers()),
    });
    let response = match caller {
        Ok(key) => {
            request.extensions_mut().insert(Caller(key));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    format.apply(response)
}

//! Middleware that checks the host name and the API key of a request.

use crate::error::ApiError;
use crate::http::access::AccessControl;
use crate::http::access::api_keys::Caller;
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
    let AccessControl { keys, origins, hosts } = &app.access;
    let known = hosts.check(request.uri(), request.headers(), origins).map_err(ApiError::unknown_host);
    let response = match known.and_then(|()| keys.check(request.headers())) {
        Ok(key) => {
            request.extensions_mut().insert(Caller(key));
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    format.apply(response)
}

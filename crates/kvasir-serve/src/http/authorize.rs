//! Middleware that checks the host name and the API key of a request.

use super::{
    access::AccessControl,
    app::App,
    auth::Caller,
    messages::{COUNT_TOKENS_PATH, MESSAGES_PATH},
};
use crate::ApiError;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

pub(super) async fn authorize(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let anthropic = matches!(request.uri().path(), MESSAGES_PATH | COUNT_TOKENS_PATH);
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

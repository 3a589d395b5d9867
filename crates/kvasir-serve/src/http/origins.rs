//! CORS: allowed origins, preflight responses and response headers.

use super::App;
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Allowed cross origins; none by default. A browser lets a page read only what its origin was
/// granted, and sends a preflight before JSON or a key.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    any: bool,
    named: Vec<HeaderValue>,
}

/// Origin of pages without one: files, sandboxed frames.
const NONE: &str = "null";
/// Response headers that a page may read beyond the safelisted ones.
const EXPOSED: &str = "x-request-id, retry-after";
const METHODS: &str = "GET, POST, DELETE";
/// Cache time of a preflight response, in seconds.
const REMEMBERED: &str = "600";

impl Origins {
    /// Parses origins as browsers write them (`https://example.org`, `http://localhost:3000`,
    /// `null`), or `*` for all.
    pub fn parse(origins: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for origin in origins {
            if origin == "*" {
                parsed.any = true;
                continue;
            }
            let wrong =
                || format!("`{origin}` is neither `*` nor an origin such as `https://example.org:8443`");
            let value = HeaderValue::from_str(origin).map_err(|_| wrong())?;
            let host = origin.split_once("://").filter(|(scheme, _)| !scheme.is_empty());
            let is_host = |host: &str| {
                !host.is_empty() && !host.contains(|c: char| "/?#@*, ".contains(c) || c.is_uppercase())
            };
            if origin != NONE && !host.is_some_and(|(_, host)| is_host(host)) {
                return Err(wrong());
            }
            parsed.named.push(value);
        }
        Ok(parsed)
    }

    fn are_none(&self) -> bool {
        !self.any && self.named.is_empty()
    }

    /// Whether an allowed origin has this host (with its port, unless it is the default).
    pub(super) fn name_host(&self, host: &str) -> bool {
        let is_of = |origin: &HeaderValue| {
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(_, of)| of == host)
        };
        self.any || self.named.iter().any(is_of)
    }

    /// Value of `access-control-allow-origin` for a request; `None` if its origin is not allowed.
    fn answer(&self, asked: &HeaderMap) -> Option<HeaderValue> {
        let origin = asked.get(header::ORIGIN)?;
        match self.any {
            true => Some(HeaderValue::from_static("*")),
            false => self.named.contains(origin).then(|| origin.clone()),
        }
    }
}

/// CORS middleware: answers preflight requests, which carry no key, and adds headers to all
/// responses.
pub(super) async fn share(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origins = &app.door.origins;
    if origins.are_none() {
        return next.run(request).await;
    }
    let allowed = origins.answer(request.headers());
    let asks_before = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = match (&allowed, asks_before) {
        (Some(_), true) => may_ask(request.headers()),
        _ => next.run(request).await,
    };
    let headers = response.headers_mut();
    if !origins.any {
        // A shared cache must not serve one origin's response to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(allowed) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
    response
}

/// Preflight response. Echoes the requested header names: clients send their own
/// (`x-stainless-os`), and `*` would exclude `authorization`.
fn may_ask(asked: &HeaderMap) -> Response {
    let fixed = |name: HeaderName, text: &'static str| (name, HeaderValue::from_static(text));
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().extend([
        fixed(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        fixed(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED),
    ]);
    if let Some(names) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_written_as_browsers_write_it() {
        let parse = |text: &str| Origins::parse(&[text.to_owned()]).is_ok();
        for right in [
            "*",
            "null",
            "https://example.org",
            "http://localhost:3000",
            "http://[::1]:80",
            "app://obsidian.md",
        ] {
            assert!(parse(right), "{right}");
        }
        let wrong = [
            "",
            "example.org",
            "https://",
            "https://example.org/",
            "https://*.example.org",
            "://x",
            "https://Example.org",
            "https://a b",
            "https://a\n",
        ];
        for wrong in wrong {
            assert!(!parse(wrong), "{wrong}");
        }
    }
}

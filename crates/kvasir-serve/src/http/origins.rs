use super::App;
use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// The origins besides the server's own whose pages may ask it; none unless named. A browser lets a page read only what its
/// origin was allowed to, and asks before it sends JSON or a key.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    any: bool,
    named: Vec<HeaderValue>,
}

/// Origin of a page that has none of its own: a file, or a frame in a sandbox.
const NONE: &str = "null";
/// What a page may read of an answer's head beside what every page may.
const EXPOSED: &str = "x-request-id, retry-after";
const METHODS: &str = "GET, POST, DELETE";
/// Seconds for which a browser need not ask again.
const REMEMBERED: &str = "600";

impl Origins {
    /// These: each as a browser writes it (`https://example.org`, `http://localhost:3000`, `null`), or `*` for all.
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

    /// Whether the pages of a host, with its port where that is not the usual one, are among them.
    pub(super) fn name_host(&self, host: &str) -> bool {
        let is_of = |origin: &HeaderValue| {
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(_, of)| of == host)
        };
        self.any || self.named.iter().any(is_of)
    }

    /// What an answer to a page of this origin says; nothing where it is not allowed.
    fn answer(&self, asked: &HeaderMap) -> Option<HeaderValue> {
        let origin = asked.get(header::ORIGIN)?;
        match self.any {
            true => Some(HeaderValue::from_static("*")),
            false => self.named.contains(origin).then(|| origin.clone()),
        }
    }
}

/// Answers browsers that ask whether a page may ask, which they do without a key, and tells them so with every answer.
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
        // A cache must not give one origin's answer to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(allowed) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
    response
}

/// Clients send headers of their own (`x-stainless-os`, `anthropic-version`), and `*` would leave out `authorization`: whatever was asked
/// for is allowed.
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

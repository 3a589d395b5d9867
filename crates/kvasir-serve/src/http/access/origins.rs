//! Allowed origins of cross-origin requests (CORS).

use axum::http::{HeaderMap, HeaderValue, header};

/// Allowed cross origins; none by default. A browser lets a page read only what its origin was
/// granted, and sends a preflight before JSON or a key.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    pub(crate) any: bool,
    named: Vec<HeaderValue>,
}

/// Origin of pages without one: files, sandboxed frames.
const NONE: &str = "null";

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

    pub(crate) fn is_empty(&self) -> bool {
        !self.any && self.named.is_empty()
    }

    /// Whether an allowed origin has this host (with its port, unless it is the default).
    pub(crate) fn have_host(&self, host: &str) -> bool {
        let is_of = |origin: &HeaderValue| {
            origin.to_str().ok().and_then(|origin| origin.split_once("://")).is_some_and(|(_, of)| of == host)
        };
        self.any || self.named.iter().any(is_of)
    }

    /// Value of `access-control-allow-origin` for a request; `None` if its origin is not allowed.
    pub(crate) fn allow_origin(&self, requested: &HeaderMap) -> Option<HeaderValue> {
        let origin = requested.get(header::ORIGIN)?;
        if self.any {
            Some(HeaderValue::from_static("*"))
        } else {
            self.named.contains(origin).then(|| origin.clone())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_do() {
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

//! Allowed origins of cross-origin requests (CORS).

use axum::http::{HeaderMap, HeaderValue, header};

/// Allowed cross origins; none by default. A browser lets a page read only what its origin was
/// granted, and sends a preflight before JSON or a key.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    pub(crate) any: bool,
    /// Allows the origins of [`is_local`].
    local: bool,
    named: Vec<HeaderValue>,
}

/// Origin of pages without one: files, sandboxed frames.
const NONE: &str = "null";
/// Option value that allows the origins of [`is_local`].
const LOCAL: &str = "localhost";
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Whether an origin is that of pages of this machine: `http` or `https`, at any port.
fn is_local(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    let is_port = |rest: &str| {
        rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
    };
    host.is_some_and(|host| LOCAL_HOSTS.iter().any(|own| host.strip_prefix(own).is_some_and(is_port)))
}

impl Origins {
    /// Parses origins as browsers write them (`https://example.org`, `http://localhost:3000`,
    /// `null`), `localhost` for those of this machine at any port, or `*` for all.
    pub fn parse(origins: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for origin in origins {
            if origin == "*" {
                parsed.any = true;
                continue;
            }
            if origin == LOCAL {
                parsed.local = true;
                continue;
            }
            let wrong = || {
                format!(
                    "`{origin}` is neither `*` nor `{LOCAL}` nor an origin such as `https://example.org:8443`"
                )
            };
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
        !self.any && !self.local && self.named.is_empty()
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
            return Some(HeaderValue::from_static("*"));
        }
        let is_local_origin = self.local && origin.to_str().is_ok_and(is_local);
        (is_local_origin || self.named.contains(origin)).then(|| origin.clone())
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
            "localhost",
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

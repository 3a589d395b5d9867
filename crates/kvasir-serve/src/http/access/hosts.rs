//! Host header validation against DNS rebinding, for servers without API keys.

use crate::http::access::origins::Origins;
use axum::http::{HeaderMap, Uri, header};
use std::net::IpAddr;

/// Suffixes of host names outside the public DNS. Single-label names count as private, too.
const PRIVATE: [&str; 5] = [".localhost", ".local", ".internal", ".home.arpa", ".lan"];

/// Host names accepted by a server without API keys.
///
/// DNS rebinding: a web page can point its own name at the server's address, and then shares the
/// server's origin in the browser. That would let any page use a server that listens on localhost
/// only. Such a page needs a public name, which the browser sends as `host`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// Any name.
    #[default]
    Any,
    /// IP addresses, names of this machine and of private networks, and the hosts of configured
    /// [`Origins`].
    Private,
}

impl Hosts {
    /// Accepts the request's host name, or returns it as the error.
    pub(crate) fn check<'r>(
        self,
        uri: &'r Uri,
        headers: &'r HeaderMap,
        origins: &Origins,
    ) -> Result<(), &'r str> {
        let header = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
        // An absolute URI has a host of its own; neither may be public.
        let hosts = [uri.authority().map(|authority| authority.as_str()), header];
        let is_public = |host: &&str| !is_private(host) && !origins.have_host(host);
        match hosts.into_iter().flatten().find(is_public) {
            Some(host) if self == Self::Private => Err(host),
            _ => Ok(()),
        }
    }
}

/// Whether a host (with optional port) cannot be the name of a public web page.
fn is_private(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    address.parse::<IpAddr>().is_ok() || !name.contains('.') || PRIVATE.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn the_host_of_an_absolute_uri_counts_like_the_header() {
        let check = |uri: &str, host: &'static str| {
            let uri: Uri = uri.parse().unwrap();
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            Hosts::Private.check(&uri, &headers, &Origins::default()).map_err(str::to_owned)
        };
        assert_eq!(check("/live", "localhost"), Ok(()));
        assert_eq!(check("http://localhost/live", "localhost"), Ok(()));
        assert_eq!(check("http://localhost/live", "evil.example"), Err("evil.example".into()));
        assert_eq!(check("http://evil.example/live", "localhost"), Err("evil.example".into()));
    }

    #[test]
    fn only_public_names_are_refused() {
        for private in [
            "127.0.0.1:8000",
            "127.0.0.1",
            "[::1]:8000",
            "[::1]",
            "192.168.1.4:80",
            "localhost:8000",
            "LOCALHOST",
            "chat.localhost:1",
            "mybox:8000",
            "mybox.local",
            "host.docker.internal:8000",
            "",
        ] {
            assert!(is_private(private), "{private}");
        }
        for public in [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example:8000",
            "evil.example.:80",
            "127.0.0.1.evil.example",
            "evil.example:port",
            "a.b:1:2",
        ] {
            assert!(!is_private(public), "{public}");
        }
    }
}

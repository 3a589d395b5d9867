use super::Origins;
use axum::http::{HeaderMap, Uri, header};
use std::net::IpAddr;

/// Ends of names that the public name service does not know, besides those of a single word.
const PRIVATE: [&str; 5] = [".localhost", ".local", ".internal", ".home.arpa", ".lan"];

/// By which names a server that asks for no key may be called.
///
/// A page may give its own name a new address, that of the server, and is then of the server's origin for the browser: whoever opens it lets
/// it use a server that only listens on their machine. The page has to have a public name for that, and the browser says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hosts {
    /// By any.
    #[default]
    Any,
    /// By addresses, by names of this machine and of private networks, and by those of [`Origins`] that were named.
    Private,
}

impl Hosts {
    /// Whether a request may call the server by the name that it does; if not, that name.
    pub(super) fn check<'r>(
        self,
        uri: &'r Uri,
        headers: &'r HeaderMap,
        origins: &Origins,
    ) -> Result<(), &'r str> {
        let said = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
        match uri.authority().map(|authority| authority.as_str()).or(said) {
            Some(host) if self == Self::Private && !is_private(host) && !origins.name_host(host) => Err(host),
            _ => Ok(()),
        }
    }
}

/// Whether no page of the public network can have this name, which may have a port.
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

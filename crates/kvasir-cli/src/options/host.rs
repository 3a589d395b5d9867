//! The address that a server binds, as an IP address or a host name.

use std::net::{IpAddr, ToSocketAddrs};

/// Parses an IP address or resolves a host name, preferring IPv4.
pub(crate) fn host(text: &str) -> Result<IpAddr, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse() {
        return Ok(address);
    }
    if text == "*" {
        return Err("0.0.0.0 is every IPv4 address of this machine, :: every one of IPv6 too".into());
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(format!("a host has no {scheme}://; give 127.0.0.1, 0.0.0.0 or a host name"));
    }
    if let Some((host, port)) = text.rsplit_once(':')
        && port.parse::<u16>().is_ok()
    {
        return Err(format!("the port has an option of its own: --host {host} --port {port}"));
    }
    let unknown =
        |why: String| format!("no address of this name: {why}; give 127.0.0.1, 0.0.0.0 or a host name");
    let found = (text, 0).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| unknown("it resolves to nothing".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_understood() {
        for (text, address) in [("0.0.0.0", "0.0.0.0"), ("::1", "::1"), ("[::1]", "::1")] {
            assert_eq!(host(text), Ok(address.parse().unwrap()), "{text}");
        }
        assert!(host("localhost").is_ok_and(|address| address.is_loopback()));
    }

    #[test]
    fn other_texts_are_answered_with_what_to_type() {
        for (text, part) in [
            ("127.0.0.1:8000", "--host 127.0.0.1 --port 8000"),
            ("http://localhost", "no http://"),
            ("*", "0.0.0.0"),
            ("no such host", "0.0.0.0"),
        ] {
            let why = host(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}

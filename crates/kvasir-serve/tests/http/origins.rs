//! CORS preflight and response headers, and host validation against DNS rebinding.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, ApiKey, Hosts, Keys, Origins};
use kvasir_sim::Toy;
use std::time::Duration;

const PAGE: &str = "https://page.example";
const ROUTE: &str = "/v1/chat/completions";

fn server(origins: &[&str]) -> Server {
    let origins: Vec<String> = origins.iter().map(|origin| origin.to_string()).collect();
    let (keys, origins) = (
        Keys::new(vec![ApiKey { name: None, secret: "secret".into(), is_admin: false }]),
        Origins::parse(&origins).unwrap(),
    );
    let access = AccessControl { keys, origins, ..AccessControl::default() };
    Server::behind(Toy::new(), CacheKind::Radix, 512, access, Duration::from_secs(3600))
}

/// Status of a response to a page of this origin, and the value of its header `name`.
fn response_header(
    server: &Server,
    origin: &str,
    (method, path): (&str, &str),
    name: &str,
) -> (u16, Option<String>) {
    let mut headers = vec![("origin", origin)];
    if method == "OPTIONS" {
        headers.push(("access-control-request-method", "POST"));
        headers.push(("access-control-request-headers", "authorization,content-type,x-stainless-os"));
    } else {
        headers.push(("authorization", "Bearer secret"));
    }
    let (status, answered) = server.head(method, path, &headers);
    (status, answered.get(name).map(|value| value.to_str().unwrap().to_owned()))
}

#[test]
fn allowed_origins_get_preflight_without_a_key() {
    for (origins, allowed) in [(["http://other.example", PAGE], PAGE), (["*", "http://other.example"], "*")] {
        let server = server(&origins);
        let preflight = |name| response_header(&server, PAGE, ("OPTIONS", ROUTE), name);
        assert_eq!(preflight("access-control-allow-origin"), (200, Some(allowed.into())));
        assert_eq!(preflight("access-control-allow-methods").1.unwrap(), "GET, POST, DELETE");
        let headers = preflight("access-control-allow-headers").1.unwrap();
        assert_eq!(headers, "authorization,content-type,x-stainless-os");
        assert_eq!(preflight("vary").1.as_deref(), (allowed != "*").then_some("origin"));
        // Error responses carry the headers, too: a page could not read them otherwise.
        for (request, status) in
            [(("GET", "/v1/models"), 200), (("POST", ROUTE), 415), (("GET", "/none"), 404)]
        {
            let answer = response_header(&server, PAGE, request, "access-control-allow-origin");
            assert_eq!(answer, (status, Some(allowed.into())));
            assert!(response_header(&server, PAGE, request, "access-control-expose-headers").1.is_some());
        }
        let (status, head) = server.head("GET", "/v1/models", &[("origin", PAGE)]);
        assert!(
            status == 401 && head.contains_key("access-control-allow-origin"),
            "a key is still asked for"
        );
    }
}

#[test]
fn other_origins_get_no_cors_headers() {
    let others = ["http://page.example", "https://page.example:8443", "localhost"];
    for (origins, preflight) in [(&[][..], 401), (&others[..], 200)] {
        let server = server(origins);
        for request in [("OPTIONS", ROUTE), ("GET", "/v1/models"), ("GET", "/live")] {
            let (status, answer) = response_header(&server, PAGE, request, "access-control-allow-origin");
            assert_eq!(answer, None);
            assert_eq!(status, if request.0 == "OPTIONS" { preflight } else { 200 });
        }
    }
}

#[test]
fn localhost_allows_this_machine_at_any_port() {
    let server = server(&["localhost"]);
    let allowed = |origin| {
        response_header(&server, origin, ("OPTIONS", ROUTE), "access-control-allow-origin").1.is_some()
    };
    for origin in ["http://localhost", "https://localhost:8443", "http://127.0.0.1:3000", "http://[::1]:80"] {
        assert!(allowed(origin), "{origin}");
    }
    for origin in [
        "http://notlocalhost",
        "http://localhost.example",
        "http://localhost:80.example",
        "http://localhost:",
        "http://127.0.0.11",
        "ftp://localhost",
        "null",
    ] {
        assert!(!allowed(origin), "{origin}");
    }
}

#[test]
fn options_without_origin_is_method_not_allowed() {
    let server = server(&["*"]);
    let (status, head) = server.head("OPTIONS", ROUTE, &[("authorization", "Bearer secret")]);
    assert!(status == 405 && !head.contains_key("access-control-allow-origin"), "{status}");
}

/// DNS rebinding: a page whose name resolves to this machine shares the server's origin.
#[test]
fn keyless_servers_reject_public_host_names() {
    let origins = Origins::parse(&["http://chat.example:8000".into()]).unwrap();
    let access = AccessControl { origins, hosts: Hosts::Private, ..AccessControl::default() };
    let server = Server::behind(Toy::new(), CacheKind::Radix, 512, access, Duration::from_secs(3600));
    let called = |host| server.head("GET", "/v1/models", &[("host", host)]).0;
    assert_eq!(called("127.0.0.1:8000"), 200);
    assert_eq!(called("localhost:8000"), 200);
    assert_eq!(called("chat.example:8000"), 200);
    assert_eq!(called("evil.example:8000"), 403);
    assert_eq!(server.head("GET", "/live", &[("host", "evil.example:8000")]).0, 200);
    assert_eq!(server.head("GET", "http://evil.example:8000/v1/models", &[("host", "localhost")]).0, 403);
}

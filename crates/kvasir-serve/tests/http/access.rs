//! Which routes need which key.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, ApiKey, Keys};
use kvasir_sim::Toy;
use std::time::Duration;

fn server(access: AccessControl) -> Server {
    let keys = Keys::new(vec![ApiKey { name: None, secret: "user".into(), is_admin: false }]);
    Server::behind(Toy::new(), CacheKind::Paged, 256, AccessControl { keys, ..access }, Duration::MAX)
}

#[test]
fn the_metrics_key_opens_metrics_alone() {
    let server = server(AccessControl { metrics_key: Some("ops".into()), ..AccessControl::default() });
    let status = |path: &str, key: &str| server.send("GET", path, key, "").0;
    assert_eq!(
        (status("/metrics", "ops"), status("/metrics", "user"), status("/metrics", "")),
        (200, 403, 401)
    );
    let why = |server: &Server, key: &str| {
        server.send("GET", "/metrics", key, "").1["error"]["message"].as_str().unwrap().to_owned()
    };
    assert!(why(&server, "user").ends_with("the key of --metrics-key"));
    let steps = |server: &Server, key: &str| server.head("GET", "/v1/engine/steps", &[("x-api-key", key)]).0;
    // An API key shows the steps of its own requests.
    assert_eq!((steps(&server, "ops"), steps(&server, "user"), steps(&server, "")), (200, 200, 401));
    assert_eq!((status("/v1/models", "user"), status("/v1/models", "ops")), (200, 401));
    let open = AccessControl { metrics_key: Some("ops".into()), ..AccessControl::default() };
    let open = Server::behind(Toy::new(), CacheKind::Paged, 256, open, Duration::MAX);
    assert_eq!(
        (steps(&open, "ops"), steps(&open, "")),
        (200, 401),
        "without API keys, all requests are one's own"
    );
    assert!(why(&open, "").ends_with("the key of --metrics-key"));
}

#[test]
fn admin_keys_open_everything() {
    let key = |secret: &str, is_admin| ApiKey { name: None, secret: secret.into(), is_admin };
    let keys = Keys::new(vec![key("user", false), key("boss", true)]);
    let access = AccessControl { keys, ..AccessControl::default() };
    let server = Server::behind(Toy::new(), CacheKind::Paged, 256, access, Duration::MAX);
    let status = |path: &str, key: &str| server.head("GET", path, &[("x-api-key", key)]).0;
    assert!(
        server.send("GET", "/metrics", "user", "").1["error"]["message"] == "this route takes an admin's key"
    );
    for (path, user) in [("/metrics", 403), ("/v1/engine/steps", 200), ("/v1/models", 200)] {
        assert_eq!((status(path, "boss"), status(path, "user")), (200, user), "{path}");
    }
}

#[test]
fn health_may_be_open() {
    for (open_health, want) in [(false, 401), (true, 200)] {
        let server = server(AccessControl { open_health, ..AccessControl::default() });
        for path in ["/health", "/ready", "/version"] {
            assert_eq!(server.send("GET", path, "", "").0, want, "{path}");
            assert_eq!(server.send("GET", path, "user", "").0, 200, "{path}");
        }
        assert_eq!(server.send("GET", "/v1/models", "", "").0, 401);
        assert_eq!(server.send("GET", "/ping", "", "").0, 200);
    }
}

//! Which routes need which key.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, ApiKey, Keys};
use kvasir_sim::Toy;
use std::time::Duration;

fn server(access: AccessControl) -> Server {
    let keys = Keys::new(vec![ApiKey { name: None, secret: "user".into() }]);
    Server::behind(Toy::new(), CacheKind::Paged, 256, AccessControl { keys, ..access }, Duration::MAX)
}

#[test]
fn the_metrics_key_opens_metrics_alone() {
    let server = server(AccessControl { metrics_key: Some("ops".into()), ..AccessControl::default() });
    let status = |path: &str, key: &str| server.send("GET", path, key, "").0;
    assert_eq!(
        (status("/metrics", "ops"), status("/metrics", "user"), status("/metrics", "")),
        (200, 401, 401)
    );
    assert_eq!(status("/v1/engine/steps", "user"), 401);
    assert_eq!((status("/v1/models", "user"), status("/v1/models", "ops")), (200, 401));
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

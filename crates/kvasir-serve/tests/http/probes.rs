//! `/live` and `/health` are answered while silent connections hold every connection place.

use super::server::Server;
use kvasir_kv::CacheKind;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Connection limit of the listeners under test.
const PLACES: usize = 4;
/// Silent connections: more than all places and the reserve together.
const SILENT: usize = PLACES + 64 + 20;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The whole response to a request without `connection: close`.
fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> String {
    let mut stream = connect(address);
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n").unwrap();
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(read.is_ok() || !answer.is_empty(), "{method} {path}: {read:?}");
    answer
}

fn status(address: SocketAddr, path: &str, headers: &str) -> u16 {
    let answer = request(address, "GET", path, headers);
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn silent(address: SocketAddr) -> Vec<TcpStream> {
    (0..SILENT).map(|_| connect(address)).collect()
}

#[test]
fn probes_are_answered_beyond_silent_connections() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let address = server.listen(PLACES);
    let opened = Instant::now();
    let mut silent = silent(address);
    for _ in 0..100 {
        assert_eq!(status(address, "/live", ""), 200);
        assert_eq!(status(address, "/health", ""), 200);
    }
    let answer = request(address, "GET", "/v1/models", "").to_lowercase();
    assert!(answer.starts_with("http/1.1 503") && answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
    assert!(answer.contains("\r\nconnection: close\r\n") && answer.contains("too many connections"));
    // The oldest of the reserve were dropped for newer ones, the others by timeout. Ordinary
    // connections stay.
    for reserve in silent.split_off(PLACES) {
        assert!(matches!((&reserve).read(&mut [0]), Ok(0) | Err(_)));
    }
    assert!(opened.elapsed() < Duration::from_secs(15), "{:?}", opened.elapsed());
    for ordinary in &silent {
        ordinary.set_nonblocking(true).unwrap();
        assert!((&*ordinary).read(&mut [0]).is_err(), "an ordinary connection has its usual time");
    }
    // Freed places are usable again.
    drop(silent);
    while status(address, "/v1/models", "Connection: close\r\n") != 200 {}
}

#[test]
fn reserve_probes_need_the_same_key() {
    let server = Server::start(CacheKind::Radix, 512, &["secret"]);
    let address = server.listen(PLACES);
    let _silent = silent(address);
    assert_eq!(status(address, "/live", ""), 200);
    assert_eq!(status(address, "/health", ""), 401);
    assert_eq!(status(address, "/health", "Authorization: Bearer secret\r\n"), 200);
}

#[test]
fn probe_listener_has_no_other_routes() {
    for (keys, metrics) in [(&[][..], 200), (&["secret"][..], 404)] {
        let server = Server::start(CacheKind::Radix, 512, keys);
        let (main, probes) = (server.listen(PLACES), server.listen_for_probes(PLACES));
        let _silent = silent(main);
        let close = "Connection: close\r\n";
        assert_eq!(status(probes, "/live", close), 200);
        assert_eq!(status(probes, "/health", close), 200);
        assert_eq!(status(probes, "/metrics", close), metrics);
        assert_eq!(status(probes, "/v1/models", close), 404);
        assert_eq!(status(probes, "/", close), 404);
        // The probe listener's own places may be exhausted, too.
        let _silent = silent(probes);
        assert_eq!(status(probes, "/live", ""), 200);
        assert_eq!(status(probes, "/health", ""), 200);
    }
}

#[test]
fn a_bound_port_answers_while_the_model_loads() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (address, loading) = server.listen_loading();
    assert_eq!(status(address, "/live", ""), 200);
    let health = request(address, "GET", "/health", "");
    assert!(health.starts_with("HTTP/1.1 503") && health.contains("\"status\":\"loading\""), "{health}");
    let models = request(address, "GET", "/v1/models", "");
    assert!(models.starts_with("HTTP/1.1 503") && models.contains("the model is loading"), "{models}");
    server.finish_loading(loading);
    let close = "Connection: close\r\n";
    assert_eq!([status(address, "/health", close), status(address, "/v1/models", close)], [200, 200]);
}

/// The response to a request on an open connection.
fn exchange(mut stream: TcpStream, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    assert!(read.is_ok() || !answer.is_empty(), "{path}: {read:?}");
    answer
}

/// A connection that was accepted while the model loaded gets its response, and later ones the app's.
#[test]
fn connections_opened_while_the_model_loads_are_answered() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (address, loading) = server.listen_loading();
    let early = connect(address);
    // Connections are accepted in order, so the early one has been accepted.
    assert_eq!(status(address, "/live", ""), 200);
    server.finish_loading(loading);
    assert_eq!(status(address, "/health", "Connection: close\r\n"), 200);
    let answer = exchange(early, "/live");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

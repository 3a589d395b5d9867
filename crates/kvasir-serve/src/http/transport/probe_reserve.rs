//! Reserve of connection permits for liveness and readiness probes beyond `--max-connections`.
//!
//! A connection beyond the limit gets one of [`MAX_PENDING`] while its request head is read:
//!
//! 1. A request for `/live` or `/health` is answered, and the connection closed.
//! 2. Any other request gets `503` with `Retry-After`, and the connection is closed.
//! 3. A connection that is silent for [`HEAD_TIMEOUT`] is dropped. If the reserve is full, the
//!    oldest connection without a complete head is dropped for the newest, so silent connections
//!    cannot starve probes.
//!
//! `tests/http/probes.rs` guards this.

use crate::http::transport::connection::{Connection, Stream};
use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

/// Connections whose head is pending; also the number of probes being answered at once.
const MAX_PENDING: usize = 64;
/// Connections that receive `503` at once; one more is closed without a response.
const MAX_REJECTING: usize = 256;
/// Time limit of a head (including TLS handshake), and of a probe to read its response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a probe's request head, in bytes.
const MAX_HEAD: usize = 8 << 10;
/// Request lines of probes, as prefixes.
const PROBES: [&[u8]; 8] = [
    b"GET /live ",
    b"GET /live?",
    b"GET /health ",
    b"GET /health?",
    b"HEAD /live ",
    b"HEAD /live?",
    b"HEAD /health ",
    b"HEAD /health?",
];
/// Response to other requests.
const SERVICE_UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\nContent-Length: 111\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\"too many connections; try again\",\"type\":\"server_error\",\"param\":null,\"code\":\"unavailable\"}}";

/// Classification of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadKind {
    Probe,
    Other,
}

/// Handles connections beyond the limit.
pub(crate) struct ProbeReserve {
    /// Tasks that read a head, oldest first.
    waiting: VecDeque<AbortHandle>,
    answering: Arc<Semaphore>,
    rejecting: Arc<Semaphore>,
    /// Passes probes to the server loop.
    probes: mpsc::Sender<(Connection, SocketAddr)>,
}

impl ProbeReserve {
    pub(crate) fn new(probes: mpsc::Sender<(Connection, SocketAddr)>) -> Self {
        let permits = |count| Arc::new(Semaphore::new(count));
        Self {
            waiting: VecDeque::new(),
            answering: permits(MAX_PENDING),
            rejecting: permits(MAX_REJECTING),
            probes,
        }
    }

    /// Reads the request head, then rejects the connection or passes it on. `read_timeout` is
    /// the time a rejected client has to read the `503`.
    pub(crate) fn take(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        tls: Option<TlsAcceptor>,
        read_timeout: Duration,
    ) {
        self.waiting.retain(|task| !task.is_finished());
        if self.waiting.len() >= MAX_PENDING
            && let Some(oldest) = self.waiting.pop_front()
        {
            oldest.abort();
        }
        let (answering, rejecting, probes) =
            (self.answering.clone(), self.rejecting.clone(), self.probes.clone());
        let task = tokio::spawn(async move {
            let Ok(Ok((stream, head, kind))) = timeout(HEAD_TIMEOUT, read_head(stream, tls)).await else {
                return;
            };
            match kind {
                HeadKind::Probe => {
                    // Dropped if too many probes are in progress, or during shutdown.
                    if let Ok(permit) = answering.try_acquire_owned() {
                        let _ =
                            probes.try_send((Connection::probe(stream, head, HEAD_TIMEOUT, permit), from));
                    }
                }
                HeadKind::Other => {
                    // A separate task: this one may be aborted to free its permit.
                    if let Ok(permit) = rejecting.try_acquire_owned() {
                        tokio::spawn(timeout(read_timeout, reject(stream, permit)));
                    }
                }
            }
        });
        self.waiting.push_back(task.abort_handle());
    }
}

/// Reads until the head is classified; a probe's head is read completely.
async fn read_head(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<(Stream, Vec<u8>, HeadKind)> {
    let mut stream = match tls {
        None => Stream::Plain(stream),
        Some(acceptor) => Stream::Tls(Box::new(acceptor.accept(stream).await?)),
    };
    let mut head = Vec::new();
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(kind) = classify(&head) {
            return Ok((stream, head, kind));
        }
    }
}

/// Classifies a partial head; `None` while undecided.
fn classify(head: &[u8]) -> Option<HeadKind> {
    let may_be_probe = PROBES.iter().any(|probe| head.starts_with(probe) || probe.starts_with(head));
    let is_whole = || head.windows(4).any(|end| end == b"\r\n\r\n");
    match () {
        () if !may_be_probe || head.len() > MAX_HEAD => Some(HeadKind::Other),
        () if is_whole() => Some(HeadKind::Probe),
        () => None,
    }
}

/// Sends `503` and drains the connection: a client that is closed while it writes would not read
/// the response.
async fn reject(mut stream: Stream, _permit: OwnedSemaphorePermit) -> io::Result<()> {
    stream.write_all(SERVICE_UNAVAILABLE).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_matches_the_body() {
        let text = std::str::from_utf8(SERVICE_UNAVAILABLE).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }

    #[test]
    fn only_complete_probe_heads_are_probes() {
        let probes = ["GET /live HTTP/1.1\r\n\r\n", "HEAD /health?x HTTP/1.0\r\nHost: x\r\n\r\n"];
        for head in probes {
            assert_eq!(classify(head.as_bytes()), Some(HeadKind::Probe));
            for end in 1..head.len() - 1 {
                assert_eq!(classify(&head.as_bytes()[..end]), None, "{head:?} up to {end}");
            }
        }
        for other in ["GET /livex HTTP/1.1", "GET /v1", "POST", "GET /health/../v1 HTTP/1.1", "\x16\x03\x01"]
        {
            assert_eq!(classify(other.as_bytes()), Some(HeadKind::Other), "{other}");
        }
        assert_eq!(classify(&[b"GET /live ".as_slice(), &[b'x'; MAX_HEAD]].concat()), Some(HeadKind::Other));
    }
}

//! Connection places for liveness and readiness probes when the ordinary ones are taken.
//!
//! A connection beyond `--max-connections` gets one of [`PLACES`] while the head of its request is
//! read:
//!
//! 1. It asks for `/live` or `/health`: it is answered, and closed after that.
//! 2. It asks for anything else: it gets `503` with `Retry-After`, and is closed.
//! 3. It says nothing for [`PATIENCE`]: it is dropped. If the reserve is full, the oldest
//!    connection that has not sent its head is dropped for the newest, so silent connections never
//!    keep a probe out.
//!
//! `tests/http/probes.rs` guards this.

use super::gate::{Connection, Stream};
use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::AbortHandle,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

/// Connections whose head is waited for, and as many probes that are being answered.
const PLACES: usize = 64;
/// Connections that are told `503` at once; one more is closed without an answer.
const TOLD: usize = 256;
/// How long a connection may take to send its head, TLS included, and a probe to take its answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest head of a probe's request.
const LONGEST_HEAD: usize = 8 << 10;
/// Beginnings of a probe's request.
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
/// The answer to everything else.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/json\r\nContent-Length: 111\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\"too many connections; try again\",\"type\":\"server_error\",\"param\":null,\"code\":\"unavailable\"}}";

/// What a request's head asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Probe,
    Other,
}

/// Takes connections for which there is no ordinary place.
pub(super) struct Reserve {
    /// Connections whose head has not come, oldest first.
    waiting: VecDeque<AbortHandle>,
    answering: Arc<Semaphore>,
    told: Arc<Semaphore>,
    /// Where probes go to be answered.
    probes: mpsc::Sender<(Connection, SocketAddr)>,
}

impl Reserve {
    pub(super) fn new(probes: mpsc::Sender<(Connection, SocketAddr)>) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self { waiting: VecDeque::new(), answering: places(PLACES), told: places(TOLD), probes }
    }

    /// Reads the head of a connection's request, and answers it or sends it on. `patience` is what
    /// a client that is told `503` has to read that.
    pub(super) fn take(
        &mut self,
        stream: TcpStream,
        from: SocketAddr,
        tls: Option<TlsAcceptor>,
        patience: Duration,
    ) {
        self.waiting.retain(|task| !task.is_finished());
        if self.waiting.len() >= PLACES
            && let Some(oldest) = self.waiting.pop_front()
        {
            oldest.abort();
        }
        let (answering, told, probes) = (self.answering.clone(), self.told.clone(), self.probes.clone());
        let task = tokio::spawn(async move {
            let Ok(Ok((stream, head, asked))) = timeout(PATIENCE, read_head(stream, tls)).await else {
                return;
            };
            match asked {
                Asked::Probe => {
                    // Dropped if too many are being answered, or the server is leaving.
                    if let Ok(place) = answering.try_acquire_owned() {
                        let _ = probes.try_send((Connection::probe(stream, head, PATIENCE, place), from));
                    }
                }
                Asked::Other => {
                    // A task of its own: the reserve aborts this one to make place.
                    if let Ok(place) = told.try_acquire_owned() {
                        tokio::spawn(timeout(patience, turn_away(stream, place)));
                    }
                }
            }
        });
        self.waiting.push_back(task.abort_handle());
    }
}

/// Reads until it is clear what is asked for; of a probe, the whole head.
async fn read_head(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<(Stream, Vec<u8>, Asked)> {
    let mut stream = match tls {
        None => Stream::Plain(stream),
        Some(acceptor) => Stream::Tls(Box::new(acceptor.accept(stream).await?)),
    };
    let mut head = Vec::new();
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(asked) = asked(&head) {
            return Ok((stream, head, asked));
        }
    }
}

/// What is asked for by a head of which this has come, once that is clear.
fn asked(head: &[u8]) -> Option<Asked> {
    let may_be_probe = PROBES.iter().any(|probe| head.starts_with(probe) || probe.starts_with(head));
    let is_whole = || head.windows(4).any(|end| end == b"\r\n\r\n");
    match () {
        () if !may_be_probe || head.len() > LONGEST_HEAD => Some(Asked::Other),
        () if is_whole() => Some(Asked::Probe),
        () => None,
    }
}

/// Answers `503`, and reads on until the client leaves: one that is closed while it writes would
/// not read the answer.
async fn turn_away(mut stream: Stream, _place: OwnedSemaphorePermit) -> io::Result<()> {
    stream.write_all(FULL).await?;
    stream.shutdown().await?;
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_the_length_that_it_says() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }

    #[test]
    fn only_a_whole_head_of_a_probe_is_one() {
        let probes = ["GET /live HTTP/1.1\r\n\r\n", "HEAD /health?x HTTP/1.0\r\nHost: x\r\n\r\n"];
        for head in probes {
            assert_eq!(asked(head.as_bytes()), Some(Asked::Probe));
            for end in 1..head.len() - 1 {
                assert_eq!(asked(&head.as_bytes()[..end]), None, "{head:?} up to {end}");
            }
        }
        for other in ["GET /livex HTTP/1.1", "GET /v1", "POST", "GET /health/../v1 HTTP/1.1", "\x16\x03\x01"]
        {
            assert_eq!(asked(other.as_bytes()), Some(Asked::Other), "{other}");
        }
        assert_eq!(asked(&[b"GET /live ".as_slice(), &[b'x'; LONGEST_HEAD]].concat()), Some(Asked::Other));
    }
}

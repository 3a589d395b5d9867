//! A client's connection, plain or TLS, with a timeout of stalled writes.
//!
//! A write that makes no progress for `WRITE_TIMEOUT_FACTOR` times the read timeout closes the
//! connection; a cut (`ConnectionCut`) fails a pending write at once. The end of a client's stream
//! is held back while its request is answered ([`exchange`](super::exchange)).

use crate::http::transport::exchange::{Exchange, INTERIM, PROBE_INTERVAL};
use crate::http::transport::peers::PeerPermit;
use std::{
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, watch},
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;

/// Read timeout within a request; `Duration::MAX` if absent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTimeout(pub(crate) Duration);

/// Address of the client at the other end of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client(pub(crate) IpAddr);

/// Notifies of the server's shutdown, which waits for all clones to be dropped.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(pub(crate) watch::Receiver<()>);

/// Write timeout as a multiple of the read timeout: a client may display a stream in a pager.
const WRITE_TIMEOUT_FACTOR: u32 = 4;

/// A client's socket, plain or TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The pending error of the socket, such as a reset, if any.
    fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Plain(stream) => stream.take_error(),
            Self::Tls(stream) => stream.get_ref().0.take_error(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// A client's connection. Dropping it frees its permits.
pub struct Connection {
    stream: Stream,
    /// Request head of a probe, already consumed for classification and replayed from here.
    head: io::Cursor<Vec<u8>>,
    is_probe: bool,
    read_timeout: Duration,
    /// Deadline of a stalled write.
    write_deadline: Option<Pin<Box<Sleep>>>,
    exchange: Arc<Exchange>,
    /// Whether bytes were written since the last complete flush.
    is_unflushed: bool,
    /// Looks for the client's reset since its stream has ended, and the time of the next.
    end_probes: Option<(u32, Pin<Box<Sleep>>)>,
    _permit: OwnedSemaphorePermit,
    _peer: Option<PeerPermit>,
}

impl Connection {
    pub(crate) fn new(stream: Stream, read_timeout: Duration, permit: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            head: io::Cursor::default(),
            is_probe: false,
            read_timeout,
            write_deadline: None,
            exchange: Arc::default(),
            is_unflushed: false,
            end_probes: None,
            _permit: permit,
            _peer: None,
        }
    }

    /// Counts it as its peer's.
    pub(super) fn of_peer(self, peer: PeerPermit) -> Self {
        Self { _peer: Some(peer), ..self }
    }

    /// A connection of the reserve whose request head is a probe's.
    pub(crate) fn probe(
        stream: Stream,
        head: Vec<u8>,
        read_timeout: Duration,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { head: io::Cursor::new(head), is_probe: true, ..Self::new(stream, read_timeout, permit) }
    }

    /// Whether it holds a permit of the reserve and so is closed after one response.
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// The request and response in progress.
    pub(crate) fn exchange(&self) -> Arc<Exchange> {
        self.exchange.clone()
    }

    /// Holds back the end of the client's stream while its request is answered; fails once the client
    /// has turned out to have left. Ready when the end is to be passed on.
    fn poll_held_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.stream.take_error()? {
            return Poll::Ready(Err(error));
        }
        let (probes, timer) = self.end_probes.get_or_insert_with(|| (0, Box::pin(sleep(PROBE_INTERVAL))));
        while self.exchange.holds_end(*probes) {
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            timer.set(sleep(PROBE_INTERVAL));
            *probes += 1;
            if self.exchange.takes_interim() && !self.is_unflushed {
                // Once per exchange. It fits an empty socket buffer, so it is written in one piece.
                self.exchange.sent_interim();
                if Pin::new(&mut self.stream).poll_write(cx, INTERIM)?.is_ready() {
                    let _ = Pin::new(&mut self.stream).poll_flush(cx)?;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Passes on the result of a write; fails with `TimedOut` once writes have stalled for too
    /// long, and with `ConnectionAborted` once the connection is cut.
    fn with_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.write_deadline = None;
            return result;
        }
        if self.exchange.connection().poll(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let limit = self.read_timeout.saturating_mul(WRITE_TIMEOUT_FACTOR);
        let write_deadline = self.write_deadline.get_or_insert_with(|| Box::pin(sleep(limit)));
        write_deadline.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if let Poll::Ready(Ok(())) = Pin::new(&mut self.head).poll_read(cx, buffer)
            && buffer.filled().len() > before
        {
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let is_end = matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        if is_end && buffer.remaining() > 0 {
            return self.poll_held_end(cx);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.is_unflushed = true;
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.with_write_timeout(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.is_unflushed = true;
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.with_write_timeout(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.is_unflushed &= !matches!(result, Poll::Ready(Ok(())));
        self.with_write_timeout(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.with_write_timeout(cx, result)
    }
}

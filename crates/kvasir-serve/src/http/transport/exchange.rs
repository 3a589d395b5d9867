//! One connection's request and response in progress, shared by its socket and its HTTP service.
//!
//! A client may shut down its writing side behind a request and still wait for the answer (TCP
//! half-close), or may have left: both look the same until something is written. Algorithm of
//! [`Connection`](super::connection::Connection) when it reads the end of the stream:
//!
//! 1. `Idle`: the end is passed on; hyper closes the connection.
//! 2. `Receiving`: the end may follow a whole body that the handler has yet to read. It is held back for
//!    [`MAX_RECEIVING_PROBES`] intervals and then passed on: the body is truncated.
//! 3. `Waiting`, the request is whole and its response has not begun: the end is held back. After
//!    [`PROBE_INTERVAL`], an HTTP/1.1 client gets one interim response `100 Continue`, which a client
//!    that has left answers with a reset. Every further interval looks for that reset.
//! 4. `Responding`: the end is held back until the response is sent; writes fail if it has left.
//!
//! `tests/http/half_closed.rs` guards this.

use crate::context::connection_cut::ConnectionCut;
use axum::body::{Body, HttpBody};
use hyper::body::{Bytes, Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::task::JoinHandle;

/// Time between two looks for the reset of a client whose stream has ended.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// Intervals that a handler has to read a body behind which the stream has ended.
pub(super) const MAX_RECEIVING_PROBES: u32 = 5;
/// Interim response that a client must read over (RFC 9110, section 15.2).
pub(super) const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Stage of the request on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// No request, or one whose body its handler left unread.
    Idle,
    /// The body is being read.
    Receiving,
    /// The handler works on a whole request.
    Waiting,
    /// The response is being sent.
    Responding,
}

/// The request and response in progress on one connection.
///
/// All accesses are `Relaxed`: the stage publishes no other data.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    stage: AtomicU8,
    takes_interim: AtomicBool,
    connection: Arc<ConnectionCut>,
}

impl Exchange {
    fn is(&self, stage: Stage) -> bool {
        self.stage.load(Ordering::Relaxed) == stage as u8
    }

    fn change(&self, from: Stage, to: Stage) -> bool {
        self.stage.compare_exchange(from as u8, to as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the end of the client's stream must be held back, `probes` intervals after it was read.
    pub(super) fn holds_end(&self, probes: u32) -> bool {
        if self.is(Stage::Receiving) { probes < MAX_RECEIVING_PROBES } else { !self.is(Stage::Idle) }
    }

    /// The handle that cuts the connection.
    pub(crate) fn connection(&self) -> &Arc<ConnectionCut> {
        &self.connection
    }

    /// Whether an interim response may be sent now.
    pub(super) fn takes_interim(&self) -> bool {
        self.is(Stage::Waiting) && self.takes_interim.load(Ordering::Relaxed)
    }

    /// The interim response was sent: once is enough.
    pub(super) fn sent_interim(&self) {
        self.takes_interim.store(false, Ordering::Relaxed);
    }

    /// Begins a request with this body. `takes_interim`: the client speaks HTTP/1.1.
    pub(crate) fn begin(self: &Arc<Self>, body: Body, takes_interim: bool) -> Body {
        let stage = if body.is_end_stream() { Stage::Waiting } else { Stage::Receiving };
        self.takes_interim.store(takes_interim, Ordering::Relaxed);
        self.stage.store(stage as u8, Ordering::Relaxed);
        Body::new(ExchangeBody { body, exchange: self.clone(), side: Side::Request })
    }

    /// Begins the response. The returned body ends the exchange when it is dropped.
    pub(crate) fn respond(self: &Arc<Self>, body: Body) -> Body {
        if !self.change(Stage::Waiting, Stage::Responding) {
            self.stage.store(Stage::Idle as u8, Ordering::Relaxed);
        }
        Body::new(ExchangeBody { body, exchange: self.clone(), side: Side::Response })
    }
}

/// A body of the exchange.
struct ExchangeBody {
    body: Body,
    exchange: Arc<Exchange>,
    side: Side,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The exchange waits for its response once this body has been read.
    Request,
    /// Its end is that of the exchange.
    Response,
}

impl HttpBody for ExchangeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        let is_read = matches!(frame, Poll::Ready(None)) || self.body.is_end_stream();
        if self.side == Side::Request && is_read {
            self.exchange.change(Stage::Receiving, Stage::Waiting);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for ExchangeBody {
    fn drop(&mut self) {
        if self.side == Side::Response {
            self.exchange.stage.store(Stage::Idle as u8, Ordering::Relaxed);
        }
    }
}

/// Set when the client of a request has left. A request extension.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientGone(pub(crate) Arc<AtomicBool>);

/// A handler in a task of its own, so that its connection sees the client leave while the handler
/// computes. Dropping it before its end sets the flag and aborts the task.
pub(crate) struct Handling<T> {
    pub(crate) task: JoinHandle<T>,
    pub(crate) gone: ClientGone,
}

impl<T> Drop for Handling<T> {
    fn drop(&mut self) {
        if !self.task.is_finished() {
            self.gone.0.store(true, Ordering::Relaxed);
            self.task.abort();
        }
    }
}

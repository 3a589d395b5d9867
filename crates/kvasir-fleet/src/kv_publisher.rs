//! Publishes KV events over ZMQ in vLLM's wire format, one stream per engine (data-parallel rank).
//!
//! A message has three frames: topic, sequence number (8 bytes, big-endian, from 0), batch (`kv_wire`).
//! With a replay address, a ROUTER socket per stream repeats past batches (`kv_replay`). The ports of
//! rank `i` are those of rank 0 plus `i`.
//!
//! A thread of its own encodes and sends. [`KvPublisher::publish`] never waits: if the thread is behind
//! by [`MAX_QUEUED`] batches, events are lost, and the next batch of the stream begins with
//! `AllBlocksCleared`. Subscribers that do not read cannot fill the memory: when the batches that wait
//! for them exceed a limit, all sockets are closed and opened again. Subscribers reconnect, see a gap,
//! and request a replay.

use crate::kv_replay::{Payload, ReplayBuffer};
use crate::kv_wire::encode_batch;
use crate::publisher_thread::{CloseReason, Publishing, run};
use crate::rank_port::bind_rank;
use bytes::Bytes;
use kvasir_engine::{Exit, Message, Outbox, Serving};
use kvasir_kv::KvEvent;
use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::Receiver,
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{sync::mpsc, time::sleep};
use zeromq::{PubSocket, RouterSocket, Socket, SocketSend, ZmqError, ZmqMessage};

/// Batches that wait for the publisher's thread.
const MAX_QUEUED: usize = 4096;
/// Time that subscribers have to read a burst beyond the limit.
const BURST_TIME: Duration = Duration::from_millis(200);

/// Configuration of a publisher.
pub struct KvPublisherConfig {
    /// Address of the stream of rank 0; with port 0 each stream gets a free port.
    pub address: SocketAddr,
    /// Address for replays of rank 0.
    pub replay: Option<SocketAddr>,
    /// First frame of each message.
    pub topic: String,
    /// Number of streams.
    pub ranks: u32,
    /// Batches that a stream keeps for replays.
    pub kept_batches: usize,
    /// Bytes that all streams keep for replays.
    pub kept_bytes: usize,
    /// Bytes that may wait for subscribers before the sockets are opened again.
    pub unread_bytes: usize,
    /// Receives warnings.
    pub on_warning: Box<dyn Fn(&str) + Send>,
}

impl KvPublisherConfig {
    /// With the default limits, an empty topic and no replays.
    pub fn new(address: SocketAddr, on_warning: Box<dyn Fn(&str) + Send>) -> Self {
        Self {
            address,
            replay: None,
            topic: String::new(),
            ranks: 1,
            kept_batches: 10_000,
            kept_bytes: 256 << 20,
            unread_bytes: 64 << 20,
            on_warning,
        }
    }
}

/// An address that a publisher cannot listen on.
#[derive(Debug)]
pub struct KvPublisherError {
    /// Whether it is an address for replays.
    pub is_replay: bool,
    /// The address.
    pub address: SocketAddr,
    /// Why not.
    pub error: io::Error,
}

impl fmt::Display for KvPublisherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.address, self.error)
    }
}

impl std::error::Error for KvPublisherError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

struct Batch {
    rank: usize,
    events: Vec<KvEvent>,
}

/// Handle of a publisher. Dropping it ends its thread.
pub struct KvPublisher {
    batches: mpsc::Sender<Batch>,
    /// Streams whose last events were lost.
    has_lost: Vec<bool>,
    addresses: Vec<(SocketAddr, Option<SocketAddr>)>,
    kept_batches: usize,
    in_memory: Arc<AtomicUsize>,
}

impl KvPublisher {
    /// Binds the addresses and starts the thread.
    pub fn start(config: KvPublisherConfig) -> Result<Self, KvPublisherError> {
        let KvPublisherConfig { address, replay, topic, ranks, kept_batches, kept_bytes, .. } = &config;
        let (mut streams, mut addresses) = (Vec::new(), Vec::new());
        for rank in 0..*ranks {
            let (events, at) = listen(*address, rank, false)?;
            let replay = replay.map(|address| listen(address, rank, true)).transpose()?;
            addresses.push((at, replay.as_ref().map(|(_, at)| *at)));
            let kept = ReplayBuffer::new(*kept_batches, kept_bytes / *ranks as usize);
            streams.push(Stream { events, replay: replay.map(|(listener, _)| (listener, kept)), next: 0 });
        }
        let (batches, queued) = mpsc::channel(MAX_QUEUED);
        let in_memory = Arc::<AtomicUsize>::default();
        let publishing = KvEvents {
            streams,
            topic: Bytes::from(topic.clone()),
            unread_bytes: config.unread_bytes,
            in_memory: in_memory.clone(),
            queued,
            on_warning: config.on_warning,
        };
        let started = thread::Builder::new().name("kv-events".into()).spawn(move || run(publishing));
        let error = |error| KvPublisherError { is_replay: false, address: config.address, error };
        started.map_err(error)?;
        let has_lost = vec![false; config.ranks as usize];
        Ok(Self { batches, has_lost, addresses, kept_batches: config.kept_batches, in_memory })
    }

    /// Maximum number of batches in a stream's replay buffer.
    pub fn kept_batches(&self) -> usize {
        self.kept_batches
    }

    /// The addresses of the streams and their replays, by rank.
    pub fn streams(&self) -> Vec<(SocketAddr, Option<SocketAddr>)> {
        self.addresses.clone()
    }

    /// Bytes of encoded batches in memory.
    pub fn bytes_in_memory(&self) -> Arc<AtomicUsize> {
        self.in_memory.clone()
    }

    /// Publishes events of a rank. Does not wait.
    pub fn publish(&mut self, rank: usize, events: &[KvEvent]) {
        let Some(has_lost) = self.has_lost.get_mut(rank) else { return };
        if events.is_empty() {
            return;
        }
        let cleared = has_lost.then_some(KvEvent::AllBlocksCleared);
        let events = cleared.into_iter().chain(events.iter().cloned()).collect();
        *has_lost = self.batches.try_send(Batch { rank, events }).is_err();
    }
}

/// Listens on the address of a rank.
fn listen(
    first: SocketAddr,
    rank: u32,
    is_replay: bool,
) -> Result<(TcpListener, SocketAddr), KvPublisherError> {
    bind_rank(first, rank).map_err(|(address, error)| KvPublisherError { is_replay, address, error })
}

struct Stream {
    events: TcpListener,
    replay: Option<(TcpListener, ReplayBuffer)>,
    next: u64,
}

/// The state of the thread.
struct KvEvents {
    streams: Vec<Stream>,
    topic: Bytes,
    unread_bytes: usize,
    in_memory: Arc<AtomicUsize>,
    queued: mpsc::Receiver<Batch>,
    on_warning: Box<dyn Fn(&str) + Send>,
}

impl Publishing for KvEvents {
    const NAME: &'static str = "KV events";

    fn has_ended(&mut self) -> bool {
        self.queued.is_closed()
    }

    fn warn(&self, warning: &str) {
        (self.on_warning)(warning);
    }

    async fn serve(&mut self) -> Result<CloseReason, ZmqError> {
        let mut sockets = Vec::with_capacity(self.streams.len());
        for stream in &self.streams {
            let mut socket = PubSocket::new();
            socket.bind_listener(stream.events.try_clone()?).await?;
            sockets.push(socket);
            if let Some((listener, kept)) = &stream.replay {
                let mut socket = RouterSocket::new();
                socket.bind_listener(listener.try_clone()?).await?;
                tokio::spawn(kept.clone().serve(socket));
            }
        }
        while let Some(Batch { rank, events }) = self.queued.recv().await {
            let (Some(stream), Some(socket)) = (self.streams.get_mut(rank), sockets.get_mut(rank)) else {
                continue;
            };
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let Some(payload) = encode_batch(time, &events, rank) else { continue };
            let payload = Payload::shared(payload, &self.in_memory);
            let number = stream.next;
            stream.next += 1;
            if let Some((_, kept)) = &stream.replay {
                kept.push(number, payload.clone());
            }
            let mut message = ZmqMessage::from(self.topic.clone());
            message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
            message.push_back(payload);
            socket.send(message).await?;
            if self.unread() > self.unread_bytes {
                // A burst may be larger than what subscribers read meanwhile.
                let begin = Instant::now();
                while self.unread() > self.unread_bytes {
                    if begin.elapsed() > BURST_TIME {
                        return Ok(CloseReason::Unread);
                    }
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Ok(CloseReason::Ended)
    }
}

impl KvEvents {
    /// Bytes that wait for subscribers, beyond those that are kept for replays.
    fn unread(&self) -> usize {
        let kept: usize = self
            .streams
            .iter()
            .filter_map(|stream| stream.replay.as_ref())
            .map(|(_, kept)| kept.bytes())
            .sum();
        self.in_memory.load(Ordering::Relaxed).saturating_sub(kept)
    }
}

/// An engine whose KV events are published as rank 0.
pub struct PublishedServing {
    serving: Box<dyn Serving>,
    publisher: KvPublisher,
}

impl PublishedServing {
    /// Publishes the KV events that `serving` delivers. It must record them.
    pub fn new(serving: Box<dyn Serving>, publisher: KvPublisher) -> Self {
        Self { serving, publisher }
    }
}

impl Serving for PublishedServing {
    fn serve_inbox(self: Box<Self>, inbox: Receiver<Message>, deliver: &mut dyn FnMut(&Outbox)) -> Exit {
        let Self { serving, mut publisher } = *self;
        serving.serve_inbox(inbox, &mut |outbox| {
            deliver(outbox);
            publisher.publish(0, &outbox.kv_events);
        })
    }
}

//! Publishes the load of each engine (data-parallel rank) over ZMQ in SGLang's wire format.
//!
//! A message has three frames: the topic `load`, a sequence number (8 bytes, big-endian, from 0), and
//! msgpack of `["LoadStat", running, waiting, used_tokens, capacity, rank]`.
//!
//! A thread samples the loads every [`SAMPLE_INTERVAL`]. It sends a changed load at once, and
//! repeats an unchanged one every [`HEARTBEAT`]. It sends nothing for an engine that is down, and
//! nothing at all while the server is not ready. Memory is bounded: if more than [`UNREAD_BYTES`]
//! wait for subscribers, all sockets are closed and opened again.

use crate::kv_replay::Payload;
use crate::publisher_thread::{CloseReason, Publishing, run};
use crate::rank_port::bind_rank;
use bytes::Bytes;
use kvasir_engine::RankLoad;
use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, sleep},
};
use zeromq::{PubSocket, Socket, SocketSend, ZmqError, ZmqMessage};

/// First frame of each message.
const TOPIC: &[u8] = b"load";
/// Interval at which loads are sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which an unchanged load is sent.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Maximum number of bytes that wait for subscribers.
const UNREAD_BYTES: usize = 1 << 20;

/// An address that a publisher of loads cannot listen on.
#[derive(Debug)]
pub struct LoadPublisherError {
    /// The address.
    pub address: SocketAddr,
    /// Cause.
    pub error: io::Error,
}

impl fmt::Display for LoadPublisherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.address, self.error)
    }
}

impl std::error::Error for LoadPublisherError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Samples the loads of all running engines.
pub type SampleLoads = Box<dyn FnMut() -> Vec<RankLoad> + Send>;

/// A publisher whose sockets are bound, before it publishes.
pub struct BoundLoadPublisher {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl BoundLoadPublisher {
    /// Binds one port per rank, from `first` on.
    pub fn bind(first: SocketAddr, ranks: u32) -> Result<Self, LoadPublisherError> {
        let bound: Result<Vec<_>, _> = (0..ranks).map(|rank| bind_rank(first, rank)).collect();
        let bound = bound.map_err(|(address, error)| LoadPublisherError { address, error })?;
        let (listeners, addresses) = bound.into_iter().unzip();
        Ok(Self { listeners, addresses })
    }

    /// The addresses, by rank.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Starts the publisher's thread.
    pub fn start(
        self,
        sample_loads: SampleLoads,
        on_warning: Box<dyn Fn(&str) + Send>,
    ) -> io::Result<LoadPublisher> {
        let (handle, handle_dropped) = oneshot::channel();
        let ranks =
            self.listeners.into_iter().map(|listener| Rank { listener, next: 0, sent: None }).collect();
        let publishing = Loads { ranks, sample_loads, in_memory: Arc::default(), handle_dropped, on_warning };
        thread::Builder::new().name("loads".into()).spawn(move || run(publishing))?;
        Ok(LoadPublisher { _handle: handle })
    }
}

/// Handle of a publisher of loads. Dropping it ends its thread.
pub struct LoadPublisher {
    _handle: oneshot::Sender<()>,
}

struct Rank {
    listener: TcpListener,
    next: u64,
    /// The last load that was sent, and its time.
    sent: Option<(RankLoad, Instant)>,
}

/// The state of the thread.
struct Loads {
    ranks: Vec<Rank>,
    sample_loads: SampleLoads,
    in_memory: Arc<AtomicUsize>,
    handle_dropped: oneshot::Receiver<()>,
    on_warning: Box<dyn Fn(&str) + Send>,
}

impl Publishing for Loads {
    const NAME: &'static str = "loads";

    fn has_ended(&mut self) -> bool {
        !matches!(self.handle_dropped.try_recv(), Err(TryRecvError::Empty))
    }

    fn warn(&self, warning: &str) {
        (self.on_warning)(warning);
    }

    async fn serve(&mut self) -> Result<CloseReason, ZmqError> {
        let mut sockets = Vec::with_capacity(self.ranks.len());
        for rank in &self.ranks {
            let mut socket = PubSocket::new();
            socket.bind_listener(rank.listener.try_clone()?).await?;
            sockets.push(socket);
        }
        while !self.has_ended() {
            for load in (self.sample_loads)() {
                let (Some(rank), Some(socket)) = (self.ranks.get_mut(load.rank), sockets.get_mut(load.rank))
                else {
                    continue;
                };
                let now = Instant::now();
                if rank.sent.is_some_and(|(sent, at)| sent == load && now - at < HEARTBEAT) {
                    continue;
                }
                let Some(payload) = encode(&load) else { continue };
                let mut message = ZmqMessage::from(Bytes::from_static(TOPIC));
                message.push_back(Bytes::copy_from_slice(&rank.next.to_be_bytes()));
                message.push_back(Payload::shared(payload, &self.in_memory));
                socket.send(message).await?;
                rank.next += 1;
                rank.sent = Some((load, now));
            }
            if self.in_memory.load(Ordering::Relaxed) > UNREAD_BYTES {
                return Ok(CloseReason::Unread);
            }
            sleep(SAMPLE_INTERVAL).await;
        }
        Ok(CloseReason::Ended)
    }
}

fn encode(load: &RankLoad) -> Option<Vec<u8>> {
    let RankLoad { rank, running, waiting, used_tokens, capacity } = load;
    rmp_serde::to_vec(&("LoadStat", running, waiting, used_tokens, capacity, rank)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::time::timeout;
    use zeromq::{SocketRecv, SubSocket};

    #[test]
    fn subscribers_receive_changes_and_heartbeats_of_each_rank() {
        let loads = Arc::new(Mutex::new(vec![
            RankLoad { rank: 0, running: 1, waiting: 2, used_tokens: 3, capacity: 400 },
            RankLoad { rank: 1, capacity: 400, ..RankLoad::default() },
        ]));
        let bound = BoundLoadPublisher::bind("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let addresses = bound.addresses().to_vec();
        let sampled = loads.clone();
        let publisher = bound.start(Box::new(move || sampled.lock().unwrap().clone()), Box::new(|_| {}));
        let publisher = publisher.unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let subscribe = |address| async move {
            let mut socket = SubSocket::new();
            socket.connect(&format!("tcp://{address}")).await.unwrap();
            socket.subscribe("load").await.unwrap();
            socket
        };
        let receive = async |socket: &mut SubSocket| {
            let message = timeout(Duration::from_secs(30), socket.recv()).await.unwrap().unwrap().into_vec();
            assert_eq!((message.len(), &message[0][..]), (3, TOPIC));
            let number = u64::from_be_bytes(message[1][..].try_into().unwrap());
            let stat: (String, u64, u64, u64, u64, u64) = rmp_serde::from_slice(&message[2]).unwrap();
            (number, stat)
        };
        runtime.block_on(async {
            let (mut first, mut second) = (subscribe(addresses[0]).await, subscribe(addresses[1]).await);
            let (number, stat) = receive(&mut first).await;
            assert_eq!(stat, ("LoadStat".into(), 1, 2, 3, 400, 0));
            // An unchanged load is repeated.
            assert_eq!(receive(&mut first).await, (number + 1, stat));
            assert_eq!(receive(&mut second).await.1, ("LoadStat".into(), 0, 0, 0, 400, 1));
            loads.lock().unwrap()[1].running = 7;
            while receive(&mut second).await.1.1 != 7 {}
        });
        drop(publisher);
    }

    #[test]
    fn ports_of_all_ranks_fit() {
        let error = BoundLoadPublisher::bind("127.0.0.1:65535".parse().unwrap(), 2).err().unwrap();
        assert!(error.to_string().contains("65535"), "{error}");
    }
}

//! KV events over real sockets: a subscriber follows the prefix cache, and replays close its gaps.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use kvasir_engine::{Chunked, Core, Engine, Exit, Limits, Message, Mixing, Order, Params, Request, Serving};
use kvasir_fleet::{KvPublisher, KvPublisherConfig, PublishedServing};
use kvasir_kv::{CacheConfig, CacheKind, KvEvent, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::Random;
use serde::Deserialize;
use std::{
    collections::HashMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use tokio::{runtime::Runtime, time::timeout};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const BLOCK: usize = 16;

/// The fields that vLLM's decoder demands.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
enum WireEvent {
    BlockStored {
        block_hashes: Vec<u64>,
        parent_block_hash: Option<u64>,
        token_ids: Vec<Token>,
        block_size: usize,
        lora_id: Option<u32>,
        medium: String,
        lora_name: Option<String>,
        group_idx: u32,
    },
    BlockRemoved {
        block_hashes: Vec<u64>,
        medium: String,
        group_idx: u32,
    },
    AllBlocksCleared,
}

type Batch = (f64, Vec<WireEvent>, u32);

fn read(payload: &[u8]) -> Batch {
    rmp_serde::from_slice(payload).unwrap()
}

fn number(frame: &[u8]) -> i64 {
    i64::from_be_bytes(frame.try_into().unwrap())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn config() -> KvPublisherConfig {
    let ignore = |_: &str| {};
    KvPublisherConfig {
        replay: Some(local(0)),
        topic: "kv".into(),
        ..KvPublisherConfig::new(local(0), Box::new(ignore))
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

struct Subscriber {
    runtime: Runtime,
    socket: SubSocket,
    next: Option<i64>,
}

impl Subscriber {
    /// Subscribes, and publishes until the first batch arrives.
    fn new(publisher: &mut KvPublisher) -> Self {
        let runtime = runtime();
        let socket = runtime.block_on(async {
            let mut socket = SubSocket::new();
            socket.connect(&format!("tcp://{}", publisher.streams()[0].0)).await.unwrap();
            socket.subscribe("kv").await.unwrap();
            socket
        });
        let mut subscriber = Self { runtime, socket, next: None };
        for _ in 0..600 {
            publisher.publish(0, &[KvEvent::AllBlocksCleared]);
            if subscriber.try_next(Duration::from_millis(50)).is_some() {
                while subscriber.try_next(Duration::from_millis(200)).is_some() {}
                return subscriber;
            }
        }
        panic!("no batch arrives");
    }

    /// The next batch; its number must follow the last.
    fn try_next(&mut self, time: Duration) -> Option<Batch> {
        let message = self.runtime.block_on(async { timeout(time, self.socket.recv()).await });
        let frames = message.ok()?.unwrap().into_vec();
        assert_eq!((frames.len(), &frames[0][..]), (3, &b"kv"[..]));
        let number = number(&frames[1]);
        assert!(self.next.is_none_or(|next| next == number), "{:?} {number}", self.next);
        self.next = Some(number + 1);
        Some(read(&frames[2]))
    }
}

/// What a router learns from the events: the hash of each block by parent and tokens.
#[derive(Default)]
struct Mirror {
    blocks: HashMap<(Option<u64>, Vec<Token>), u64>,
    removed: usize,
}

impl Mirror {
    fn apply(&mut self, event: WireEvent) {
        match event {
            WireEvent::BlockStored {
                block_hashes,
                parent_block_hash,
                token_ids,
                block_size,
                medium,
                group_idx,
                ..
            } => {
                assert_eq!((medium.as_str(), group_idx, block_size), ("GPU", 0, BLOCK));
                let mut parent = parent_block_hash;
                for (hash, tokens) in block_hashes.into_iter().zip(token_ids.chunks(BLOCK)) {
                    assert_eq!(self.blocks.insert((parent, tokens.to_vec()), hash), None);
                    parent = Some(hash);
                }
            }
            WireEvent::BlockRemoved { block_hashes, medium, group_idx } => {
                assert_eq!((medium.as_str(), group_idx), ("GPU", 0));
                self.blocks.retain(|_, hash| !block_hashes.contains(hash));
                self.removed += block_hashes.len();
            }
            WireEvent::AllBlocksCleared => self.blocks.clear(),
        }
    }

    /// Tokens of a prompt that hit. Its last token is always computed.
    fn hit(&self, prompt: &[Token]) -> usize {
        let mut parent = None;
        let blocks = prompt[..prompt.len() - 1].chunks_exact(BLOCK);
        let found = blocks.map_while(|tokens| {
            parent = Some(*self.blocks.get(&(parent, tokens.to_vec()))?);
            parent
        });
        found.count() * BLOCK
    }
}

#[test]
fn subscribers_know_exactly_the_prefixes_that_hit() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let cache = build(kind, &CacheConfig { block_size: BLOCK as u32, ..CacheConfig::new(320) }).unwrap();
        let policy = Box::new(Chunked::new(64, Mixing::On { target: None }));
        let core = Core::new(Limits::default(), Order::Fcfs, policy, cache);
        let mut engine = Engine::new(core, Toy::new(), || 0);
        engine.core_mut().record_kv_events().unwrap();
        let mut publisher = KvPublisher::start(config()).unwrap();
        let mut subscriber = Subscriber::new(&mut publisher);
        let serving = Box::new(PublishedServing::new(Box::new(engine), publisher));
        let (inbox, messages) = mpsc::channel();
        let (outboxes, delivered) = mpsc::channel();
        let running = thread::spawn(move || {
            serving.serve_inbox(messages, &mut |outbox| outboxes.send(outbox.clone()).unwrap())
        });
        let (mut random, mut mirror, mut hits) = (Random::new(7), Mirror::default(), 0);
        let (mut delivered_events, mut received_events) = (0, 0);
        for tag in 0..120 {
            let family = random.below(5) as Token * 1000;
            let mut prompt: Vec<Token> = (family..family + random.between(5, 90)).collect();
            prompt.push(random.below(50) as Token);
            let params = Params { max_tokens: random.between(1, 40), ..Params::default() };
            let expected = mirror.hit(&prompt);
            inbox.send(Message::Add { request: Box::new(Request { tag, prompt, params }), n: 1 }).unwrap();
            let mut cached = None;
            let mut wait = Duration::from_secs(20);
            while let Ok(outbox) = delivered.recv_timeout(wait) {
                delivered_events += outbox.kv_events.len();
                if let Some(summary) = outbox.ended.first() {
                    cached = Some(summary.cached as usize);
                    wait = Duration::from_millis(20);
                }
            }
            assert_eq!(cached, Some(expected), "{kind}: request {tag}");
            hits += expected;
            while received_events < delivered_events {
                let (time, events, rank) = subscriber.try_next(Duration::from_secs(20)).unwrap();
                assert!(time > 1.7e9 && rank == 0);
                received_events += events.len();
                events.into_iter().for_each(|event| mirror.apply(event));
            }
        }
        assert!(hits > 1000 && mirror.removed > 50, "{hits} {}", mirror.removed);
        inbox.send(Message::Exit).unwrap();
        assert_eq!(running.join().unwrap(), Exit::Requested);
    }
}

#[test]
fn replays_repeat_the_kept_batches_in_order() {
    let mut publisher = KvPublisher::start(KvPublisherConfig { kept_batches: 40, ..config() }).unwrap();
    for hash in 0..50 {
        publisher.publish(0, &[KvEvent::BlockRemoved { hashes: vec![hash] }]);
        publisher.publish(0, &[]);
    }
    let address = format!("tcp://{}", publisher.streams()[0].1.unwrap());
    let subscriber = Subscriber::new(&mut publisher);
    let last = subscriber.next.unwrap();
    runtime().block_on(async {
        let mut dealer = DealerSocket::new();
        dealer.connect(&address).await.unwrap();
        // Malformed requests are dropped.
        dealer.send(ZmqMessage::from("x")).await.unwrap();
        for (start, envelope) in [(30, 0), (0, 1), (1000, 1)] {
            let start = bytes::Bytes::copy_from_slice(&i64::to_be_bytes(start));
            let mut request = ZmqMessage::from(start.clone());
            if envelope == 1 {
                request.push_front(bytes::Bytes::new());
            }
            dealer.send(request).await.unwrap();
            let first = number(&start).max(last - 40).min(last);
            for expected in (first..last).chain([-1]) {
                let frames =
                    timeout(Duration::from_secs(20), dealer.recv()).await.unwrap().unwrap().into_vec();
                assert_eq!(frames.len(), 2 + envelope);
                let (at, payload) = (number(&frames[envelope]), &frames[envelope + 1]);
                assert_eq!(at, expected);
                match at {
                    -1 => assert!(payload.is_empty()),
                    0..50 => {
                        let removed = WireEvent::BlockRemoved {
                            block_hashes: vec![at as u64],
                            medium: "GPU".into(),
                            group_idx: 0,
                        };
                        assert_eq!(read(payload).1, [removed]);
                    }
                    _ => assert_eq!(read(payload).1, [WireEvent::AllBlocksCleared]),
                }
            }
        }
    });
}

/// A subscription to everything, of a client that reads nothing after the handshake.
fn subscribe_without_reading(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).unwrap();
    stream.read_exact(&mut greeting).unwrap();
    let ready = b"\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    stream.write_all(&[4, ready.len() as u8]).unwrap();
    stream.write_all(ready).unwrap();
    stream.read_exact(&mut [0; 2]).unwrap();
    stream.write_all(&[0, 1, 1]).unwrap();
    stream
}

/// Whether the batch with this number can be replayed.
fn is_published(replay: SocketAddr, batch: i64) -> bool {
    let answer = runtime().block_on(async {
        let mut dealer = DealerSocket::new();
        dealer.connect(&format!("tcp://{replay}")).await.ok()?;
        let start = bytes::Bytes::copy_from_slice(&i64::to_be_bytes(batch));
        dealer.send(ZmqMessage::from(start)).await.ok()?;
        timeout(Duration::from_secs(1), dealer.recv()).await.ok()?.ok()
    });
    answer.is_some_and(|frames| number(frames.get(0).unwrap()) == batch)
}

#[test]
fn a_subscriber_that_never_reads_costs_neither_time_nor_memory() {
    const LIMIT: usize = 1 << 20;
    let warnings = Arc::<AtomicU32>::default();
    let warned = warnings.clone();
    let on_warning = move |_: &str| {
        warned.fetch_add(1, Ordering::Relaxed);
    };
    let mut publisher = KvPublisher::start(KvPublisherConfig {
        kept_bytes: LIMIT,
        unread_bytes: LIMIT,
        on_warning: Box::new(on_warning),
        ..config()
    })
    .unwrap();
    let _silent = subscribe_without_reading(publisher.streams()[0].0);
    thread::sleep(Duration::from_millis(300));
    let event = KvEvent::BlockStored {
        hashes: (0..2000).collect(),
        parent: None,
        tokens: vec![100_000; 32_000],
        block_size: 16,
        salt: 0,
    };
    let begin = Instant::now();
    (0..600).for_each(|_| publisher.publish(0, std::slice::from_ref(&event)));
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    let in_memory = publisher.bytes_in_memory();
    // A subscriber that connects before all of it is published may be disconnected, too.
    let replay = publisher.streams()[0].1.unwrap();
    while !is_published(replay, 599) || in_memory.load(Ordering::Relaxed) > LIMIT {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is not published");
        thread::sleep(Duration::from_millis(20));
    }
    let mut subscriber = Subscriber::new(&mut publisher);
    assert!(warnings.load(Ordering::Relaxed) > 0);
    assert!(in_memory.load(Ordering::Relaxed) <= 2 * LIMIT, "{}", in_memory.load(Ordering::Relaxed));
    publisher.publish(0, &[KvEvent::AllBlocksCleared]);
    assert_eq!(subscriber.try_next(Duration::from_secs(20)).unwrap().1, [WireEvent::AllBlocksCleared]);
}

//! The front over simulated workers: random requests, aborts and stops by clients, lost and drained
//! workers, and messages that are lost with them. Each answer must be that of its request running
//! alone.

use super::*;
use crate::message::Exported;
use kvasir_engine::{
    Chunked, Core, Engine, KvExport, Limits, Mixing, Params, Request, RequestId, Role, Route, Router,
    RouterConfig, SuffixDrafter,
};
use kvasir_kv::{CacheConfig, CacheKind, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::{Random, complete::complete};
use std::{
    collections::{HashSet, VecDeque},
    sync::Mutex,
};

fn engine(random: &mut Random) -> Engine<Toy> {
    let kind = random.pick(&[CacheKind::Paged, CacheKind::Radix, CacheKind::Cells]);
    let block_size = if kind.is_block_based() { 4 } else { 1 };
    let cache = build(kind, &CacheConfig { block_size, sharing: true, ..CacheConfig::new(512) }).unwrap();
    let limits = Limits { max_num_batched_tokens: 32, max_model_len: 200, ..Limits::default() };
    let policy = Box::new(Chunked::new(16, Mixing::On { target: None }));
    let core = Core::new(limits, kvasir_engine::Order::Fcfs, policy, cache);
    let mut engine = Engine::new(core, Toy::new(), || 1);
    if kind.is_block_based() {
        engine.core_mut().record_kv_events().unwrap();
    }
    if random.chance(50) { engine.draft(Box::new(SuffixDrafter::new(4))).unwrap() } else { engine }
}

/// A worker: an engine, and the messages and results in transit to and from it.
struct Worker {
    engine: Engine<Toy>,
    /// Exports that its I/O thread has not sent.
    exports: Arc<Mutex<VecDeque<KvExport>>>,
    ids: HashMap<u64, RequestId>,
    messages: VecDeque<Message>,
    results: VecDeque<Outbox>,
    /// Runs that crash the worker in their first step.
    crashing_runs: HashSet<u64>,
}

/// First token of a prompt that crashes its worker.
const CRASH_TOKEN: Token = 99;

impl Worker {
    fn new(random: &mut Random) -> Self {
        let (ids, messages, results) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        let (mut engine, exports) = (engine(random), Arc::<Mutex<VecDeque<KvExport>>>::default());
        let to = Arc::clone(&exports);
        // Fails for caches without blocks, which neither export nor import.
        let _ = engine.export_kv(Arc::new(move |export| to.lock().unwrap().push_back(export)));
        Self { engine, exports, ids, messages, results, crashing_runs: HashSet::new() }
    }

    fn take_message(&mut self) {
        match self.messages.pop_front() {
            Some(Message::Add { request, n }) => {
                let tag = request.tag;
                self.crashing_runs.extend((request.prompt[0] == CRASH_TOKEN).then_some(tag));
                let ids = self.engine.core_mut().add_siblings(*request, n, 1).unwrap();
                self.ids.extend((tag..).zip(ids));
            }
            Some(Message::Abort { tag }) => {
                self.crashing_runs.remove(&tag);
                let _ = self.engine.core_mut().abort(self.ids[&tag], 1);
            }
            Some(Message::StopAt { tag, keep }) => {
                let _ = self.engine.core_mut().stop_at(self.ids[&tag], keep, 1);
            }
            Some(Message::Import(import)) => self.engine.import_kv(*import),
            Some(Message::EndSession(session)) => self.engine.core_mut().end_session(session),
            other => assert_eq!(other, None),
        }
    }

    fn step(&mut self) {
        self.engine.step().unwrap();
        self.collect();
    }

    fn collect(&mut self) {
        let outbox = self.engine.core_mut().outbox();
        if !outbox.is_empty() {
            self.results.push_back(outbox.clone());
            outbox.clear();
        }
    }
}

#[derive(Default)]
struct Answer {
    tokens: Vec<Token>,
    ends: Vec<Finish>,
}

struct Simulation {
    front: Front,
    workers: Vec<Option<Worker>>,
    requests: Vec<Request>,
    answers: BTreeMap<u64, Answer>,
    losses: u32,
    /// Rows in shared memory.
    segment: Vec<Vec<u8>>,
    /// Number of imported tokens that workers have stored.
    imported: u32,
}

impl Simulation {
    fn new(random: &mut Random) -> Self {
        let count = random.between(1, 4) as usize;
        Self::with_roles(random, vec![Role::Both; count])
    }

    fn with_roles(random: &mut Random, roles: Vec<Role>) -> Self {
        let (count, config) = (roles.len(), RouterConfig::new(Route::Prefix));
        let router = RoleRouter::new(RouterConfig { block_size: 4, ..config }, roles);
        let mut front = Front::new(router, count);
        front.workers_ready(0..count);
        let workers = (0..count).map(|_| Some(Worker::new(random))).collect();
        Self {
            front,
            workers,
            requests: Vec::new(),
            answers: BTreeMap::new(),
            losses: 0,
            segment: Vec::new(),
            imported: 0,
        }
    }

    /// Delivers the front's messages and its outbox.
    fn flush(&mut self) {
        for WorkerMessage { replica, mut message, rows, .. } in std::mem::take(&mut self.front.sends) {
            if let (Message::Import(import), Some(block)) = (&mut message, rows) {
                import.rows = std::mem::take(&mut self.segment[block.offset as usize]);
            }
            if let Some(worker) = &mut self.workers[replica] {
                worker.messages.push_back(message);
            }
        }
        let outbox = std::mem::take(&mut self.front.outbox);
        self.deliver(&outbox);
    }

    fn deliver(&mut self, outbox: &Outbox) {
        for output in outbox.iter().filter(|output| output.event.tag > 0) {
            let answer = self.answers.get_mut(&output.event.tag).unwrap();
            assert!(answer.ends.is_empty(), "an event follows the end");
            answer.tokens.extend_from_slice(output.tokens);
            answer.ends.extend(output.event.finish);
            assert_eq!(output.event.finish, output.summary.map(|summary| summary.finish));
            if let Some(summary) = output.summary {
                assert_eq!(summary.tag, output.event.tag);
            }
        }
    }

    fn add(&mut self, random: &mut Random) {
        let n = random.between(1, 3);
        let tag = self.answers.last_key_value().map_or(1, |(tag, _)| tag + 1);
        let length = random.between(1, 60);
        let params = Params {
            max_tokens: random.between(1, 60),
            ignore_eos: random.chance(50),
            eos: vec![104],
            session: random.chance(30).then(|| SessionId(random.below(3))),
            ..Params::default()
        };
        let prompt = (0..length).map(|_| 100 + random.below(7) as Token).collect();
        let request = Request { tag, prompt, params };
        for i in 0..n {
            self.requests.push(request.sibling(i));
            self.answers.insert(tag + u64::from(i), Answer::default());
        }
        self.front.take(Message::Add { request: Box::new(request), n }, 1);
    }

    /// Announces an export of a worker, with its rows or without.
    fn announce(&mut self, replica: usize, random: &mut Random) {
        let Some(worker) = &self.workers[replica] else { return };
        let export = worker.exports.lock().unwrap().pop_front();
        let Some(KvExport { tag, start, tokens, rows, is_last }) = export else { return };
        let (bytes, offset) = (rows.len() as u64, self.segment.len() as u64);
        self.segment.push(if random.chance(95) { rows } else { Vec::new() });
        let block = RecordLocation { offset, bytes, ..RecordLocation::default() };
        let rows = (tokens > 0 && random.chance(95)).then_some(block);
        self.front.exported(replica, Exported { run: tag, start, tokens, rows, is_last });
    }

    /// Kills a worker, which loses its messages and results in transit. Another starts in its
    /// place.
    fn kill(&mut self, replica: usize, random: &mut Random) {
        self.workers[replica] = None;
        self.front.worker_lost(replica, 1);
        self.flush();
        self.workers[replica] = Some(Worker::new(random));
        self.front.workers_ready([replica]);
        self.losses += 1;
    }

    fn act(&mut self, random: &mut Random, is_calm: bool) {
        let replica = random.below(self.workers.len() as u64) as usize;
        let worker = self.workers[replica].as_mut().unwrap();
        match random.below(100) {
            0..30 => worker.take_message(),
            30..60 if worker.crashing_runs.is_empty() => worker.step(),
            60..90 => {
                worker.collect();
                if let Some(mut outbox) = worker.results.pop_front() {
                    self.imported += outbox.imports.stored;
                    assert!(self.front.results(replica, &mut outbox, 1));
                    self.deliver(&outbox);
                }
            }
            90..93 => self.announce(replica, random),
            _ if is_calm => {}
            93..95 => self.add(random),
            95 if !self.answers.is_empty() => {
                let tag = random.between(1, self.answers.len() as u32).into();
                let keep = self.answers[&tag].tokens.len() as u32;
                let ending = if random.chance(50) {
                    Message::Abort { tag }
                } else {
                    Message::StopAt { tag, keep: random.between(0, keep) }
                };
                self.front.take(ending, 1);
            }
            96 => self.kill(replica, random),
            97 => {
                self.front.drain(replica);
                self.flush();
                // Its process is restarted.
                self.kill(replica, random);
            }
            _ => {}
        }
        self.flush();
    }
}

#[test]
fn answers_survive_lost_and_drained_workers() {
    let (losses, whole, _) = answers_are_those_of_one_engine(Simulation::new);
    assert!(losses > 1000 && whole > 3000, "{losses}, {whole}");
}

#[test]
fn answers_survive_hand_offs() {
    let (losses, whole, imported) = answers_are_those_of_one_engine(|random| {
        let mut roles = vec![Role::Prefill, random.pick(&[Role::Decode, Role::Both])];
        roles.extend((0..random.below(3)).map(|_| random.pick(Role::ALL)));
        Simulation::with_roles(random, roles)
    });
    assert!(losses > 1000 && whole > 3000 && imported > 1500, "{losses}, {whole}, {imported}");
}

/// Runs simulations. Returns the number of lost workers, of complete answers, and of imported
/// tokens.
fn answers_are_those_of_one_engine(start: impl Fn(&mut Random) -> Simulation) -> (u32, u32, u32) {
    let (mut losses, mut whole, mut imported) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut simulation = start(&mut random);
        (0..600).for_each(|_| simulation.act(&mut random, false));
        for _ in 0..200_000 {
            if simulation.front.is_idle() {
                break;
            }
            simulation.act(&mut random, true);
        }
        imported += simulation.imported;
        let Simulation { front, requests, answers, .. } = simulation;
        assert!(front.is_idle() && front.runs.is_empty(), "seed {seed}");
        for replica in 0..front.is_ready.len() {
            assert_eq!((front.load(replica), front.run_count(replica)), ((0, 0), 0), "seed {seed}");
        }
        losses += simulation.losses;
        for request in requests {
            let answer = &answers[&request.tag];
            let what = format!("seed {seed}, tag {}: {:?}", request.tag, answer.ends);
            let alone = complete(&mut engine(&mut random), request);
            let [end] = answer.ends[..] else { panic!("{what}") };
            match end {
                Finish::Aborted | Finish::StopText | Finish::Failed(Fault::DeviceLost) => {
                    assert!(alone.tokens.starts_with(&answer.tokens), "{what}");
                }
                end => {
                    assert_eq!((&answer.tokens, end), (&alone.tokens, alone.summary.finish), "{what}");
                    whole += 1;
                }
            }
        }
    }
    (losses, whole, imported)
}

/// A request whose workers crash repeatedly while they run it fails.
#[test]
fn a_request_that_crashes_its_workers_fails() {
    let mut random = Random::new(1);
    let mut simulation = Simulation::new(&mut random);
    // A prompt of several steps: each worker crashes before the first token.
    let request = Request { tag: 1, prompt: vec![100; 60], ..Request::default() };
    simulation.answers.insert(1, Answer::default());
    simulation.front.take(Message::Add { request: Box::new(request), n: 1 }, 1);
    let mut losses = 0;
    while !simulation.front.is_idle() {
        simulation.flush();
        let placement = simulation.front.requests[&1].placement.as_ref().unwrap();
        let replica = placement.replica;
        let worker = simulation.workers[replica].as_mut().unwrap();
        worker.take_message();
        worker.step();
        let mut outbox = worker.results.pop_front().unwrap();
        assert!(simulation.front.results(replica, &mut outbox, 1));
        simulation.kill(replica, &mut random);
        losses += 1;
    }
    simulation.flush();
    assert_eq!(losses, 5);
    assert_eq!(simulation.answers[&1].ends, [Finish::Failed(Fault::DeviceLost)]);
}

/// Each lost worker runs several requests, of which some are the cause.
#[test]
fn only_requests_that_crash_their_workers_fail() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut simulation = Simulation::new(&mut random);
        for tag in 1..=16 {
            let first = if tag % 8 == 3 { CRASH_TOKEN } else { 100 + random.below(7) as Token };
            // Longer than a step, so that the first step generates no token.
            let length = if first == CRASH_TOKEN { 60 } else { random.between(1, 60) };
            let rest = (1..length).map(|_| 100 + random.below(7) as Token);
            let prompt = [first].into_iter().chain(rest).collect();
            let params = Params { max_tokens: random.between(1, 40), ignore_eos: true, ..Params::default() };
            let request = Request { tag, prompt, params };
            simulation.requests.push(request.clone());
            simulation.answers.insert(tag, Answer::default());
            simulation.front.take(Message::Add { request: Box::new(request), n: 1 }, 1);
        }
        simulation.flush();
        while !simulation.front.is_idle() {
            let replica = random.below(simulation.workers.len() as u64) as usize;
            let worker = simulation.workers[replica].as_mut().unwrap();
            if worker.crashing_runs.is_empty() || random.chance(50) {
                simulation.act(&mut random, true);
                continue;
            }
            // The results of its last step may be lost, too.
            worker.step();
            if let Some(mut outbox) = worker.results.pop_front().filter(|_| random.chance(50)) {
                assert!(simulation.front.results(replica, &mut outbox, 1));
                simulation.deliver(&outbox);
                simulation.flush();
            }
            simulation.kill(replica, &mut random);
        }
        // Each of the two causes crashes up to four workers beside other requests, three or more
        // while it is isolated, and some that it is being moved from.
        assert!(simulation.losses < 40, "seed {seed}: {}", simulation.losses);
        for request in simulation.requests {
            let answer = &simulation.answers[&request.tag];
            let what = format!("seed {seed}, tag {}: {:?}", request.tag, answer.ends);
            if request.prompt[0] == CRASH_TOKEN {
                assert_eq!(answer.ends, [Finish::Failed(Fault::DeviceLost)], "{what}");
                continue;
            }
            let alone = complete(&mut engine(&mut random), request);
            assert_eq!(
                (&answer.tokens, &answer.ends[..]),
                (&alone.tokens, &[alone.summary.finish][..]),
                "{what}"
            );
        }
    }
}

/// A front over two workers that are ready.
fn front_of_two() -> Front {
    let mut front = Front::new(Router::new(RouterConfig::new(Route::LeastRequests), 2), 2);
    front.workers_ready(0..2);
    front
}

/// Adds a request of a session. Returns the worker that receives it.
fn place(front: &mut Front, tag: u64, session: u64) -> usize {
    let params = Params { session: Some(SessionId(session)), ..Params::default() };
    let request = Request { tag, prompt: vec![1, 2, 3], params };
    front.take(Message::Add { request: Box::new(request), n: 1 }, 1);
    front.sends.iter().rfind(|send| matches!(send.message, Message::Add { .. })).unwrap().replica
}

#[test]
fn a_request_too_large_for_a_message_ends() {
    let mut front = front_of_two();
    let request = Request { tag: 7, prompt: vec![1; 9], ..Request::default() };
    front.take(Message::Add { request: Box::new(request), n: 2 }, 1);
    let WorkerMessage { message: Message::Add { request, n }, .. } = &front.sends[0] else { panic!() };
    front.fail_oversized(request.tag..request.tag + u64::from(*n), 5);
    assert!(front.is_idle() && front.runs.is_empty());
    let ends: Vec<_> = front.outbox.events.iter().map(|event| (event.tag, event.finish)).collect();
    let end = Some(Finish::Failed(Fault::MessageSize));
    assert_eq!(ends, [(7, end), (8, end)]);
    assert_eq!(front.outbox.ended[1].prompt, 9);
    assert_eq!((front.load(0), front.load(1)), ((0, 0), (0, 0)));
}

/// The watchdog must not kill a worker that only waits for the prefill of its requests.
#[test]
fn a_charged_target_is_not_counted_as_running() {
    let roles = vec![Role::Prefill, Role::Decode];
    let mut front = Front::new(RoleRouter::new(RouterConfig::new(Route::LeastRequests), roles), 2);
    front.workers_ready(0..2);
    assert_eq!(place(&mut front, 1, 10), 0);
    assert_eq!([front.load(0).0, front.load(1).0], [1, 1]);
    assert_eq!([front.run_count(0), front.run_count(1)], [1, 0]);
    front.abort_all(5);
    assert_eq!([front.load(0).0, front.load(1).0], [0, 0]);
    assert_eq!([front.run_count(0), front.run_count(1)], [0, 0]);
}

#[test]
fn a_fork_releases_its_targets_on_other_workers() {
    let mut front = front_of_two();
    let (first, second) = (place(&mut front, 1, 10), place(&mut front, 2, 20));
    assert_ne!(first, second);
    front.sends.clear();
    let fork = Message::Fork { from: SessionId(10), into: vec![SessionId(20), SessionId(30)], at: 2 };
    front.take(fork.clone(), 1);
    let sends: Vec<_> = front.sends.drain(..).map(|send| (send.replica, send.message)).collect();
    assert_eq!(sends, [(second, Message::EndSession(SessionId(20))), (first, fork)]);
    // The targets of a fork of a session without K/V have no K/V either.
    let fork = Message::Fork { from: SessionId(99), into: vec![SessionId(30)], at: 2 };
    front.take(fork, 1);
    let sends: Vec<_> = front.sends.drain(..).map(|send| (send.replica, send.message)).collect();
    assert_eq!(sends, [(first, Message::EndSession(SessionId(30)))]);
    assert_eq!(front.outbox.retained, [(SessionId(30), 0)]);
}

#[test]
fn sessions_beyond_the_limit_are_released() {
    let mut front = front_of_two();
    front.sessions = SessionHomes::with_limit(2);
    let homes: Vec<usize> = (1..=3).map(|tag| place(&mut front, tag, tag * 10)).collect();
    let ended = front.sends.iter().filter(|send| matches!(send.message, Message::EndSession(_)));
    let ended: Vec<_> = ended.map(|send| (send.replica, send.message.clone())).collect();
    assert_eq!(ended, [(homes[0], Message::EndSession(SessionId(10)))]);
    assert_eq!(front.outbox.retained, [(SessionId(10), 0)]);
}

//! [`RankProcess`]: the process of a rank other than 0.
//!
//! 1. `connect`: maps the shared memory (inherited as stdin) and sends `Hello` to rank 0 over the
//!    socket (inherited as stdout).
//! 2. `wait_for_start`: receives the sizes of the pools.
//! 3. `ready`, then `follow` (executes the steps of rank 0) or `serve` (runs a replicated engine).
//!
//! From 2 on the process exits when the socket is closed, so no rank outlives rank 0, even if that
//! is killed. From 3 on it ignores termination signals: the front handles them and drains running
//! requests.

use crate::constraint_builds::BuildConstraint;
use crate::message::Identity;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::command_log::CommandReplay;
use crate::ranks::member::Member;
use crate::ranks::rank_message::{FromRank, PROTOCOL, PoolSizes, ToRank, receive, send, wait_for_close};
use crate::ranks::ring_error::RingError;
use crate::ranks::step_broadcast::{STEP_RING, record};
use crate::ranks::step_words::decode;
use kvasir_engine::{Engine, Exit};
use kvasir_exec::{Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::GroupId;
use std::{
    fmt,
    fs::File,
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    process,
    sync::Arc,
    thread,
};
use tokio::signal::unix::{SignalKind, signal};

/// Configuration of the process of one rank.
pub struct RankConfig {
    /// Index of the rank, from 1.
    pub rank: usize,
    /// Number of ranks, with rank 0.
    pub ranks: usize,
    /// Version, model and options, which rank 0 checks.
    pub identity: Identity,
}

/// Why a rank has ended.
#[derive(Debug)]
pub enum RankError {
    /// The shared memory, the socket or a thread cannot be used.
    Io(io::Error),
    /// A rank has ended, or a record of rank 0 is corrupt.
    Ring(String),
    /// A step of rank 0 failed on this rank.
    Step(StepError),
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "rank: {error}"),
            Self::Ring(why) => write!(f, "rank: {why}"),
            Self::Step(error) => write!(f, "rank: {error}"),
        }
    }
}

impl std::error::Error for RankError {}

impl From<io::Error> for RankError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<RingError> for RankError {
    fn from(error: RingError) -> Self {
        Self::Ring(error.to_string())
    }
}

/// A rank that is connected to rank 0.
pub struct RankProcess {
    member: Arc<Member>,
    socket: UnixStream,
}

impl RankProcess {
    /// Maps the inherited shared memory and sends `Hello` to rank 0.
    pub fn connect(config: RankConfig) -> Result<Self, RankError> {
        let RankConfig { rank, ranks, identity } = config;
        let memory = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let socket = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
        let member = Arc::new(Member::open(&memory, ranks, rank)?);
        send(&socket, &FromRank::Hello { protocol: PROTOCOL, identity })?;
        Ok(Self { member, socket })
    }

    /// The collectives of this rank.
    pub fn member(&self) -> Arc<Member> {
        Arc::clone(&self.member)
    }

    /// Reports to rank 0 why this rank cannot start.
    pub fn fail(&self, why: &str) {
        // If this fails, rank 0 still sees that the socket is closed.
        let _ = send(&self.socket, &FromRank::Failed { why: why.into() });
    }

    /// Waits for rank 0 to send the sizes of the pools. From now on the process exits when rank 0
    /// does.
    pub fn wait_for_start(&self) -> Result<PoolSizes, RankError> {
        let ToRank::Start(sizes) = receive(&self.socket)?;
        let socket = self.socket.try_clone()?;
        thread::Builder::new().name("rank-0".into()).spawn(move || {
            wait_for_close(&socket);
            process::exit(0);
        })?;
        Ok(sizes)
    }

    /// Reports to rank 0 that the executor is ready. From now on the process ignores termination
    /// signals.
    pub fn ready(&self) -> Result<(), RankError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let _ignored = {
            let _context = runtime.enter();
            // An installed handler replaces the default action, even if nothing reads it.
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal)
        };
        Ok(send(&self.socket, &FromRank::Ready)?)
    }

    /// Runs a replicated engine on the logged inputs of rank 0. `build` builds constraints. Returns
    /// only with an error.
    pub fn serve<E: Executor>(
        &self,
        engine: &mut Engine<E>,
        build: BuildConstraint,
    ) -> Result<(), RankError> {
        let commands = CommandReplay::new(self.member(), build);
        engine.set_clock(commands.clock());
        match engine.serve(commands, |_| {}) {
            // Rank 0 ends this process after it has reported its own exit.
            Exit::Requested | Exit::Closed => loop {
                thread::park();
            },
            exit => Err(RankError::Ring(exit.to_string())),
        }
    }

    /// Executes the steps of rank 0 on `executor`. Returns only with an error.
    pub fn follow<E: Executor>(&self, executor: &mut E) -> Result<(), RankError> {
        let (mut ring, mut words) = (BroadcastRing::new(STEP_RING), Vec::new());
        let mut step = Box::<Step>::default();
        loop {
            let kind = ring.read(&self.member.endpoint, &mut words)?;
            match (kind, &words[..]) {
                (record::BIND, [row, final_len]) => {
                    let spec = SequenceSpec { final_len: *final_len, ..SequenceSpec::default() };
                    executor.bind(PoolRow(*row), spec);
                }
                (record::RELEASE, [group, ranges @ ..]) => {
                    let ranges: Vec<_> =
                        ranges.as_chunks().0.iter().map(|&[start, end]| start..end).collect();
                    let group = u8::try_from(*group)
                        .map_err(|_| RankError::Ring(format!("layer group `{group}` is out of range")))?;
                    executor.release(GroupId(group), &ranges);
                }
                (record::STEP, words) => {
                    self.member.contributions.begin_step();
                    decode(words, &mut step)
                        .map_err(|why| RankError::Ring(format!("a step is corrupt: {why}")))?;
                    let result;
                    (step, result) = match executor.submit(step) {
                        Ok(pending) => executor.wait(pending),
                        Err(Refused { step, error }) => (step, Err(error)),
                    };
                    // After another error, rank 0 has aborted the step, or aborts it now.
                    if let Err(error @ StepError::Lost(_)) = self.member.finish_step(result) {
                        return Err(RankError::Step(error));
                    }
                }
                _ => {
                    return Err(RankError::Ring(format!(
                        "a record of kind `{kind}` is unknown or has a wrong length"
                    )));
                }
            }
        }
    }
}

//! A rank other than 0: starts, follows the steps of rank 0, and ends with it.
//!
//! Standard input is the shared memory of the group, standard output a socket to rank 0. The process
//! exits when that socket is closed, so no rank outlives its engine, however that ends. It ignores
//! signals to terminate, because the front handles them and lets running answers end.

use crate::constraint_builds::BuildConstraint;
use crate::message::Identity;
use crate::ranks::broadcast_ring::BroadcastRing;
use crate::ranks::command_log::Commands;
use crate::ranks::member::Member;
use crate::ranks::rank_message::{FromRank, PROTOCOL, ToRank, receive, send, wait_for_end};
use crate::ranks::ring_error::RingError;
use crate::ranks::step_broadcast::{STEPS, record};
use crate::ranks::step_words::decode;
use kvasir_engine::{Engine, Exit};
use kvasir_exec::{Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
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

/// Which rank a process is.
pub struct RankConfig {
    /// Number of the rank, from 1.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Version, model and options, which rank 0 checks.
    pub identity: Identity,
}

/// Why a rank has ended.
#[derive(Debug)]
pub enum RankError {
    /// The shared memory, the socket or a thread is not usable.
    Io(io::Error),
    /// Rank 0 has ended, or a record of it is garbled.
    Ring(String),
    /// A step failed here that rank 0 runs.
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
    /// Connects through the inherited descriptors, and introduces this process.
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
        // Rank 0 learns of the end of this process, too.
        let _ = send(&self.socket, &FromRank::Failed { why: why.into() });
    }

    /// Waits until rank 0 knows its KV cache's size, and returns the number of slots. The process ends
    /// with rank 0 from now on.
    pub fn wait_for_start(&self) -> Result<u32, RankError> {
        let ToRank::Start { slots } = receive(&self.socket)?;
        let socket = self.socket.try_clone()?;
        thread::Builder::new().name("rank-0".into()).spawn(move || {
            wait_for_end(&socket);
            process::exit(0);
        })?;
        Ok(slots)
    }

    /// Tells rank 0 that the executor is ready. Signals to terminate have no effect from now on.
    pub fn ready(&self) -> Result<(), RankError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let _ignored = {
            let _context = runtime.enter();
            // Handlers are installed and never read, so these signals have no effect.
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal)
        };
        Ok(send(&self.socket, &FromRank::Ready)?)
    }

    /// Runs an engine on the messages of rank 0's, until that exits. `build` builds constraints.
    pub fn serve<E: Executor>(
        &self,
        engine: &mut Engine<E>,
        build: BuildConstraint,
    ) -> Result<(), RankError> {
        let commands = Commands::new(self.member(), build);
        engine.set_clock(commands.clock());
        match engine.serve(commands, |_| {}) {
            // Rank 0 ends this process when it has reported its own end.
            Exit::Requested | Exit::Closed => loop {
                thread::park();
            },
            exit => Err(RankError::Ring(exit.to_string())),
        }
    }

    /// Runs the steps of rank 0 on `executor`. Returns only with an error.
    pub fn follow<E: Executor>(&self, executor: &mut E) -> Result<(), RankError> {
        let (mut ring, mut words) = (BroadcastRing::new(STEPS), Vec::new());
        let mut step = Box::<Step>::default();
        loop {
            let kind = ring.read(&self.member.endpoint, &mut words)?;
            match (kind, &words[..]) {
                (record::BIND, [row, final_len]) => {
                    let spec = SequenceSpec { final_len: *final_len, ..SequenceSpec::default() };
                    executor.bind(PoolRow(*row), spec);
                }
                (record::RELEASE, ranges) => {
                    let ranges: Vec<_> =
                        ranges.as_chunks().0.iter().map(|&[start, end]| start..end).collect();
                    executor.release(&ranges);
                }
                (record::STEP, words) => {
                    self.member.contributions.begin_step();
                    decode(words, &mut step)
                        .map_err(|why| RankError::Ring(format!("a step is garbled: {why}")))?;
                    let result;
                    (step, result) = match executor.submit(step) {
                        Ok(pending) => executor.wait(pending),
                        Err(Refused { step, error }) => (step, Err(error)),
                    };
                    match self.member.settle(result) {
                        Err(error @ StepError::Lost(_)) => return Err(RankError::Step(error)),
                        // A step that rank 0 has aborted, or aborts now.
                        Ok(()) | Err(_) => {}
                    }
                }
                _ => return Err(RankError::Ring(format!("a record of kind {kind} is garbled"))),
            }
        }
    }
}

//! [`RankGroup`]: the supervisor of ranks 1 to M - 1, on rank 0.
//!
//! One thread per rank waits until the rank's socket is closed, and then marks the rank as lost,
//! which fails every wait in the group. Dropping the group kills the processes and waits for them.

use crate::message::Identity;
use crate::parent_death_signal::child_command;
use crate::ranks::member::Member;
use crate::ranks::rank_message::{FromRank, PROTOCOL, PoolSizes, ToRank, receive, send, wait_for_close};
use std::{
    ffi::OsString,
    fmt, io,
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    process::{Child, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Callback for the log line of a rank that has ended.
pub type OnRankLost = Arc<dyn Fn(&str) + Send + Sync>;

/// The command that starts a rank.
pub struct RankCommand {
    /// The program.
    pub program: PathBuf,
    /// Returns the arguments for a rank.
    pub arguments: Box<dyn Fn(usize) -> Vec<OsString>>,
}

/// Configuration of a group of ranks.
pub struct GroupConfig {
    /// Number of ranks, with rank 0.
    pub ranks: usize,
    /// Command that starts each other rank.
    pub command: RankCommand,
    /// Version, model and options, which every rank must match.
    pub identity: Identity,
    /// Called when a rank has ended unexpectedly.
    pub on_lost: OnRankLost,
}

/// Why a group of ranks cannot start.
#[derive(Debug)]
pub enum GroupError {
    /// The shared memory, a process or a thread cannot be created.
    Io(io::Error),
    /// A rank ended or failed before it was ready.
    Rank {
        /// Index of the rank.
        rank: usize,
        /// The cause.
        why: String,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "ranks: {error}"),
            Self::Rank { rank, why } => write!(f, "rank {rank} could not start: {why}"),
        }
    }
}

impl std::error::Error for GroupError {}

impl From<io::Error> for GroupError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Rank 0's handle of the other ranks of its group.
pub struct RankGroup {
    member: Arc<Member>,
    identity: Identity,
    on_lost: OnRankLost,
    ranks: Vec<Rank>,
    /// Set on drop, so that ended ranks are not reported.
    is_ending: Arc<AtomicBool>,
}

struct Rank {
    socket: UnixStream,
    process: Arc<Mutex<Child>>,
    watcher: Option<thread::JoinHandle<()>>,
}

impl RankGroup {
    /// Creates the shared memory and starts the processes, which begin to load their shards.
    pub fn start(config: GroupConfig) -> Result<Self, GroupError> {
        let GroupConfig { ranks, command, identity, on_lost } = config;
        let (member, memory) = Member::create(ranks)?;
        let (member, is_ending) = (Arc::new(member), Arc::default());
        let mut group = Self { member, identity, on_lost, ranks: Vec::new(), is_ending };
        for rank in 1..ranks {
            let (socket, theirs) = UnixStream::pair()?;
            let mut process = child_command(&command.program);
            process.args((command.arguments)(rank));
            process.stdin(memory.try_clone()?).stdout(Stdio::from(OwnedFd::from(theirs)));
            let process = Arc::new(Mutex::new(process.spawn()?));
            group.ranks.push(Rank { socket, process, watcher: None });
        }
        Ok(group)
    }

    /// Rank 0 of the group.
    pub fn member(&self) -> Arc<Member> {
        Arc::clone(&self.member)
    }

    /// Makes the ranks build executors with pools of these sizes. Waits until all are ready, then
    /// watches them.
    pub fn start_executors(&mut self, sizes: PoolSizes) -> Result<(), GroupError> {
        for (index, rank) in self.ranks.iter().enumerate() {
            let hello = rank.receive(index + 1)?;
            let FromRank::Hello { protocol, identity } = hello else {
                return Err(unexpected(index + 1, &hello));
            };
            let difference = match protocol {
                PROTOCOL => self.identity.difference(&identity),
                other => Some(format!("protocol version is `{other}`, rank 0 has `{PROTOCOL}`")),
            };
            if let Some(why) = difference {
                return Err(GroupError::Rank { rank: index + 1, why });
            }
            send(&rank.socket, &ToRank::Start(sizes.clone()))?;
        }
        for (index, rank) in self.ranks.iter_mut().enumerate() {
            let ready = rank.receive(index + 1)?;
            if ready != FromRank::Ready {
                return Err(unexpected(index + 1, &ready));
            }
            let (socket, process) = (rank.socket.try_clone()?, Arc::clone(&rank.process));
            let (member, on_lost) = (Arc::clone(&self.member), Arc::clone(&self.on_lost));
            let is_ending = Arc::clone(&self.is_ending);
            rank.watcher =
                Some(thread::Builder::new().name(format!("rank-{}", index + 1)).spawn(move || {
                    wait_for_close(&socket);
                    member.endpoint.mark_lost(index + 1);
                    let status = process.lock().unwrap_or_else(PoisonError::into_inner).wait();
                    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    if !is_ending.load(Ordering::Relaxed) {
                        on_lost(&format!("rank {} has ended: {how}", index + 1));
                    }
                })?);
        }
        Ok(())
    }

    /// Ids of the processes.
    pub fn processes(&self) -> Vec<u32> {
        let id = |rank: &Rank| rank.process.lock().unwrap_or_else(PoisonError::into_inner).id();
        self.ranks.iter().map(id).collect()
    }
}

fn unexpected(rank: usize, message: &FromRank) -> GroupError {
    let why = match message {
        FromRank::Failed { why } => why.clone(),
        other => format!("unexpected message `{other:?}`"),
    };
    GroupError::Rank { rank, why }
}

impl Rank {
    /// Waits for the next message. On an error, kills the process and returns its exit status.
    fn receive(&self, rank: usize) -> Result<FromRank, GroupError> {
        receive(&self.socket).map_err(|error| {
            // A rank without a working socket is of no use.
            let _ = self.socket.shutdown(Shutdown::Both);
            let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = process.kill();
            let how = process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            GroupError::Rank { rank, why: format!("its process has ended: {how} ({error})") }
        })
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        for rank in &self.ranks {
            // The watcher thread holds the lock only after the process has closed its socket.
            let _ = rank.socket.shutdown(Shutdown::Both);
            if let Ok(mut process) = rank.process.try_lock() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        for watcher in self.ranks.iter_mut().filter_map(|rank| rank.watcher.take()) {
            let _ = watcher.join();
        }
    }
}

//! `Replica`: starts one of several identical child processes, and restarts it with exponential
//! backoff. A child process is a worker or a tokenizer process.

use crate::message::{Header, MessageNumbers};
use crate::parent_death_signal::child_command;
use kvasir_engine::ReplicaPhase;
use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::{
    process::{self, Child},
    select,
    sync::{mpsc::UnboundedSender, oneshot},
    time::Instant,
};

/// Restart delay of a process that was ready. It doubles with each process that ends before it is
/// ready.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// Values from which the arguments of a worker process are made.
#[derive(Clone, Copy, Debug)]
pub struct WorkerStart<'a> {
    /// Directory of the sockets.
    pub directory: &'a Path,
    /// Index of the replica.
    pub replica: u32,
    /// Number of processes that the replica had before.
    pub generation: u32,
    /// Inherited descriptor of the shared memory of the expert-parallel group, if there is one.
    pub experts_memory: Option<i32>,
}

/// Makes the command-line arguments of a worker process.
pub type WorkerArguments = Box<dyn Fn(&WorkerStart<'_>) -> Vec<OsString> + Send>;

/// The command that starts a worker.
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: WorkerArguments,
}

impl fmt::Debug for WorkerCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerCommand").field("program", &self.program).finish_non_exhaustive()
    }
}

impl WorkerCommand {
    /// Builds the command of a worker process. The process exits when the pipe to its standard
    /// input is closed, that is, when the front has ended.
    pub(crate) fn build(&self, start: &WorkerStart<'_>) -> Command {
        let mut process = child_command(&self.program);
        process.args((self.arguments)(start));
        process.stdin(Stdio::piped());
        process
    }
}

/// Reports that a process has ended.
pub(crate) struct Ended {
    pub(crate) replica: usize,
    pub(crate) generation: u32,
    pub(crate) why: String,
}

/// A replica.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) phase: ReplicaPhase,
    pub(crate) process: Option<u32>,
    pub(crate) header: Header,
    pub(crate) sent: MessageNumbers,
    pub(crate) received: MessageNumbers,
    pub(crate) dropped: u64,
    /// Processes that the watchdog has killed.
    pub(crate) hangs: u32,
    pub(crate) last_exit: Option<String>,
    /// When its process is restarted.
    pub(crate) restart_at: Option<Instant>,
    /// Whether its process was told to exit.
    pub(crate) is_ending: bool,
    /// When its process, told to exit, is killed.
    pub(crate) kill_at: Option<Instant>,
    /// Whether it gets no request until it is restarted by order.
    pub(crate) is_drained: bool,
    /// Dropping it kills the process.
    kill: Option<oneshot::Sender<()>>,
    delay: Duration,
}

impl Replica {
    /// A replica without a process.
    pub(crate) fn new(index: u32) -> Self {
        Self {
            phase: ReplicaPhase::Down,
            process: None,
            header: Header { replica: index, generation: 0, number: 0 },
            sent: MessageNumbers::default(),
            received: MessageNumbers::default(),
            dropped: 0,
            hangs: 0,
            last_exit: None,
            restart_at: None,
            is_ending: false,
            kill_at: None,
            is_drained: false,
            kill: None,
            delay: Duration::ZERO,
        }
    }

    /// Starts its process; sends to `ended` when the process has ended.
    pub(crate) fn start(&mut self, process: Command, ended: UnboundedSender<Ended>) -> io::Result<()> {
        let Header { replica, generation, .. } = self.header;
        let mut process = process::Command::from(process);
        // Its own process group: an interrupt from the terminal is for the front only.
        process.process_group(0).kill_on_drop(true);
        let child = process.spawn()?;
        let (kill, killed) = oneshot::channel();
        self.process = child.id();
        self.kill = Some(kill);
        self.phase = ReplicaPhase::Starting;
        self.restart_at = None;
        self.is_ending = false;
        tokio::spawn(async move {
            let why = wait(child, killed).await;
            let _ = ended.send(Ended { replica: replica as usize, generation, why });
        });
        Ok(())
    }

    /// Kills its process.
    pub(crate) fn kill(&mut self) {
        (self.kill, self.kill_at) = (None, None);
    }

    /// Its process can take requests.
    pub(crate) fn accept(&mut self) {
        self.phase = if self.is_drained { ReplicaPhase::Drained } else { ReplicaPhase::Ready };
    }

    /// Whether its process has completed the handshake and runs.
    pub(crate) fn accepts_messages(&self) -> bool {
        matches!(self.phase, ReplicaPhase::Ready | ReplicaPhase::Drained)
    }

    /// Kills its process, because the process of another replica of its group has ended. Adds no
    /// restart delay.
    pub(crate) fn kill_with_group(&mut self) {
        self.is_ending = true;
        self.kill();
    }

    /// Delay between the end of its last process and the restart.
    pub(crate) fn restart_delay(&self) -> Duration {
        self.delay
    }

    /// Records that its process has ended, and schedules the restart: at once if it was told to
    /// exit, else after a delay.
    pub(crate) fn ended(&mut self, why: String) {
        self.delay = match self.phase {
            _ if self.is_ending => Duration::ZERO,
            ReplicaPhase::Ready | ReplicaPhase::Drained => FIRST_DELAY,
            ReplicaPhase::Starting | ReplicaPhase::Down => (self.delay * 2).clamp(FIRST_DELAY, LONGEST_DELAY),
        };
        self.restart_at = Some(Instant::now() + self.delay);
        (self.is_ending, self.kill_at) = (false, None);
        self.phase = ReplicaPhase::Down;
        (self.process, self.kill) = (None, None);
        self.last_exit = Some(why);
        self.header.generation += 1;
        (self.sent, self.received) = Default::default();
    }
}

/// Waits for a process, and kills it when the sender of `killed` is dropped. Returns how it ended.
async fn wait(mut child: Child, killed: oneshot::Receiver<()>) -> String {
    // The pipe stays open as long as this task runs.
    let _pipe = child.stdin.take();
    let status = select! {
        status = child.wait() => status,
        _ = killed => {
            // Fails if it has already ended.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

//! [`TokenizerPool`]: the thread that supervises the tokenizer processes and sends them jobs.
//!
//! A process that ends is restarted with exponential backoff. A process that has jobs and sends
//! nothing for [`HANG_TIMEOUT`], or that sends an invalid message, is killed. Its jobs run on
//! another process as soon as one is ready. An idle pool uses no CPU.

#[cfg(test)]
mod tests;

use crate::message::{Header, Identity, protocol_difference};
use crate::parent_death_signal::child_command;
use crate::replica::{Ended, Replica};
use crate::tokenizers::client::TokenizerClient;
use crate::tokenizers::error::TokenizerError;
use crate::tokenizers::frame::FrameError;
use crate::tokenizers::job::{FromTokenizer, Job, PROTOCOL, ToTokenizer, Work};
use crate::tokenizers::jobs::Jobs;
use crate::tokenizers::link::{Link, Received};
use crate::tokenizers::pool_command::PoolCommand;
use crate::watchdog::Watchdog;
use crate::workers::{EXIT_TIME, OnLog};
use kvasir_chat::TokenizerStatus;
use kvasir_engine::ReplicaPhase;
use std::{
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};
use tokio::{
    select,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until, timeout},
};

/// A process that has jobs is killed after this time without a message. A process that runs jobs
/// sends a heartbeat once per second.
const HANG_TIMEOUT: Duration = Duration::from_secs(10);

/// Values from which the arguments of a tokenizer process are made.
#[derive(Clone, Copy, Debug)]
pub struct TokenizerStart {
    /// Index of the tokenizer process.
    pub tokenizer: u32,
    /// Number of earlier processes with this index.
    pub generation: u32,
}

/// Makes the command-line arguments of a tokenizer process.
pub type TokenizerArguments = Box<dyn Fn(TokenizerStart) -> Vec<OsString> + Send>;

/// Configuration of the tokenizer processes.
pub struct TokenizerConfig {
    /// Number of processes.
    pub processes: usize,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: TokenizerArguments,
    /// Version, model and options, which every process must match.
    pub identity: Identity,
    /// Receives lines for the log.
    pub on_log: OnLog,
}

/// A running pool of tokenizer processes. Dropping it ends them.
pub struct TokenizerPool {
    client: TokenizerClient,
    commands: UnboundedSender<PoolCommand>,
    thread: Option<thread::JoinHandle<()>>,
}

impl TokenizerPool {
    /// Starts the processes, and waits until all of them are ready.
    pub fn start(config: TokenizerConfig) -> Result<Self, TokenizerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (commands_to, commands) = unbounded_channel();
        let status = Arc::default();
        let client = TokenizerClient::new(commands_to.clone(), Arc::clone(&status));
        let (started_to, started) = mpsc::sync_channel(1);
        let run = move || {
            runtime.block_on(async {
                let mut pool = Supervisor::new(config, status);
                let result = pool.start_all().await;
                let is_started = result.is_ok();
                // `start` holds the receiver.
                let _ = started_to.send(result);
                if is_started {
                    pool.serve(commands).await;
                }
            });
        };
        let thread = thread::Builder::new().name("tokenizers".into()).spawn(run)?;
        let thread = Some(thread);
        let pool = Self { client, commands: commands_to, thread };
        let ended = || io::Error::other("the thread of the tokenizer processes has ended");
        started.recv().map_err(|_| ended())??;
        Ok(pool)
    }

    /// A handle that submits jobs to the processes.
    pub fn client(&self) -> TokenizerClient {
        self.client.clone()
    }
}

impl Drop for TokenizerPool {
    fn drop(&mut self) {
        // Fails if the thread has ended.
        let _ = self.commands.send(PoolCommand::Exit);
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

/// State of the pool's thread.
struct Supervisor {
    config: TokenizerConfig,
    processes: Vec<Process>,
    jobs: Jobs,
    watchdog: Watchdog,
    received_to: UnboundedSender<Received>,
    received: UnboundedReceiver<Received>,
    ended_to: UnboundedSender<Ended>,
    ended: UnboundedReceiver<Ended>,
    status: Arc<Mutex<Vec<TokenizerStatus>>>,
}

/// The front's view of one tokenizer process.
struct Process {
    replica: Replica,
    /// `None` while no process runs, and after the process was told to end.
    link: Option<Link>,
}

impl Supervisor {
    fn new(config: TokenizerConfig, status: Arc<Mutex<Vec<TokenizerStatus>>>) -> Self {
        let count = config.processes;
        let process = |index: usize| Process { replica: Replica::new(index as u32), link: None };
        let ((received_to, received), (ended_to, ended)) = (unbounded_channel(), unbounded_channel());
        Self {
            config,
            processes: (0..count).map(process).collect(),
            jobs: Jobs::new(count),
            watchdog: Watchdog::new(count, HANG_TIMEOUT),
            received_to,
            received,
            ended_to,
            ended,
            status,
        }
    }

    /// Starts all processes and waits until they are ready.
    async fn start_all(&mut self) -> Result<(), TokenizerError> {
        for index in 0..self.processes.len() {
            self.start(index)?;
        }
        while self.processes.iter().any(|process| process.replica.phase != ReplicaPhase::Ready) {
            select! {
                Some(received) = self.received.recv() => self.handle_message(received)?,
                Some(Ended { replica, why, .. }) = self.ended.recv() => {
                    return Err(TokenizerError::Ended { tokenizer: replica, why });
                }
            }
        }
        self.publish_status();
        Ok(())
    }

    fn start(&mut self, index: usize) -> io::Result<()> {
        let process = &mut self.processes[index];
        let header = Header { number: 0, ..process.replica.header };
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = child_command(&self.config.program);
        let start = TokenizerStart { tokenizer: header.replica, generation: header.generation };
        command.args((self.config.arguments)(start));
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        process.replica.start(command, self.ended_to.clone())?;
        process.link = Some(Link::open(ours, header, self.received_to.clone())?);
        Ok(())
    }

    async fn serve(&mut self, mut commands: UnboundedReceiver<PoolCommand>) {
        loop {
            let has_work = (0..self.processes.len()).any(|index| self.jobs.has_work(index));
            self.watchdog.arm(has_work, Instant::now());
            let restarts = self.processes.iter().filter_map(|process| process.replica.restart_at);
            let due = restarts.chain(self.watchdog.due()).min();
            let command = select! {
                command = commands.recv() => Some(command.unwrap_or(PoolCommand::Exit)),
                Some(received) = self.received.recv() => {
                    self.handle_message_or_log(received);
                    None
                }
                Some(ended) = self.ended.recv() => {
                    self.handle_process_end(ended);
                    None
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.kill_hung();
                    self.start_due();
                    None
                }
            };
            // Takes all pending commands, so that their jobs are sent in one message per process.
            let mut command = command.or_else(|| commands.try_recv().ok());
            while let Some(next) = command {
                match next {
                    PoolCommand::Submit { id, work, reply } => self.jobs.add(id, work, reply),
                    PoolCommand::Cancel { id } => self.cancel(id),
                    PoolCommand::Exit => return self.exit().await,
                }
                command = commands.try_recv().ok();
            }
            while let Ok(received) = self.received.try_recv() {
                self.handle_message_or_log(received);
            }
            self.send_waiting_jobs();
            self.publish_status();
        }
    }

    fn cancel(&mut self, id: u64) {
        if let Some(link) = self.jobs.cancel(id).and_then(|index| self.processes[index].link.as_mut()) {
            link.send(&ToTokenizer::<Work>::Cancel { id });
        }
    }

    fn handle_message_or_log(&mut self, received: Received) {
        if let Err(error) = self.handle_message(received) {
            (self.config.on_log)(true, &error.to_string());
        }
    }

    /// Handles a message of a process. Fails if the process does not match the identity.
    fn handle_message(&mut self, received: Received) -> Result<(), TokenizerError> {
        let Received { tokenizer: index, generation, message } = received;
        let process = &mut self.processes[index];
        if process.replica.header.generation != generation {
            return Ok(());
        }
        let message = match message {
            Ok(message) => message,
            // The exit of the process is handled when `ended` reports it.
            Err(FrameError::Closed(_)) => return Ok(()),
            Err(error) => {
                self.refuse_message(index, &error.to_string());
                return Ok(());
            }
        };
        self.watchdog.record_progress(index);
        match message {
            FromTokenizer::Hello { protocol, identity } => {
                let difference = protocol_difference(PROTOCOL, protocol);
                let difference = difference.or_else(|| self.config.identity.difference(&identity));
                if let Some(why) = difference {
                    process.send(&ToTokenizer::Refused { why: why.clone() });
                    return Err(TokenizerError::Refused { why });
                }
                process.send(&ToTokenizer::Welcome);
                process.replica.accept();
                self.jobs.process_ready(index);
                if generation > 0 {
                    (self.config.on_log)(false, &format!("tokenizer process {index} is ready"));
                }
            }
            FromTokenizer::Results(results) => {
                for (id, outcome) in results {
                    if self.jobs.complete(index, id, outcome).is_err() {
                        self.refuse_message(index, "it has sent a result that does not match its job");
                        break;
                    }
                }
            }
            FromTokenizer::Heartbeat => {}
        }
        Ok(())
    }

    /// Counts and logs an invalid message, and kills the process that has sent it.
    fn refuse_message(&mut self, index: usize, why: &str) {
        let process = &mut self.processes[index];
        process.replica.dropped += 1;
        (self.config.on_log)(true, &format!("tokenizer process {index}: {why}; killing it"));
        process.kill();
        self.jobs.stop_using(index);
    }

    fn kill_hung(&mut self) {
        for index in self.watchdog.poll(Instant::now(), |index| self.jobs.has_work(index)) {
            let seconds = self.watchdog.timeout_seconds();
            let line = format!(
                "tokenizer process {index} has jobs and has sent nothing for {seconds:.0} s; killing it"
            );
            (self.config.on_log)(true, &line);
            self.processes[index].replica.hangs += 1;
            self.processes[index].kill();
            self.jobs.stop_using(index);
        }
    }

    fn handle_process_end(&mut self, Ended { replica: index, generation, why }: Ended) {
        let process = &mut self.processes[index];
        if process.replica.header.generation != generation {
            return;
        }
        process.link = None;
        process.replica.ended(why.clone());
        let seconds = process.replica.restart_delay().as_secs_f64();
        let line = format!("tokenizer process {index} has ended: {why}; restarting it in {seconds:.1} s");
        (self.config.on_log)(true, &line);
        self.jobs.process_lost(index);
    }

    /// Starts the processes whose restart is due.
    fn start_due(&mut self) {
        let now = Instant::now();
        for index in 0..self.processes.len() {
            if self.processes[index].replica.restart_at.is_none_or(|at| at > now) {
                continue;
            }
            if let Err(error) = self.start(index) {
                let process = &mut self.processes[index];
                let line = format!("tokenizer process {index} could not start: {error}");
                (self.config.on_log)(true, &line);
                process.kill();
                process.replica.ended(error.to_string());
            }
        }
    }

    /// Assigns the waiting jobs to ready processes, and sends them.
    fn send_waiting_jobs(&mut self) {
        for (index, ids) in self.jobs.assign().into_iter().enumerate() {
            if ids.is_empty() {
                continue;
            }
            let jobs = |ids: &[u64]| {
                let job = |id: &u64| self.jobs.work(*id).map(|work| Job { id: *id, work });
                ToTokenizer::Jobs(ids.iter().filter_map(job).collect::<Vec<_>>())
            };
            let Some(link) = &mut self.processes[index].link else { continue };
            if link.send(&jobs(&ids)) {
                continue;
            }
            // The jobs are too large for one message: send one message per job.
            let too_large: Vec<u64> =
                ids.into_iter().filter(|id| !link.send(&jobs(std::slice::from_ref(id)))).collect();
            too_large.into_iter().for_each(|id| self.jobs.fail(id, "the text is too large for a message"));
        }
    }

    fn publish_status(&self) {
        let mut all = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        all.resize_with(self.processes.len(), TokenizerStatus::default);
        for (index, (status, Process { replica, .. })) in all.iter_mut().zip(&self.processes).enumerate() {
            let load = self.jobs.load(index);
            status.tokenizer = index;
            status.is_ready = load.is_ready;
            status.process = replica.process;
            (status.jobs, status.completed_jobs) = (load.jobs, load.completed);
            status.restarts = replica.header.generation;
            (status.hangs, status.dropped_messages) = (replica.hangs, replica.dropped);
            status.last_exit.clone_from(&replica.last_exit);
        }
    }

    /// Ends all processes: closes their sockets, and kills those that do not exit.
    async fn exit(&mut self) {
        self.jobs.fail_all("the server is stopping");
        self.processes.iter_mut().for_each(|process| process.link = None);
        let wait = async {
            while self.processes.iter().any(|process| process.replica.process.is_some()) {
                let Some(Ended { replica, why, .. }) = self.ended.recv().await else { return };
                self.processes[replica].replica.ended(why);
            }
        };
        // Dropping the runtime kills the processes that have not exited.
        let _ = timeout(EXIT_TIME, wait).await;
    }
}

impl Process {
    fn send(&mut self, message: &ToTokenizer) {
        if let Some(link) = &mut self.link {
            link.send(message);
        }
    }

    /// Kills the process and closes its socket.
    fn kill(&mut self) {
        self.link = None;
        self.replica.kill();
    }
}

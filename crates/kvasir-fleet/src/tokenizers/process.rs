//! [`run_tokenizer`]: the main loop of a tokenizer process.
//!
//! One thread reads jobs, detokenizes the tokens of streams, and writes results. Other jobs, whose
//! run time depends on the text, run on up to [`MAX_THREADS`] blocking threads. The process exits
//! when the front closes the socket, so it does not outlive the front. It ignores signals to
//! terminate: the front handles them, and needs the process until running answers have ended.

use crate::message::{Header, Identity};
use crate::tokenizers::error::TokenizerError;
use crate::tokenizers::frame;
use crate::tokenizers::job::{FromTokenizer, Job, Outcome, PROTOCOL, ToTokenizer, Work};
use kvasir_chat::ChatModel;
use std::{
    collections::HashMap,
    io,
    os::{fd::AsFd, unix},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    select,
    signal::unix::{SignalKind, signal},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};

/// Interval of heartbeats while jobs run.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of threads that run jobs.
const MAX_THREADS: usize = 64;

/// Configuration of a tokenizer process.
pub struct TokenizerProcessConfig {
    /// Index of the process.
    pub tokenizer: u32,
    /// Number of processes that had this index before.
    pub generation: u32,
    /// Version, model and options, which the front checks.
    pub identity: Identity,
    /// Tokenizer and special tokens of the model.
    pub chat: ChatModel,
}

/// Runs the jobs of the front until the front closes the socket, which is standard input.
pub fn run_tokenizer(config: TokenizerProcessConfig) -> Result<(), TokenizerError> {
    let socket = unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().max_blocking_threads(MAX_THREADS).build()?;
    let result = runtime.block_on(async {
        let (reader, writer) = UnixStream::from_std(socket)?.into_split();
        let TokenizerProcessConfig { tokenizer, generation, identity, chat } = config;
        let header = Header { replica: tokenizer, generation, number: 0 };
        let (results_to, results) = unbounded_channel();
        let chat = Arc::new(chat);
        let process = Process { writer, header, chat, running: HashMap::new(), results_to };
        process.serve(reader, results, identity).await
    });
    // Does not wait for running jobs.
    runtime.shutdown_background();
    result
}

struct Process {
    writer: OwnedWriteHalf,
    /// Header of the last message that was sent.
    header: Header,
    chat: Arc<ChatModel>,
    /// Cancel flags of the jobs that run on blocking threads, by job id.
    running: HashMap<u64, Arc<AtomicBool>>,
    results_to: UnboundedSender<(u64, Outcome)>,
}

impl Process {
    async fn serve(
        mut self,
        reader: OwnedReadHalf,
        mut results: UnboundedReceiver<(u64, Outcome)>,
        identity: Identity,
    ) -> Result<(), TokenizerError> {
        let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        // A signal with a handler does not end the process. The handlers are never polled.
        let _ignored = signals.map(signal);
        let (messages_to, mut messages) = unbounded_channel();
        tokio::spawn(read_messages(reader, self.header, messages_to));
        self.send(&FromTokenizer::Hello { protocol: PROTOCOL, identity }).await?;
        let mut heartbeat_due = Instant::now();
        loop {
            let has_running = !self.running.is_empty();
            select! {
                message = messages.recv() => {
                    if !has_running {
                        heartbeat_due = Instant::now() + HEARTBEAT_INTERVAL;
                    }
                    match message {
                        Some(ToTokenizer::Jobs(jobs)) => jobs.into_iter().for_each(|job| self.begin(job)),
                        Some(ToTokenizer::Cancel { id }) => {
                            let flag = self.running.get(&id);
                            flag.into_iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
                        }
                        Some(ToTokenizer::Welcome) => {}
                        Some(ToTokenizer::Refused { why }) => return Err(TokenizerError::Refused { why }),
                        // The front has ended, or its messages cannot be read.
                        None => return Ok(()),
                    }
                }
                Some(first) = results.recv() => {
                    let mut batch = vec![first];
                    while let Ok(next) = results.try_recv() {
                        batch.push(next);
                    }
                    batch.iter().for_each(|(id, _)| drop(self.running.remove(id)));
                    self.send_results(batch).await?;
                }
                () = sleep_until(heartbeat_due), if has_running => {
                    self.send(&FromTokenizer::Heartbeat).await?;
                    heartbeat_due = Instant::now() + HEARTBEAT_INTERVAL;
                }
            }
        }
    }

    /// Runs a short job, or starts another job on a blocking thread.
    fn begin(&mut self, Job { id, work }: Job) {
        let (is_short, chat, results) = (work.is_short(), Arc::clone(&self.chat), self.results_to.clone());
        let canceled = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&canceled);
        // A panic of the tokenizer fails this job only.
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work.run(&chat, &flag)));
            let outcome = outcome.unwrap_or_else(|_| Outcome::Failed("the tokenizer has panicked".into()));
            // Fails only if the process is about to exit.
            let _ = results.send((id, outcome));
        };
        if is_short {
            run();
        } else {
            self.running.insert(id, canceled);
            spawn_blocking(run);
        }
    }

    /// Sends results in one message, or in one message each if they are too large for one.
    async fn send_results(&mut self, batch: Vec<(u64, Outcome)>) -> io::Result<()> {
        let message = FromTokenizer::Results(batch);
        if self.send(&message).await? {
            return Ok(());
        }
        let FromTokenizer::Results(batch) = message else { return Ok(()) };
        for (id, outcome) in batch {
            if !self.send(&FromTokenizer::Results(vec![(id, outcome)])).await? {
                let failed = Outcome::Failed("the result is too large for a message".into());
                self.send(&FromTokenizer::Results(vec![(id, failed)])).await?;
            }
        }
        Ok(())
    }

    /// Sends a message. Returns false if it is too large.
    async fn send(&mut self, message: &FromTokenizer) -> io::Result<bool> {
        let header = Header { number: self.header.number + 1, ..self.header };
        let Some(bytes) = frame::encode(header, message) else { return Ok(false) };
        self.header = header;
        self.writer.write_all(&bytes).await?;
        Ok(true)
    }
}

/// Forwards messages until the socket is closed or a frame is refused.
async fn read_messages(
    reader: OwnedReadHalf,
    mut header: Header,
    messages: UnboundedSender<ToTokenizer<Work>>,
) {
    let mut reader = BufReader::new(reader);
    loop {
        header.number += 1;
        let Ok(message) = frame::read(&mut reader, header).await else { return };
        if messages.send(message).is_err() {
            return;
        }
    }
}

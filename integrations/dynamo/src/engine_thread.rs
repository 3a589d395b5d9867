//! `EngineThread`: runs the engine's serving loop on a dedicated thread. Requests are messages to
//! its inbox, and each request has a channel for its events.
//!
//! Invariants:
//! - A request's channel is in the map from its submission until its end.
//! - The backlog of a channel is bounded by the request's `max_tokens`.
//! - When the thread ends, also by a panic, it closes all channels and refuses new requests.

use crate::failure::stopped;
use dynamo_backend_common::DynamoError;
use kvasir_engine::{EventOutput, Exit, Finish, Message, Outbox, Request, Serving};
use kvasir_exec::TokenLogprobs;
use std::{
    collections::HashMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Event of a request: new tokens, a finish reason, or both.
#[derive(Debug)]
pub(crate) struct Delta {
    pub(crate) tokens: Vec<u32>,
    /// One per token; empty unless the request has `logprobs`.
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) finish: Option<Finish>,
    /// Prompt tokens from the prefix cache; set in the last event.
    pub(crate) cached: u32,
}

impl From<EventOutput<'_>> for Delta {
    fn from(output: EventOutput<'_>) -> Self {
        Self {
            tokens: output.tokens.to_vec(),
            logprobs: output.logprobs.iter().map(|(_, logprobs)| logprobs.clone()).collect(),
            finish: output.event.finish,
            cached: output.summary.map_or(0, |summary| summary.cached),
        }
    }
}

/// Channels of running requests by tag; `None` after the engine has ended.
#[derive(Clone)]
struct Channels(Arc<Mutex<Option<HashMap<u64, UnboundedSender<Delta>>>>>);

impl Channels {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, UnboundedSender<Delta>>>> {
        // A panic cannot leave the map inconsistent: each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends each event to the channel of its request, and closes the channels of ended requests.
    fn deliver(&self, outbox: &Outbox) {
        let mut channels = self.lock();
        let Some(channels) = channels.as_mut() else { return };
        for output in outbox.iter() {
            let tag = output.event.tag;
            let ends = output.event.finish.is_some();
            if let Some(channel) = channels.get(&tag) {
                // Fails if the stream was dropped, which has sent an abort.
                let _ = channel.send(output.into());
            }
            if ends {
                channels.remove(&tag);
            }
        }
    }
}

/// Handle of the engine's thread.
pub(crate) struct EngineThread {
    inbox: mpsc::Sender<Message>,
    channels: Channels,
    next_tag: AtomicU64,
    thread: JoinHandle<Exit>,
}

impl EngineThread {
    pub(crate) fn start(engine: Box<dyn Serving>) -> io::Result<Self> {
        let (inbox, messages) = mpsc::channel();
        let channels = Channels(Arc::new(Mutex::new(Some(HashMap::new()))));
        let own = channels.clone();
        let thread = thread::Builder::new().name("engine".into()).spawn(move || {
            let delivering = own.clone();
            let serve = || engine.serve_inbox(messages, &mut |outbox| delivering.deliver(outbox));
            // Unwind safe: the engine is not used after a panic.
            let exit = catch_unwind(AssertUnwindSafe(serve));
            // Streams of running requests end without a finish reason.
            *own.lock() = None;
            exit.unwrap_or_else(|_| Exit::Broken("the engine's thread panicked".into()))
        })?;
        Ok(Self { inbox, channels, next_tag: AtomicU64::new(1), thread })
    }

    /// Submits a request. Dropping the result before its last event aborts the request.
    pub(crate) fn submit(&self, mut request: Request) -> Result<RunningRequest, DynamoError> {
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        let (sender, deltas) = unbounded_channel();
        self.channels.lock().as_mut().ok_or_else(stopped)?.insert(tag, sender);
        request.tag = tag;
        let added = self.inbox.send(Message::Add { request: Box::new(request), n: 1 });
        added.map_err(|_| stopped())?;
        Ok(RunningRequest { tag, deltas, inbox: self.inbox.clone(), is_ended: false })
    }

    /// Aborts all requests, and waits until the thread has ended.
    pub(crate) fn exit(self) -> Exit {
        // Fails if the thread has ended.
        let _ = self.inbox.send(Message::Exit);
        self.thread.join().unwrap_or_else(|_| Exit::Broken("the engine's thread panicked".into()))
    }
}

/// A submitted request: the receiving end of its events.
pub(crate) struct RunningRequest {
    tag: u64,
    deltas: UnboundedReceiver<Delta>,
    inbox: mpsc::Sender<Message>,
    is_ended: bool,
}

impl RunningRequest {
    /// The next event; `None` if the engine has stopped.
    pub(crate) async fn next(&mut self) -> Option<Delta> {
        let delta = self.deltas.recv().await;
        self.is_ended |= delta.as_ref().is_none_or(|delta| delta.finish.is_some());
        delta
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        if !self.is_ended {
            // Fails if the thread has ended, which has aborted all requests.
            let _ = self.inbox.send(Message::Abort { tag: self.tag });
        }
    }
}

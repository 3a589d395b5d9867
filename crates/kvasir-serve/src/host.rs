//! The engine behind the server: its thread, and the way to it and back.

use crate::{ApiError, kept::Kept};
use kvasir_engine::{Engine, Exit, Fault, Finish, Message, Outbox, Refusal, Request, Summary};
use kvasir_exec::{Executor, TokenLogprobs};
use kvasir_kv::Token;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What one step brought for one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Their log-probabilities, for a request that asked.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log-probabilities of the prompt's tokens from the second on, with the first piece of a request that asked.
    pub scores: Vec<TokenLogprobs>,
    /// Set on the last piece.
    pub ended: Option<Summary>,
}

type Clients = HashMap<u64, UnboundedSender<Piece>>;

/// An engine on a thread of its own, and the way to it and back.
///
/// What waits for a client that does not read is bounded by what the client asked for: its tokens.
pub struct Host {
    pub(crate) inbox: mpsc::Sender<Message>,
    pub(crate) kept: Arc<Kept>,
    clients: Arc<Mutex<Clients>>,
    exit: Arc<Mutex<Option<Exit>>>,
    next_tag: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks can leave them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Starts `engine` on its thread.
    pub fn start<E: Executor + Send + 'static>(mut engine: Engine<E>) -> std::io::Result<Arc<Self>>
    where
        E::Pending: Send,
    {
        let (inbox, messages) = mpsc::channel();
        let host = Arc::new(Self {
            inbox,
            kept: Arc::default(),
            clients: Arc::default(),
            exit: Arc::default(),
            next_tag: AtomicU64::new(1),
        });
        let (clients, kept, exit) = (host.clients.clone(), host.kept.clone(), host.exit.clone());
        thread::Builder::new().name("engine".into()).spawn(move || {
            let why = engine.serve(&messages, |outbox| {
                // First, so that who hears of an end finds what it left.
                kept.hear(outbox);
                deliver(&clients, outbox);
            });
            *locked(&exit) = Some(why);
            // Dropping the senders tells every client that nothing more comes.
            locked(&clients).clear();
            kept.close();
        })?;
        Ok(host)
    }

    /// Hands a request over `n` times; one stream for each answer.
    pub fn submit(self: &Arc<Self>, mut request: Request, n: u32) -> Result<Vec<Answers>, ApiError> {
        let first = self.next_tag.fetch_add(u64::from(n), Ordering::Relaxed);
        request.tag = first;
        let streams: Vec<_> = (first..first + u64::from(n)).map(|tag| self.listen(tag)).collect();
        let sent = self.inbox.send(Message::Add { request: Box::new(request), n });
        match sent.is_ok() && self.exit().is_none() {
            true => Ok(streams),
            false => Err(ApiError::unavailable("the engine has stopped")),
        }
    }

    fn listen(self: &Arc<Self>, tag: u64) -> Answers {
        let (send, pieces) = unbounded_channel();
        locked(&self.clients).insert(tag, send);
        Answers { tag, pieces, host: self.clone(), ended: false }
    }

    /// Why the engine has stopped, if it has.
    pub fn exit(&self) -> Option<Exit> {
        locked(&self.exit).clone()
    }

    /// Answers that are being made or waited for.
    pub fn open(&self) -> usize {
        locked(&self.clients).len()
    }

    /// Takes no more requests, and lets the engine leave when those it has are done.
    pub fn drain(&self) {
        // An engine that is gone already has nothing to drain.
        let _ = self.inbox.send(Message::Drain);
    }
}

fn deliver(clients: &Mutex<Clients>, outbox: &Outbox) {
    let mut clients = locked(clients);
    let mut ended = outbox.ended.iter().peekable();
    // Both lists are in the order of the events' tokens.
    let mut logprobs = outbox.logprobs.iter().peekable();
    let mut scores = outbox.scores.iter().peekable();
    for (index, (event, tokens)) in outbox.iter().enumerate() {
        let summary = match event.finish {
            Some(_) => ended.next_if(|summary| summary.tag == event.tag).copied(),
            None => None,
        };
        let end = event.tokens.range().end;
        let own = std::iter::from_fn(|| logprobs.next_if(|(at, _)| (*at as usize) < end));
        let piece = Piece {
            tokens: tokens.to_vec(),
            logprobs: own.map(|(_, logprobs)| logprobs.clone()).collect(),
            scores: scores
                .next_if(|(at, _)| *at as usize == index)
                .map(|(_, list)| list.clone())
                .unwrap_or_default(),
            ended: summary,
        };
        // A client that left is aborted by the drop of its stream.
        if let Some(client) = clients.get(&event.tag) {
            let _ = client.send(piece);
        }
        if event.finish.is_some() {
            clients.remove(&event.tag);
        }
    }
}

/// The answer to one prompt, piece by piece. Dropping it before its end aborts the request.
pub struct Answers {
    tag: u64,
    pieces: UnboundedReceiver<Piece>,
    host: Arc<Host>,
    ended: bool,
}

impl Answers {
    /// The next piece; what has piled up comes as one. An error if the engine is gone.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        let mut piece =
            self.pieces.recv().await.ok_or_else(|| ApiError::unavailable("the engine has stopped"))?;
        while piece.ended.is_none()
            && let Ok(more) = self.pieces.try_recv()
        {
            piece.tokens.extend(more.tokens);
            piece.logprobs.extend(more.logprobs);
            piece.scores.extend(more.scores);
            piece.ended = more.ended;
        }
        self.ended = piece.ended.is_some();
        Ok(piece)
    }

    /// Asks for the end after `keep` tokens, because the text contains a stop. The last piece follows soon.
    pub fn stop_at(&self, keep: u32) {
        let _ = self.host.inbox.send(Message::StopAt { tag: self.tag, keep });
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.host.inbox.send(Message::Abort { tag: self.tag });
        }
        locked(&self.host.clients).remove(&self.tag);
    }
}

/// The error that a client gets for a request that ended like this, if it is one.
pub fn failure(finish: Finish) -> Option<ApiError> {
    let message = finish.to_string();
    match finish {
        Finish::Refused(refusal) => Some(match refusal {
            Refusal::EmptyPrompt => ApiError::param("prompt", "the prompt has no token"),
            Refusal::TooLong { .. } | Refusal::NeverFits { .. } | Refusal::OverBudget { .. } => {
                ApiError::too_long("messages", refusal.to_string())
            }
            Refusal::QueueFull { .. } => ApiError::too_many(refusal.to_string()),
            Refusal::BadParameter(which) => ApiError::param(which.name(), refusal.to_string()),
        }),
        Finish::Failed(Fault::Constraint) => Some(ApiError::failed(
            "the answer came to a place from which the form asked for cannot be followed within the engine's limits",
        )),
        Finish::Failed(fault) => {
            Some(ApiError::failed(format!("the step that ran this request failed ({fault:?})")))
        }
        Finish::Aborted => Some(ApiError::unavailable(message)),
        _ => None,
    }
}

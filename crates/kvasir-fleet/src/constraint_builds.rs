//! Builds the constraints of requests on a thread of their own, before the engine sees the requests.
//!
//! A grammar may take seconds to compile. Meanwhile other requests go on; messages about a request that
//! is being built wait for it, so that the engine sees them in order.

use crate::open_request::push_end;
use kvasir_engine::{Fault, Finish, Message, Outbox, Request, RequestId, SessionId, Summary, Timings};
use kvasir_kv::Token;
use kvasir_sample::Constrained;
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Builds a constraint from its recipe, for an answer to a prompt; `None` if it cannot be built. Setting
/// the flag cancels the work.
pub type BuildConstraint = Box<dyn Fn(&str, &[Token], &Arc<AtomicBool>) -> Option<Constrained> + Send>;

/// The requests whose constraints are being built.
pub(crate) struct ConstraintBuilds {
    jobs: mpsc::Sender<Job>,
    built: UnboundedReceiver<Built>,
    /// By the tag of the first sibling.
    pending: HashMap<u64, Pending>,
}

struct Job {
    request: Box<Request>,
    n: u32,
    recipe: String,
    canceled: Arc<AtomicBool>,
}

/// A request whose build has ended; without a constraint if it failed.
pub(crate) struct Built {
    request: Box<Request>,
    n: u32,
    constrained: Option<Constrained>,
}

struct Pending {
    n: u32,
    sessions: Vec<SessionId>,
    canceled: Arc<AtomicBool>,
    /// Messages that wait for it.
    held: Vec<Message>,
}

impl Pending {
    fn concerns(&self, first: u64, message: &Message) -> bool {
        let is_own = |session: &SessionId| self.sessions.contains(session);
        match message {
            Message::Abort { tag } | Message::StopAt { tag, .. } => {
                (first..first.saturating_add(self.n.into())).contains(tag)
            }
            Message::Fork { from, into, .. } => is_own(from) || into.iter().any(is_own),
            Message::Rewind { session, .. } | Message::Cut { session, .. } => is_own(session),
            Message::EndSession(session) => is_own(session),
            Message::Add { .. } | Message::Drain | Message::Exit => false,
        }
    }

    fn aborts(&self, tag: u64) -> bool {
        self.held.iter().any(|message| *message == Message::Abort { tag })
    }
}

impl ConstraintBuilds {
    /// Starts the thread.
    pub(crate) fn start(build: BuildConstraint) -> io::Result<Self> {
        let (jobs, received) = mpsc::channel::<Job>();
        let (send, built) = unbounded_channel();
        thread::Builder::new().name("constraints".into()).spawn(move || {
            for Job { request, n, recipe, canceled } in received {
                let constrained = build(&recipe, &request.prompt, &canceled);
                if send.send(Built { request, n, constrained }).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { jobs, built, pending: HashMap::new() })
    }

    /// Begins to build the constraint of a request.
    pub(crate) fn begin(&mut self, request: Box<Request>, n: u32, recipe: String) {
        let canceled = Arc::<AtomicBool>::default();
        let pins = request.params.pins.iter().map(|pin| pin.session);
        let sessions = request.params.session.into_iter().chain(pins).collect();
        let pending = Pending { n, sessions, canceled: canceled.clone(), held: Vec::new() };
        self.pending.insert(request.tag, pending);
        // The thread ends with this sender only.
        let _ = self.jobs.send(Job { request, n, recipe, canceled });
    }

    /// Keeps a message that must wait for a request; returns any other.
    pub(crate) fn hold(&mut self, message: Message) -> Option<Message> {
        let concerned = self.pending.iter_mut().find(|(first, pending)| pending.concerns(**first, &message));
        let Some((first, pending)) = concerned else { return Some(message) };
        pending.held.push(message);
        let mut tags = *first..first.saturating_add(pending.n.into());
        if tags.all(|tag| pending.aborts(tag)) {
            pending.canceled.store(true, Ordering::Relaxed);
        }
        None
    }

    /// Waits for the next build to end.
    pub(crate) async fn next(&mut self) -> Option<Built> {
        self.built.recv().await
    }

    /// What the engine gets of an ended build: the request and the messages that waited for it. If the
    /// build failed, the ends of the request's siblings are written into `outbox` instead.
    pub(crate) fn finish(&mut self, built: Built, outbox: &mut Outbox) -> Vec<Message> {
        let Built { mut request, n, constrained } = built;
        let pending = self.pending.remove(&request.tag);
        let Some(constrained) = constrained else {
            for i in 0..u64::from(n) {
                let tag = request.tag.wrapping_add(i);
                let is_aborted = pending.as_ref().is_some_and(|pending| pending.aborts(tag));
                let finish = if is_aborted { Finish::Aborted } else { Finish::Failed(Fault::Constraint) };
                push_end(unstarted(&request, tag, finish), outbox);
            }
            return Vec::new();
        };
        request.params.constraint = constrained;
        let held = pending.map(|pending| pending.held).unwrap_or_default();
        [Message::Add { request, n }].into_iter().chain(held).collect()
    }
}

/// The summary of a request that the engine has not seen.
fn unstarted(request: &Request, tag: u64, finish: Finish) -> Summary {
    let resumption = request.params.resumption.as_deref();
    Summary {
        request: RequestId(tag),
        tag,
        finish,
        prompt: request.prompt.len() as u32,
        outputs: resumption.map_or(0, |resumption| resumption.outputs.len() as u32),
        cached: 0,
        dropped: 0,
        preemptions: 0,
        drafted: 0,
        accepted: 0,
        verified: 0,
        timings: resumption.map_or_else(Timings::default, |resumption| resumption.timings),
    }
}

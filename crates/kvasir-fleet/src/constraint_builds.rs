//! Builds the constraints of requests on a dedicated thread, before the engine receives the
//! requests.
//!
//! A grammar may take seconds to compile; other requests continue during that time. Messages about
//! a request whose constraint is being built are held back, so that the engine receives them in
//! order.

use crate::open_request::push_end;
use kvasir_engine::{Fault, Finish, Message, Outbox, Request, SessionId, Timings};
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
/// the flag cancels the build.
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
    /// Messages held back until the build has ended.
    held: Vec<Message>,
}

impl Pending {
    /// Whether a message is about a sibling of the request with tag `first`, or about its sessions.
    fn concerns(&self, first: u64, message: &Message) -> bool {
        let is_own = |session: &SessionId| self.sessions.contains(session);
        match message {
            Message::Abort { tag } | Message::StopAt { tag, .. } => {
                (first..first.saturating_add(self.n.into())).contains(tag)
            }
            Message::Fork { from, into, .. } => is_own(from) || into.iter().any(is_own),
            Message::Rewind { session, .. } | Message::Cut { session, .. } => is_own(session),
            Message::EndSession(session) => is_own(session),
            Message::Add { .. } | Message::Import(_) | Message::JoinStep | Message::Drain | Message::Exit => {
                false
            }
        }
    }

    /// Whether an abort of this sibling is held back.
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
        // Fails only if the thread has panicked: it runs as long as this sender exists.
        let _ = self.jobs.send(Job { request, n, recipe, canceled });
    }

    /// Holds back a message about a pending request, and returns any other. Once all siblings are
    /// aborted, cancels the build.
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

    /// Number of requests, siblings included, whose constraints are being built.
    pub(crate) fn waiting(&self) -> u64 {
        self.pending.values().map(|pending| u64::from(pending.n)).sum()
    }

    /// Waits for the next build to end.
    pub(crate) async fn next(&mut self) -> Option<Built> {
        self.built.recv().await
    }

    /// The messages for the engine after a build: the request and the held messages. If the build
    /// failed, writes the final events of the request's siblings into `outbox` and returns only the
    /// held messages about its sessions.
    pub(crate) fn finish(&mut self, built: Built, outbox: &mut Outbox) -> Vec<Message> {
        let Built { mut request, n, constrained } = built;
        let Some(pending) = self.pending.remove(&request.tag) else { return Vec::new() };
        if let Some(constrained) = constrained {
            request.params.constraint = constrained;
            return [Message::Add { request, n }].into_iter().chain(pending.held).collect();
        }
        let (prompt, resumption) = (request.prompt.len() as u32, request.params.resumption.as_deref());
        let outputs = resumption.map_or(0, |resumption| resumption.outputs.len() as u32);
        let timings = resumption.map_or_else(Timings::default, |resumption| resumption.timings);
        for tag in (0..n.into()).map(|i| request.tag.wrapping_add(i)) {
            let finish =
                if pending.aborts(tag) { Finish::Aborted } else { Finish::Failed(Fault::Constraint) };
            push_end((tag, finish), (prompt, 0, outputs), timings, outbox);
        }
        let is_of_request =
            |message: &Message| matches!(message, Message::Abort { .. } | Message::StopAt { .. });
        pending.held.into_iter().filter(|message| !is_of_request(message)).collect()
    }
}

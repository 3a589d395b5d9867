//! [`Service`]: an engine on a thread of its own, for callers that are threads or async tasks.
//!
//! Handles send [`Command`]s over a channel. The thread handles all pending commands between two
//! steps, so requests that arrive while others run join the next step (continuous batching). The
//! thread sleeps while no request runs, and ends with the last handle. A stream is not a handle:
//! dropping the last handle cancels running requests.

use crate::answer::Piece;
use crate::error::Error;
use crate::kvasir::Kvasir;
use crate::model::Model;
use crate::owned_stream::{Command, OwnedStream};
use crate::prompt::Prompt;
use crate::runner::Runner;
use async_channel::{Receiver, Sender};
use kvasir_engine::{Params, RequestId};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// Handle of an engine that runs on a thread of its own. Clones share the engine.
///
/// ```
/// use kvasir::{Kvasir, Message, Options};
/// # fn main() -> Result<(), kvasir::Error> {
/// let service = Kvasir::built_in(Options::default())?.into_service()?;
/// let questions = ["What is 7 + 8?", "What is 12 + 30?"];
/// let threads = questions.map(|question| {
///     let service = service.clone();
///     std::thread::spawn(move || service.chat(&[Message::user(question)]).answer())
/// });
/// let [first, second] = threads.map(|thread| thread.join().unwrap());
/// assert_eq!((first?.content.as_str(), second?.content.as_str()), ("7 + 8 = 15", "12 + 30 = 42"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Service {
    model: Arc<Model>,
    commands: Sender<Command>,
    next: Arc<AtomicU64>,
}

impl Service {
    /// Starts the engine's thread.
    pub(crate) fn start(runner: Runner) -> Result<Self, Error> {
        let (commands, inbox) = async_channel::unbounded();
        let model = runner.model.clone();
        let thread = thread::Builder::new().name("kvasir-engine".into());
        thread
            .spawn(move || EngineThread { runner, destinations: HashMap::new(), inbox }.run())
            .map_err(|error| Error::Failed(format!("cannot start the engine's thread: {error}")))?;
        Ok(Self { model, commands, next: Arc::default() })
    }

    /// The model that the engine runs.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Starts a request. A refusal is the stream's first result.
    pub fn stream(&self, prompt: impl Into<Prompt>, params: Params) -> OwnedStream {
        let (sender, pieces) = async_channel::unbounded();
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let (prompt, params) = (prompt.into(), Box::new(params));
        let add = Command::Add { ticket, prompt, params, pieces: sender };
        if let Err(refused) = self.commands.try_send(add)
            && let Command::Add { pieces, .. } = refused.into_inner()
        {
            let _ = pieces.try_send(Err(Error::Failed("the engine has stopped".into())));
        }
        OwnedStream::new(ticket, pieces, self.commands.downgrade())
    }
}

impl Kvasir {
    /// Moves the engine to a thread of its own, for callers that are threads or async tasks.
    pub fn into_service(self) -> Result<Service, Error> {
        Service::start(self.into_runner())
    }
}

/// The channel of a request's stream.
struct Destination {
    ticket: u64,
    pieces: Sender<Result<Piece, Error>>,
}

struct EngineThread {
    runner: Runner,
    destinations: HashMap<RequestId, Destination>,
    inbox: Receiver<Command>,
}

impl EngineThread {
    fn run(mut self) {
        loop {
            if self.runner.is_idle() {
                match self.inbox.recv_blocking() {
                    Ok(command) => self.handle(command),
                    Err(_) => return,
                }
            }
            while let Ok(command) = self.inbox.try_recv() {
                self.handle(command);
            }
            if self.inbox.is_closed() {
                return;
            }
            if let Err(error) = self.runner.turn() {
                let why = error.to_string();
                for destination in self.destinations.into_values() {
                    let _ = destination.pieces.try_send(Err(Error::Failed(why.clone())));
                }
                return;
            }
            self.deliver();
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Add { ticket, prompt, params, pieces } => match self.runner.add(prompt, &params) {
                Ok(request) => drop(self.destinations.insert(request, Destination { ticket, pieces })),
                Err(error) => drop(pieces.try_send(Err(error))),
            },
            Command::Stop(ticket) => {
                if let Some((request, destination)) = self.remove(ticket)
                    && let Some(answer) = self.runner.stop(request)
                {
                    let _ = destination.pieces.try_send(Ok(Piece::end(request, answer)));
                }
            }
            Command::Cancel(ticket) => {
                if let Some((request, _)) = self.remove(ticket) {
                    self.runner.cancel(request);
                }
            }
        }
    }

    /// Removes the request with this ticket. Pieces are far more frequent, so the map is keyed for
    /// them.
    fn remove(&mut self, ticket: u64) -> Option<(RequestId, Destination)> {
        let of_ticket = self.destinations.iter().find(|(_, destination)| destination.ticket == ticket);
        let request = of_ticket.map(|(request, _)| *request)?;
        self.destinations.remove_entry(&request)
    }

    /// Sends pending pieces to their streams.
    fn deliver(&mut self) {
        for piece in self.runner.take_all() {
            let (request, is_last) = (piece.request, piece.answer.is_some());
            let Some(destination) = self.destinations.get(&request) else { continue };
            let _ = destination.pieces.try_send(Ok(piece));
            if is_last {
                self.destinations.remove(&request);
            }
        }
    }
}

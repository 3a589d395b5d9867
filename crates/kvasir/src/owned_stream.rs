//! Streams of a [`Service`](crate::Service): owned, usable from threads and async tasks.

use crate::answer::{Answer, Piece};
use crate::error::Error;
use crate::prompt::Prompt;
use crate::stream::PieceSource;
use async_channel::{Receiver, Sender, WeakSender};
use futures_core::Stream as AsyncStream;
use kvasir_engine::Params;
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// A message of a handle or a stream to the engine's thread. The ticket identifies a request before
/// the engine assigns its id.
pub(crate) enum Command {
    Add {
        ticket: u64,
        prompt: Prompt,
        params: Box<Params>,
        pieces: Sender<Result<Piece, Error>>,
    },
    /// Ends a request as a stop text does; the thread then sends the last piece.
    Stop(u64),
    Cancel(u64),
}

/// The answer to one request of a [`Service`](crate::Service): an iterator that blocks, and a `Stream`
/// of the `futures` crate for any executor. Dropping it early cancels the request.
pub struct OwnedStream {
    ticket: u64,
    pieces: Pin<Box<Receiver<Result<Piece, Error>>>>,
    commands: WeakSender<Command>,
    answer: Option<Answer>,
}

impl OwnedStream {
    pub(crate) fn new(
        ticket: u64,
        pieces: Receiver<Result<Piece, Error>>,
        commands: WeakSender<Command>,
    ) -> Self {
        Self { ticket, pieces: Box::pin(pieces), commands, answer: None }
    }

    /// The whole answer, after the last piece.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Sends a command. No-op without handles: the engine's thread has ended or is about to.
    fn send(&self, command: Command) {
        if let Some(commands) = self.commands.upgrade() {
            let _ = commands.try_send(command);
        }
    }

    /// Keeps the answer of the last piece.
    fn note(&mut self, next: &Option<Result<Piece, Error>>) {
        if let Some(Ok(piece)) = next {
            self.answer.clone_from(&piece.answer);
        }
    }
}

impl PieceSource for OwnedStream {
    fn stop_here(&mut self) {
        self.send(Command::Stop(self.ticket));
    }
}

impl Iterator for OwnedStream {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.pieces.recv_blocking().ok();
        self.note(&next);
        next
    }
}

impl AsyncStream for OwnedStream {
    type Item = Result<Piece, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.pieces.as_mut().poll_next(context);
        if let Poll::Ready(next) = &next {
            self.note(next);
        }
        next
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if self.answer.is_none() {
            self.send(Command::Cancel(self.ticket));
        }
    }
}

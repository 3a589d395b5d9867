//! Streams the answer of a chat.

use crate::chat::answer::ChatAnswer;
use crate::chat::parser::ChatParser;
use crate::error::Error;
use crate::stream::PieceSource;
use futures_core::Stream as AsyncStream;
use kvasir_chat::Delta;
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

/// Streams the answer of a chat: an iterator and, over an [`OwnedStream`](crate::OwnedStream), a
/// `Stream` of the `futures` crate. Dropping it early cancels the request.
pub struct ChatStream<S> {
    pieces: S,
    parser: ChatParser,
    is_over: bool,
}

impl<S: PieceSource> ChatStream<S> {
    pub(super) fn new(pieces: S, parser: ChatParser) -> Self {
        Self { pieces, parser, is_over: false }
    }

    /// The whole answer, after the last delta.
    pub fn answer(&self) -> Option<&ChatAnswer> {
        self.parser.answer.as_ref()
    }

    /// Feeds the source's next result to the parser; returns the error if it is one.
    fn push(&mut self, next: Option<S::Item>) -> Option<Error>
    where
        S: Iterator<Item = Result<crate::Piece, Error>>,
    {
        match next {
            Some(Ok(piece)) => {
                self.parser.push(piece);
                if self.parser.is_stopped() && self.parser.answer.is_none() {
                    self.pieces.stop_here();
                }
                self.is_over = self.parser.answer.is_some();
                None
            }
            Some(Err(error)) => {
                self.is_over = true;
                Some(error)
            }
            None => {
                self.is_over = true;
                Some(Error::Failed("the engine stopped without an answer".into()))
            }
        }
    }

    /// Reads to the end and returns the whole answer.
    pub fn finish(mut self) -> Result<ChatAnswer, Error> {
        for delta in self.by_ref() {
            delta?;
        }
        self.parser.answer.ok_or_else(|| Error::Failed("the engine stopped without an answer".into()))
    }
}

impl<S: PieceSource> Iterator for ChatStream<S> {
    type Item = Result<Delta, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(delta) = self.parser.deltas.pop_front() {
                return Some(Ok(delta));
            }
            if self.is_over {
                return None;
            }
            let next = self.pieces.next();
            if let Some(error) = self.push(next) {
                return Some(Err(error));
            }
        }
    }
}

impl<S> AsyncStream for ChatStream<S>
where
    S: PieceSource + AsyncStream<Item = Result<crate::Piece, Error>> + Unpin,
{
    type Item = Result<Delta, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(delta) = self.parser.deltas.pop_front() {
                return Poll::Ready(Some(Ok(delta)));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            let next = ready!(Pin::new(&mut self.pieces).poll_next(context));
            if let Some(error) = self.push(next) {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

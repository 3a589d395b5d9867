//! Streaming iterator over one answer.

use crate::answer::{Answer, Piece};
use crate::error::Error;
use crate::runner::Runner;
use kvasir_engine::RequestId;
use kvasir_kv::Token;

/// Streams one answer: an iterator that runs the engine on demand. Dropping it early cancels the
/// request.
pub struct Stream<'a> {
    runner: &'a mut Runner,
    request: RequestId,
    /// Token list of the session's branch, extended by received tokens.
    answered: Option<&'a mut Vec<Token>>,
    answer: Option<Answer>,
    over: bool,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        runner: &'a mut Runner,
        request: RequestId,
        answered: Option<&'a mut Vec<Token>>,
    ) -> Self {
        Self { runner, request, answered, answer: None, over: false }
    }

    /// Id of the request.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Ends the answer here, as at a stop text, and returns it with all tokens so far.
    pub fn stop(mut self) -> Option<Answer> {
        self.over = true;
        self.runner.stop(self.request)
    }

    /// The whole answer, after the last piece.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.runner.next(self.request);
        match &next {
            Ok(piece) => {
                if let Some(answered) = &mut self.answered {
                    answered.extend_from_slice(&piece.ids);
                }
                self.answer.clone_from(&piece.answer);
                self.over = piece.answer.is_some();
            }
            Err(_) => self.over = true,
        }
        Some(next)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.runner.cancel(self.request);
        }
    }
}

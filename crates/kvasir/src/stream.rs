use crate::{Answer, Error, Piece, runner::Runner};
use kvasir_engine::RequestId;
use kvasir_kv::Token;

/// One answer as it comes: an iterator that runs the engine when it is asked for more. Dropping it before its end cancels the
/// request.
pub struct Stream<'a> {
    runner: &'a mut Runner,
    request: RequestId,
    /// Where what was said is noted, for a session.
    said: Option<&'a mut Vec<Token>>,
    answer: Option<Answer>,
    over: bool,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(runner: &'a mut Runner, request: RequestId, said: Option<&'a mut Vec<Token>>) -> Self {
        Self { runner, request, said, answer: None, over: false }
    }

    /// The request.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// All of it together, once the last piece has come.
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
                if let Some(said) = &mut self.said {
                    said.extend_from_slice(&piece.ids);
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

//! Streaming iterator over one answer.

use crate::answer::{Answer, Piece};
use crate::error::Error;
use crate::runner::Runner;
use kvasir_chat::answer::StopFilter;
use kvasir_engine::{Finish, RequestId};
use kvasir_formats::TextStream;
use kvasir_kv::Token;

/// An iterator over the pieces of one answer that can be stopped.
pub trait PieceSource: Iterator<Item = Result<Piece, Error>> {
    /// Ends the answer as a stop text does: the next piece is the last.
    fn stop_here(&mut self);
}

/// Streams one answer: an iterator that runs the engine on demand. Dropping it early cancels the
/// request.
pub struct Stream<'a> {
    runner: &'a mut Runner,
    request: RequestId,
    /// Token list of the session's branch, extended by received tokens.
    answered: Option<&'a mut Vec<Token>>,
    stop: Vec<String>,
    filter: StopFilter,
    /// Bytes of text read so far, and when the stop texts were set.
    text_bytes: usize,
    unfiltered_bytes: usize,
    /// The last piece, not returned yet, after [`PieceSource::stop_here`].
    last: Option<Piece>,
    answer: Option<Answer>,
    over: bool,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        runner: &'a mut Runner,
        request: RequestId,
        answered: Option<&'a mut Vec<Token>>,
    ) -> Self {
        let (stop, filter) = (Vec::new(), StopFilter::new(Vec::new()));
        Self {
            runner,
            request,
            answered,
            stop,
            filter,
            text_bytes: 0,
            unfiltered_bytes: 0,
            last: None,
            answer: None,
            over: false,
        }
    }

    /// Stop texts: the answer ends before the first occurrence of one, however tokens split it.
    /// Text that may begin a stop text is held back. The last token of the answer is the one that
    /// completes the stop text. Text that has been read already is not searched. Needs a model with a
    /// tokenizer.
    ///
    /// ```
    /// # fn main() -> Result<(), kvasir::Error> {
    /// let mut kvasir = kvasir::Kvasir::built_in(kvasir::Options::default())?;
    /// let prompt = "<|im_start|>user\nWhat is 7 + 8?<|im_end|>\n<|im_start|>assistant\n";
    /// let answer = kvasir.stream(prompt, &kvasir::Params::default())?.until([" ="]).finish()?;
    /// assert_eq!(answer.text.as_deref(), Some("7 + 8"));
    /// # Ok(()) }
    /// ```
    pub fn until(mut self, texts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.stop = texts.into_iter().map(Into::into).collect();
        self.filter = StopFilter::new(self.stop.clone());
        self.unfiltered_bytes = self.text_bytes;
        self
    }

    /// Id of the request.
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// The whole answer, after the last piece.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Reads to the end and returns the whole answer.
    pub fn finish(mut self) -> Result<Answer, Error> {
        for piece in self.by_ref() {
            piece?;
        }
        self.answer.take().ok_or_else(|| Error::Failed("the engine stopped without an answer".into()))
    }

    /// Cuts the text of a piece before the first stop text, and ends the answer there.
    fn filter(&mut self, piece: &mut Piece) {
        self.text_bytes += piece.text.len();
        if self.stop.is_empty() {
            return;
        }
        piece.text = self.filter.push(&piece.text);
        if piece.answer.is_some() {
            piece.text += &self.filter.finish();
        }
        let Some((end, _)) = self.filter.stopped() else { return };
        let answer = piece.answer.take().or_else(|| self.runner.stop(self.request));
        piece.answer = answer.map(|answer| self.cut(answer, end));
    }

    /// Cuts an answer at its stop text: the text at byte `end` of what was searched, the tokens after
    /// the one that completes it.
    fn cut(&self, mut answer: Answer, end: usize) -> Answer {
        let (mut text, mut filter) = (TextStream::continuing(true), StopFilter::new(self.stop.clone()));
        if let Some(tokenizer) = &self.runner.model.tokenizer {
            let mut unfiltered = self.unfiltered_bytes;
            let completes = |id: &Token| {
                let text = text.push(tokenizer, *id);
                let skipped = unfiltered.min(text.len());
                unfiltered -= skipped;
                filter.push(&text[skipped..]);
                filter.stopped().is_some()
            };
            let kept = answer.ids.iter().position(completes).map_or(answer.ids.len(), |at| at + 1);
            answer.ids.truncate(kept);
            answer.logprobs.truncate(kept);
        }
        answer.text = answer.text.map(|mut text| {
            text.truncate(self.unfiltered_bytes + end);
            text
        });
        Answer { reason: Finish::StopText, ..answer }
    }
}

impl PieceSource for Stream<'_> {
    fn stop_here(&mut self) {
        self.last = self.runner.stop(self.request).map(|answer| Piece::end(self.request, answer));
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Piece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let mut next = match self.last.take() {
            Some(last) => Ok(last),
            None => self.runner.next(self.request),
        };
        match &mut next {
            Ok(piece) => {
                if let Some(answered) = &mut self.answered {
                    answered.extend_from_slice(&piece.ids);
                }
                self.filter(piece);
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

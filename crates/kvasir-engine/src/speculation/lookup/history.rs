//! The tokens of a request as a drafter reads them into its index: [`Source`], within a budget per step
//! ([`Reading`]).

use crate::request::sequence::Sequence;
use kvasir_kv::Token;

/// Tokens of a prompt that are read in, at most: the newest ones. As many of a predicted output.
const MOST_HISTORY: usize = 1 << 18;
/// Tokens that are read in per step, of all requests together, so that a long history delays no step
/// by more than a few milliseconds. A request gets drafts once its history is read.
const READ_PER_STEP: usize = 2048;
/// Outputs that an index has room for before it grows.
const OUTPUTS_EXPECTED: usize = 4096;
/// Tokens of the prompt that are repeated behind the predicted output, so that the first outputs
/// find it.
const PREDICTION_CONTEXT: usize = 16;

/// The tokens of a request that are read into an index, one after the other: the newest part of its
/// prompt, its predicted output with some of the prompt behind, and its outputs.
pub(super) struct Source<'a> {
    sequence: &'a Sequence,
    /// What comes before the outputs.
    before: [&'a [Token]; 3],
}

impl<'a> Source<'a> {
    pub(super) fn new(sequence: &'a Sequence, prediction: &'a [Token]) -> Self {
        let newest = |tokens: &'a [Token], most| &tokens[tokens.len().saturating_sub(most)..];
        let prompt = newest(sequence.prompt(), MOST_HISTORY);
        let context = if prediction.is_empty() { 0 } else { PREDICTION_CONTEXT };
        let prediction = &prediction[..prediction.len().min(MOST_HISTORY)];
        Self { sequence, before: [prompt, prediction, newest(prompt, context)] }
    }

    /// Number of tokens before the outputs.
    pub(super) fn before(&self) -> usize {
        self.before.iter().map(|part| part.len()).sum()
    }

    /// Tokens that an index needs room for at first. It grows if there are more outputs.
    pub(super) fn room(&self) -> usize {
        self.before() + self.outputs_expected()
    }

    pub(super) fn outputs_expected(&self) -> usize {
        (self.sequence.outputs_left() as usize + 1).min(OUTPUTS_EXPECTED)
    }

    /// Copies up to `most` tokens from the `read`-th on into `unread`. Whether they were all.
    pub(super) fn copy(&self, mut read: usize, most: usize, unread: &mut Vec<Token>) -> bool {
        unread.clear();
        for part in self.before {
            let rest = &part[read.min(part.len())..];
            unread.extend(rest.iter().take(most - unread.len()));
            read -= part.len() - rest.len();
        }
        self.sequence.copy_outputs(read as u32, most - unread.len(), unread)
    }
}

/// What a drafter may still read in this step, and the memory for it.
#[derive(Debug, Default)]
pub(super) struct Reading {
    budget: usize,
    pub(super) unread: Vec<Token>,
}

impl Reading {
    pub(super) fn begin_step(&mut self) {
        self.budget = READ_PER_STEP;
    }

    /// Copies what `read` has not counted yet into `unread`, as far as the budget goes. Whether it was
    /// all.
    pub(super) fn read(&mut self, source: &Source, read: &mut usize) -> bool {
        let all = source.copy(*read, self.budget, &mut self.unread);
        *read += self.unread.len();
        self.budget -= self.unread.len();
        all
    }
}

//! [`NgramDrafter`]: looks the last n tokens up in prompt and output.

use crate::request::ids::RequestId;
use crate::request::proposal::{Evidence, Proposal};
use crate::request::sequence::Sequence;
use crate::speculation::drafter::Drafter;
use crate::speculation::lookup::history::{Reading, Source};
use crate::speculation::lookup::ngram_index::NgramIndex;
use std::collections::HashMap;

/// Default n of n-grams.
pub const NGRAM: usize = 3;

/// Proposes what followed the newest earlier occurrence of the last n tokens.
#[derive(Debug)]
pub struct NgramDrafter {
    n: usize,
    width: u32,
    /// Per request its index, and the tokens that are in it.
    requests: HashMap<RequestId, (NgramIndex, usize)>,
    reading: Reading,
}

impl NgramDrafter {
    /// Matches `n` tokens and proposes up to `width`.
    pub fn new(n: usize, width: u32) -> Self {
        Self { n, width, requests: HashMap::new(), reading: Reading::default() }
    }
}

impl Drafter for NgramDrafter {
    fn width(&self) -> u32 {
        self.width
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn begin_step(&mut self) {
        self.reading.begin_step();
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let n = self.n;
        let source = Source::new(sequence, &[]);
        let (index, read) = self.requests.entry(sequence.id()).or_insert_with(|| {
            let mut index = NgramIndex::new(n);
            index.reserve(source.room());
            (index, 0)
        });
        let all = self.reading.read(&source, read);
        self.reading.unread.iter().for_each(|token| index.push(*token));
        if !all {
            return;
        }
        proposal.tokens.extend(index.continuation().iter().take(self.width as usize));
        // The classes let each distance from the match learn its own acceptance.
        proposal
            .evidence
            .extend((0..proposal.tokens.len()).map(|i| Evidence::of_match(n as u32 + i as u32, 0.8)));
    }

    fn retain(&mut self, lives: &dyn Fn(RequestId) -> bool) {
        self.requests.retain(|id, _| lives(*id));
    }
}

//! Oracle drafter for speculative-decoding tests: proposes the correct tokens, corrupted with a
//! given probability.

use kvasir_engine::{Drafter, Proposal, Sequence};
use kvasir_sim::ToyShape;
use kvasir_testkit::Random;

/// A drafter that knows the correct continuation and corrupts some of its drafts; `accuracy` is the
/// percentage kept.
pub(crate) struct Oracle {
    pub(crate) random: Random,
    pub(crate) width: u32,
    pub(crate) trees: bool,
    pub(crate) accuracy: u32,
    /// The model whose output it drafts.
    pub(crate) shape: ToyShape,
}

impl Drafter for Oracle {
    fn width(&self) -> u32 {
        self.width
    }

    fn proposes_trees(&self) -> bool {
        self.trees
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let had = sequence.outputs().len();
        let answer = self.shape.alone(sequence.prompt(), had as u32 + self.width, true);
        let next = |i: usize| answer.get(had + i).copied().unwrap_or(0);
        let width = self.random.between(0, self.width) as usize;
        if !self.trees {
            let accurate = |random: &mut Random, accuracy| random.chance(accuracy);
            for i in 0..width {
                let right = accurate(&mut self.random, self.accuracy);
                proposal.tokens.push(if right { next(i) } else { 7 });
            }
            return;
        }
        let mut depths = vec![0usize];
        for _ in 0..width {
            let parent = self.random.between(0, proposal.tokens.len() as u32) as usize;
            let right = self.random.chance(self.accuracy);
            proposal.tokens.push(if right { next(depths[parent]) } else { self.random.pick(&[10, 11, 12]) });
            proposal.parents.push(parent as i32);
            depths.push(depths[parent] + 1);
        }
    }
}

//! `Oracle`: a drafter that knows the outputs of requests.

use crate::common::Outputs;
use kvasir_engine::{Drafter, Proposal, Sequence};
use kvasir_kv::Token;
use kvasir_testkit::Random;
use std::collections::BTreeMap;

/// Proposes chains of the expected outputs, with one in five draft tokens wrong.
pub(crate) struct Oracle {
    /// Expected outputs by request tag.
    outputs: BTreeMap<u64, Vec<Token>>,
    /// Maximum draft tokens per chain.
    width: u32,
    random: Random,
}

impl Oracle {
    pub(crate) fn new(outputs: &Outputs, width: u32) -> Self {
        let outputs = outputs.iter().map(|(tag, (tokens, _))| (*tag, tokens.clone())).collect();
        Self { outputs, width, random: Random::new(3) }
    }
}

impl Drafter for Oracle {
    fn width(&self) -> u32 {
        self.width
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let rest = &self.outputs[&sequence.tag()][sequence.outputs().len()..];
        for token in rest.iter().take(self.random.between(0, self.width) as usize) {
            proposal.tokens.push(if self.random.one_in(5) { (token + 1) % 500 } else { *token });
        }
    }
}

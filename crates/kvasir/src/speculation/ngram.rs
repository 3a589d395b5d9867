//! `--spec ngram`: what followed the last n tokens earlier in prompt and output.

use crate::speculation::method::{DraftMethod, Proposer};
use crate::speculation::parameters::{DraftParameters, Numbers};
use kvasir_draft::TreeShape;
use kvasir_engine::{MOST_DRAFTS, NGRAM, NgramDrafter};

pub(super) const NGRAM_METHOD: DraftMethod = DraftMethod {
    name: "ngram",
    syntax: "[:n=3,tokens=16,depth=]",
    summary: "prompt lookup: the tokens after the previous occurrence of the last n tokens",
    parse: |text| {
        let numbers = Numbers::parse(text, &["tokens", "depth", "n"])?;
        let n = numbers.get("n").unwrap_or(NGRAM as u32);
        Ok(DraftParameters { n, ..chain(&numbers) })
    },
    proposer: Proposer::Host(|parameters| {
        Box::new(NgramDrafter::new(parameters.n as usize, parameters.shape.nodes))
    }),
};

/// The chain of a drafter without a model: `depth` tokens, or up to `tokens`.
pub(super) fn chain(numbers: &Numbers<'_>) -> DraftParameters {
    let depth = numbers.get("depth");
    let tokens = depth.or(numbers.get("tokens")).unwrap_or(MOST_DRAFTS);
    DraftParameters::new(TreeShape::chain(tokens), depth)
}

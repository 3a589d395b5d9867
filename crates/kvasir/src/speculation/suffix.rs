//! `--spec suffix`: what most often followed the longest suffix that occurred before.

use crate::speculation::method::{DraftMethod, Proposer};
use crate::speculation::ngram::chain;
use crate::speculation::parameters::Numbers;
use kvasir_engine::SuffixDrafter;

pub(super) const SUFFIX_METHOD: DraftMethod = DraftMethod {
    name: "suffix",
    syntax: "[:tokens=16,depth=]",
    summary: "the most frequent continuation of the longest repeated suffix",
    parse: |text| Ok(chain(&Numbers::parse(text, &["tokens", "depth"])?)),
    proposer: Proposer::Host(|parameters| Box::new(SuffixDrafter::new(parameters.shape.nodes))),
};

//! Derives the model builder's input from a checkpoint.

use crate::Checkpoint;
use kvasir_program::{Layout, Source};

impl Checkpoint {
    /// The input of `Model::build`: names, shapes, config and storage layout, without tensor bytes.
    pub fn source(&self) -> Source {
        let facts = self.facts();
        Source {
            config: self.config().clone(),
            tensors: Some(self.tensors().map(|t| (t.name.to_owned(), t.shape.to_vec())).collect()),
            layout: Layout {
                interleaved_qk: facts.interleaved_qk,
                norm_plus_one: facts.norm_plus_one,
                split_kv_b: facts.split_kv_b,
                split_gate_up: facts.split_gate_up,
            },
        }
    }
}

use crate::Checkpoint;
use kvasir_program::{Layout, Source};

impl Checkpoint {
    /// What a program is built from: names, shapes and the config, without bytes.
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

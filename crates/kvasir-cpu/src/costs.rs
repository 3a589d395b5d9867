//! What a step costs: bytes that it reads, and what it multiplies.

use crate::CpuModel;
use crate::form::Form;
use crate::model::OpWeights;
use crate::weights::Linear;
use kvasir_program::{Op, Rows};
use std::collections::BTreeMap;

impl CpuModel {
    /// Bytes of packed matrices by form.
    pub fn forms(&self) -> BTreeMap<Form, usize> {
        let mut forms = BTreeMap::new();
        for l in self.linears() {
            *forms.entry(l.packed.form()).or_insert(0) += l.packed.bytes();
        }
        forms
    }

    /// Bytes of the file that a step of so many tokens must read: all matrices, and of experts as many as get a token where each is chosen
    /// as often as any other.
    pub fn bytes_read(&self, tokens: u32) -> f64 {
        let of_op = |(op, weights): (&Op, &OpWeights)| {
            let bytes = weights.all().map(|l| l.stored_bytes).sum::<usize>() as f64;
            match weights {
                OpWeights::Experts { gate, .. } => {
                    let idle = 1.0 - self.program.chosen(op) as f64 / gate.len().max(1) as f64;
                    bytes * (1.0 - idle.powf(f64::from(tokens)))
                }
                _ => bytes,
            }
        };
        self.program.ops.iter().zip(&self.weights).map(of_op).sum()
    }

    /// Multiply-adds that one token takes in matrices of each form, counting of the experts those that are used. What only tokens take whose
    /// logits are wanted is not included unless `sampled`.
    pub fn multiply_adds(&self, sampled: bool) -> BTreeMap<Form, u64> {
        let mut work = BTreeMap::new();
        for (op, weights) in self.program.ops.iter().zip(&self.weights) {
            let add = |l: &Linear| *work.entry(l.packed.form()).or_insert(0) += (l.inputs * l.outputs) as u64;
            if !sampled && self.program.value(op.out()).rows == Rows::Sampled {
                continue;
            }
            match weights {
                OpWeights::Experts { gate, up, down } => {
                    let used = self.program.chosen(op);
                    [gate, up, down].into_iter().flat_map(|l| l.iter().take(used)).for_each(add);
                }
                _ => weights.all().for_each(add),
            }
        }
        work
    }
}

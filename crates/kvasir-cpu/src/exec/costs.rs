//! Roofline inputs of a step: bytes read from the weights, bytes of recurrent states, and
//! multiply-adds by kind of GEMM. The benchmarks of `kvasir-bench` compare them with the measured
//! limits of the machine.

use crate::exec::model::CpuModel;
use crate::weights::linear::{Form, Linear, OpWeights};
use kvasir_program::{Op, Rows};
use std::collections::BTreeMap;

impl CpuModel {
    /// Bytes of packed weight panels, by kind of GEMM.
    pub fn forms(&self) -> BTreeMap<Form, usize> {
        let mut forms = BTreeMap::new();
        for l in self.linears() {
            *forms.entry(l.packed.form()).or_insert(0) += l.packed.bytes();
        }
        forms
    }

    /// Weight bytes, as stored in the checkpoint, that a step of `tokens` tokens reads: all dense
    /// matrices, and the expected share of active experts under uniform routing.
    pub fn bytes_read(&self, tokens: u32) -> f64 {
        let of_op = |(op, weights): (&Op, &OpWeights)| {
            let bytes = weights.all().map(|l| l.stored_bytes).sum::<usize>() as f64;
            match weights {
                OpWeights::Experts { .. } => {
                    let idle =
                        1.0 - self.program.top_k(op) as f64 / self.program.routed_experts(op).max(1) as f64;
                    bytes * (1.0 - idle.powf(f64::from(tokens)))
                }
                _ => bytes,
            }
        };
        self.program.ops.iter().zip(&self.weights).map(of_op).sum()
    }

    /// Bytes of recurrent states that a step moves per sequence: one read and one write of each.
    pub fn state_bytes(&self) -> f64 {
        2.0 * size_of::<f32>() as f64 * self.program.state_elements() as f64
    }

    /// Multiply-adds per token, by kind of GEMM; recurrences count as f32. Of the experts only the
    /// top-k that are routed to. Ops that run for sampled rows alone (the LM head) are left out
    /// unless `sampled`.
    pub fn multiply_adds(&self, sampled: bool) -> BTreeMap<Form, u64> {
        let mut work = BTreeMap::new();
        let recurrent: usize =
            self.program.ops.iter().map(|op| self.program.recurrent_multiply_adds(op)).sum();
        if recurrent > 0 {
            work.insert(Form::F32, recurrent as u64);
        }
        for (op, weights) in self.program.ops.iter().zip(&self.weights) {
            let add = |l: &Linear| *work.entry(l.packed.form()).or_insert(0) += (l.inputs * l.outputs) as u64;
            if !sampled && self.program.value(op.out()).rows == Rows::Sampled {
                continue;
            }
            match weights {
                OpWeights::Experts { gate, up, down } => {
                    // Experts per token on this rank, if routes are uniform over the ranks.
                    let (used, all) = (self.program.top_k(op), self.program.routed_experts(op).max(1));
                    let used = (used * gate.len()).div_ceil(all);
                    [gate, up, down].into_iter().flat_map(|l| l.iter().take(used)).for_each(add);
                }
                _ => weights.all().for_each(add),
            }
        }
        work
    }
}

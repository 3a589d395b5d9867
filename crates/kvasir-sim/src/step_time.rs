//! The roofline time of a forward pass, collectives of tensor parallelism included, and its
//! attribution to the rows of a step.
//!
//! ```text
//! pass        = max(bytes / bandwidth, operations / peak) + launch + collectives
//! collectives = 2 all-reduces of (tokens, hidden) per layer + all-gather of the logits
//!               + one message with the rows and tokens of the step
//! ```
//!
//! Bytes and operations are those of the busiest rank. A single rank has no collectives.

use crate::preset::Preset;
use crate::shape::Shard;
use crate::step_work::Load;
use kvasir_exec::Step;

/// Bytes per element of logits.
const LOGIT_BYTES: f64 = 4.0;
/// Bytes of the message with the step: per row, block table included, and per token.
const ROW_BYTES: f64 = 64.0;
const TOKEN_BYTES: f64 = 4.0;

/// Cost of a forward pass on the busiest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pass {
    pub(crate) bytes: f64,
    pub(crate) operations: f64,
    /// Seconds of the pass, collectives included.
    pub(crate) seconds: f64,
    /// Seconds of the collectives.
    collectives: f64,
    /// Whether bytes, not operations, determine the roofline time.
    is_memory_bound: bool,
}

impl Shard {
    /// Operations of a forward pass with this work: two per multiply-add.
    fn operations(&self, load: &Load) -> f64 {
        2.0 * self.layer_weights * load.tokens
            + 2.0 * self.head_weights * load.sampled
            + self.attention_operations * load.seen
    }
}

impl Preset {
    /// Cost of a forward pass with this work and `slot_copies`; as one graph launch if
    /// `is_recorded`.
    pub(crate) fn pass(&self, load: &Load, slot_copies: usize, is_recorded: bool) -> Pass {
        let (machine, shard) = (self.machine, self.shard());
        let kv = shard.kv_values * machine.kv_bytes;
        let bytes = shard.weights() * machine.weights.bytes()
            + (load.read + load.written + 2.0 * slot_copies as f64) * kv;
        let operations = shard.operations(load);
        let start = machine.start(self.shape.layers, is_recorded);
        let (memory, arithmetic) = (bytes / machine.bandwidth.value, operations / machine.operations().value);
        let collectives = self.collectives(load);
        Pass {
            bytes,
            operations,
            seconds: memory.max(arithmetic) + start + collectives,
            collectives,
            is_memory_bound: memory >= arithmetic,
        }
    }

    /// Seconds that the ranks spend in collectives.
    fn collectives(&self, load: &Load) -> f64 {
        let Some(link) = self.machine.links.ranks.filter(|_| self.ranks > 1) else { return 0.0 };
        let (hidden, vocabulary) = (f64::from(self.shape.hidden), f64::from(self.shape.vocabulary));
        let activations = load.tokens * hidden * self.activation_bytes();
        let layers = 2.0 * f64::from(self.shape.layers) * link.all_reduce(activations, self.ranks);
        let logits = load.sampled * vocabulary * LOGIT_BYTES;
        let logits = if load.sampled > 0.0 { link.all_gather(logits, self.ranks) } else { 0.0 };
        layers + logits + link.message(load.rows * ROW_BYTES + load.tokens * TOKEN_BYTES)
    }

    /// Bytes per activation on the link: f32 on CPUs, bf16 on GPUs.
    fn activation_bytes(&self) -> f64 {
        if self.machine.is_cpu { 4.0 } else { 2.0 }
    }
}

/// The time of one step by row. Reuse it for all steps, to save allocations.
#[derive(Clone, Debug, Default)]
pub struct StepBreakdown {
    /// Each row's share of the step time without collectives. The sum is 1.
    pub row_shares: Vec<f64>,
    /// Nanoseconds of the step in collectives.
    pub collectives_ns: f64,
}

impl StepBreakdown {
    /// Divides a step's time among its rows: of a memory-bound step by bytes, with equal shares of
    /// the weights; of a compute-bound step by operations. Padding is not counted.
    pub fn attribute(&mut self, preset: &Preset, step: &Step) {
        let load = Load::of(step, None);
        let (machine, shard, pass) = (preset.machine, preset.shard(), preset.pass(&load, 0, false));
        let weights = shard.weights() * machine.weights.bytes() / load.rows.max(1.0);
        let kv = shard.kv_values * machine.kv_bytes;
        self.row_shares.clear();
        for (row, planned) in step.batch.rows.iter().zip(&step.plan.rows) {
            let mut own = Load::default();
            own.add_row(row, planned, None);
            self.row_shares.push(if pass.is_memory_bound {
                weights + kv * (own.read + own.written)
            } else {
                shard.operations(&own)
            });
        }
        let sum: f64 = self.row_shares.iter().sum();
        self.row_shares.iter_mut().for_each(|share| *share /= if sum > 0.0 { sum } else { 1.0 });
        self.collectives_ns = pass.collectives * 1e9;
    }
}

//! The time of a forward pass by the roofline model, with the collectives of tensor parallelism, and
//! its division among the rows of a step.
//!
//! ```text
//! pass        = max(bytes / bandwidth, operations / peak) + launch + collectives
//! collectives = 2 all-reduces of (tokens, hidden) per layer + all-gather of the logits
//!               + one message with the step
//! ```
//!
//! Bytes and operations are those of the busiest rank. Without ranks there are no collectives.

use crate::preset::Preset;
use crate::step_work::Load;
use kvasir_exec::Step;

/// Bytes per element of logits.
const LOGIT_BYTES: f64 = 4.0;
/// Bytes of a step on its way to the other ranks: per row, with its block table, and per token.
const ROW_BYTES: f64 = 64.0;
const TOKEN_BYTES: f64 = 4.0;

/// A forward pass of the busiest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pass {
    pub(crate) bytes: f64,
    pub(crate) operations: f64,
    /// Seconds of the pass, collectives included.
    pub(crate) seconds: f64,
}

impl Preset {
    /// A forward pass with this work, `moves` slot copies, and a graph launch if `is_recorded`.
    pub(crate) fn pass(&self, load: &Load, moves: usize, is_recorded: bool) -> Pass {
        let (machine, shard) = (self.machine, self.shard());
        let kv = shard.kv_values * machine.kv_bytes;
        let bytes = (shard.layer_weights + shard.head_weights) * machine.weights.bytes()
            + (load.read + load.written + 2.0 * moves as f64) * kv;
        let operations = 2.0 * shard.layer_weights * load.tokens
            + 2.0 * shard.head_weights * load.sampled
            + shard.attention_operations * load.seen;
        let start = machine.start(self.shape.layers, is_recorded);
        let roofline = (bytes / machine.bandwidth.value).max(operations / machine.operations().value);
        Pass { bytes, operations, seconds: roofline + start + self.collectives(load) }
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

/// The time of one step by row. Its memory is reused.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// Share of each row of the step in the time without collectives; they add up to 1.
    pub rows: Vec<f64>,
    /// Nanoseconds of the step in collectives.
    pub collectives: f64,
}

impl StepTimes {
    /// Divides a step's time among its rows in proportion to what bounds it: bytes, where all rows share
    /// the weights equally, or operations. Padding is not counted.
    pub fn measure(&mut self, preset: &Preset, step: &Step) {
        let load = Load::of(step, None);
        let (machine, shard, pass) = (preset.machine, preset.shard(), preset.pass(&load, 0, false));
        let is_memory_bound =
            pass.bytes / machine.bandwidth.value >= pass.operations / machine.operations().value;
        let weights = (shard.layer_weights + shard.head_weights) * machine.weights.bytes();
        let weights = weights / load.rows.max(1.0);
        let kv = shard.kv_values * machine.kv_bytes;
        self.rows.clear();
        for (row, planned) in step.batch.rows.iter().zip(&step.plan.rows) {
            let mut own = Load::default();
            let sampled = row.tokens.len.saturating_sub(row.sample_from);
            own.add(f64::from(row.tokens.len), f64::from(sampled), f64::from(planned.read_len));
            self.rows.push(if is_memory_bound {
                weights + kv * (own.read + own.written)
            } else {
                2.0 * shard.layer_weights * own.tokens
                    + 2.0 * shard.head_weights * own.sampled
                    + shard.attention_operations * own.seen
            });
        }
        let sum: f64 = self.rows.iter().sum();
        self.rows.iter_mut().for_each(|share| *share /= if sum > 0.0 { sum } else { 1.0 });
        self.collectives = preset.collectives(&load) * 1e9;
    }
}

//! Data of `kvasir inspect`: architecture, programs, K/V facts per layer, and memory plan.

use crate::load::OpenedModel;
use kvasir_program::{Buffers, LayerFacts, Model};
use serde::Serialize;
use std::fmt;

/// All that is known of a model before it runs.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// Name of the architecture.
    pub architecture: String,
    /// Weight schema and programs of target and prediction layers.
    pub programs: Model,
    /// K/V per token.
    pub kv: KvFacts,
    /// Memory plan.
    pub memory: MemoryPlan,
}

/// K/V facts of the model, independent of a session.
#[derive(Debug, Serialize)]
pub struct KvFacts {
    /// Number of the target's layers with K/V.
    pub n_layers: usize,
    /// K/V layout of each of them.
    pub layers: Vec<LayerFacts>,
    /// K/V layouts of each prediction layer (MTP).
    pub predictions: Vec<Vec<LayerFacts>>,
}

/// Memory of weights, K/V and activations.
#[derive(Debug, Serialize)]
pub struct MemoryPlan {
    /// Number of tensors in the checkpoint.
    pub tensors: usize,
    /// Number of tensors outside the text model, which are not read.
    pub left_out: usize,
    /// Size of all tensors as stored, in bytes.
    pub stored: u64,
    /// K/V elements per token over all layers of the target.
    pub kv_numbers_per_token: usize,
    /// K/V bytes per token with a 16-bit type.
    pub kv_bytes_per_token_16_bit: usize,
    /// K/V bytes per token with a 32-bit type.
    pub kv_bytes_per_token_32_bit: usize,
    /// Number of activation buffers, shared among values.
    pub buffers: usize,
    /// Number of values that take turns in them.
    pub values: usize,
    /// Activation elements per token of a step.
    pub step_numbers_per_token: usize,
    /// Additional activation elements per sampled token.
    pub step_numbers_per_sample: usize,
}

impl Inspection {
    /// Inspects an opened model.
    pub fn of(opened: &OpenedModel) -> Self {
        let target = &opened.model.target;
        let buffers = Buffers::plan(target, &[]);
        let kv = target.kv_width();
        let tensors = opened.checkpoint.tensors();
        let (count, stored) = tensors.fold((0, 0u64), |(n, bytes), t| (n + 1, bytes + t.bytes.len() as u64));
        Self {
            architecture: target.architecture.clone(),
            programs: opened.model.clone(),
            kv: KvFacts {
                n_layers: target.layers.len(),
                layers: target.layers.clone(),
                predictions: opened.model.predictions.iter().map(|p| p.layers.clone()).collect(),
            },
            memory: MemoryPlan {
                tensors: count,
                left_out: opened.checkpoint.left_out(),
                stored,
                kv_numbers_per_token: kv,
                kv_bytes_per_token_16_bit: kv * 2,
                kv_bytes_per_token_32_bit: kv * 4,
                buffers: buffers.buffers.len(),
                values: target.values.len(),
                step_numbers_per_token: buffers.numbers(1, 0),
                step_numbers_per_sample: buffers.numbers(0, 1),
            },
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.programs.target;
        writeln!(f, "architecture     {}", self.architecture)?;
        writeln!(f, "hidden size      {}", target.hidden)?;
        writeln!(f, "vocabulary       {}", target.vocab)?;
        writeln!(f, "longest sequence {}", target.max_positions)?;
        writeln!(f, "prediction layers {}", self.programs.predictions.len())?;
        writeln!(f, "\nper token and layer")?;
        for (layer, facts) in self.kv.layers.iter().enumerate() {
            let LayerFacts { kv_heads, key_dim, value_dim, index_dim, .. } = facts;
            write!(f, "  layer {layer}: {kv_heads} heads, key {key_dim}, value {value_dim}")?;
            write!(f, "{}", if facts.value_in_key { " (part of the key)" } else { "" })?;
            facts.window.iter().try_for_each(|window| write!(f, ", window {window}"))?;
            writeln!(f, "{}", if *index_dim > 0 { format!(", indexer {index_dim}") } else { String::new() })?;
        }
        let memory = &self.memory;
        writeln!(f, "\nmemory")?;
        writeln!(f, "  {} tensors, {} bytes as stored", memory.tensors, memory.stored)?;
        if memory.left_out > 0 {
            writeln!(f, "  {} tensors are not of the text model and are not read", memory.left_out)?;
        }
        let (half, full) = (memory.kv_bytes_per_token_16_bit, memory.kv_bytes_per_token_32_bit);
        writeln!(f, "  {half} bytes of K/V per token in a 16-bit pool, {full} in a 32-bit one")?;
        writeln!(f, "  {} values in {} buffers", memory.values, memory.buffers)?;
        let (token, sample) = (memory.step_numbers_per_token, memory.step_numbers_per_sample);
        writeln!(f, "  {token} numbers per token of a step, {sample} per sampled token")?;
        self.programs.programs().try_for_each(|program| write!(f, "\n{program}"))
    }
}

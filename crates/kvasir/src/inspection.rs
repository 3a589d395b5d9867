use crate::Opened;
use kvasir_program::{Buffers, LayerFacts, Model};
use serde::Serialize;
use std::fmt;

/// What `kvasir inspect` shows: all that is known of a model before it runs.
#[derive(Debug, Serialize)]
pub struct Inspection {
    /// The architecture's name.
    pub architecture: String,
    /// Weights, their names and numbers; the programs as data.
    pub programs: Model,
    /// What each token keeps.
    pub kv: KvFacts,
    /// Sizes.
    pub memory: MemoryPlan,
}

/// Facts about K and V that belong to the model and not to a session.
#[derive(Debug, Serialize)]
pub struct KvFacts {
    /// Layers of the target that keep something.
    pub n_layers: usize,
    /// What each of them keeps.
    pub layers: Vec<LayerFacts>,
    /// The same of each prediction layer.
    pub predictions: Vec<Vec<LayerFacts>>,
}

/// Bytes that the model takes, and what a step and a context add.
#[derive(Debug, Serialize)]
pub struct MemoryPlan {
    /// Tensors of the checkpoint.
    pub tensors: usize,
    /// Tensors of the checkpoint that are not the text model's, and are not read.
    pub left_out: usize,
    /// Bytes of all tensors as stored.
    pub stored: u64,
    /// Numbers that one token of context keeps over all layers of the target.
    pub kv_numbers_per_token: usize,
    /// Bytes of one token of context in a 16-bit pool.
    pub kv_bytes_per_token_16_bit: usize,
    /// The same in a 32-bit pool.
    pub kv_bytes_per_token_32_bit: usize,
    /// Buffers that the target's values share.
    pub buffers: usize,
    /// Values that they hold one after the other.
    pub values: usize,
    /// Numbers that each token of a step takes in them.
    pub step_numbers_per_token: usize,
    /// Numbers that each sampled token takes on top.
    pub step_numbers_per_sample: usize,
}

impl Inspection {
    /// Of an opened model.
    pub fn of(opened: &Opened) -> Self {
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

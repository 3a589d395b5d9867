//! [`Source`]: the input of a program build. Config, tensor names and shapes; no tensor data.

use serde_json::Value as Json;
use std::collections::BTreeMap;

/// The config in Hugging Face spelling, with names and shapes of the tensors.
#[derive(Clone, Debug)]
pub struct Source {
    /// The contents of `config.json`.
    pub config: Json,
    /// Shapes of all tensors by Hugging Face name, the slowest dimension first.
    ///
    /// `None` describes a model with synthetic weights (`bench --shape`): every tensor that the
    /// config implies counts as present.
    pub tensors: Option<BTreeMap<String, Vec<usize>>>,
    /// Elements per quantization block, by weight name. Types with companion tensors (scales) are
    /// listed once, and unquantized weights are absent.
    pub blocks: BTreeMap<String, usize>,
    /// Deviations of the checkpoint's storage from the Hugging Face layout.
    pub layout: Layout,
}

/// How a checkpoint (such as GGUF) stores weights differently from Hugging Face's layout; all false
/// for the latter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The rows of each Q and K head are permuted, so that rotary pairs are (2i, 2i + 1).
    pub interleaved_qk: bool,
    /// Norm weights already include the offset: 1 + w.
    pub norm_plus_one: bool,
    /// MLA: `kv_b_proj` is split into `k_b_proj` [heads, kv_lora, qk_nope] and `v_b_proj` [heads,
    /// v_head, kv_lora].
    pub split_kv_b: bool,
    /// Recurrent layers are stored as in GGUF (`ssm_*`): convolutions as [channels, kernel], decay
    /// rates as
    /// -exp(A_log), norms of Mamba-2 by group.
    pub ssm_tensors: bool,
    /// Value heads of gated delta rules are tiled over the key heads.
    pub tiled_value_heads: bool,
    /// The multipliers of activations (Falcon-H1) are folded into the weights.
    pub folded_factors: bool,
    /// The fused gate and up projections of experts and shared MLPs are split, and have the tensor
    /// names of other architectures.
    pub split_feed_forward: bool,
    /// Fused experts are split into `experts.N.{gate,up,down}_proj`, [out, in] each.
    pub split_gate_up: bool,
}

impl Source {
    /// A model without a checkpoint, for synthetic weights.
    pub fn of_config(config: Json) -> Self {
        Self { config, tensors: None, blocks: BTreeMap::new(), layout: Layout::default() }
    }

    /// The logical shape of a tensor.
    ///
    /// A weight stored as MXFP4 (`NAME_blocks`, 32 four-bit floats in 16 bytes) has the shape of
    /// the dequantized weight.
    pub(crate) fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let tensors = self.tensors.as_ref()?;
        if let Some(shape) = tensors.get(name) {
            return Some(shape.clone());
        }
        let mut shape = tensors.get(&format!("{name}_blocks"))?.clone();
        shape.pop();
        let last = shape.last_mut()?;
        *last = last.checked_mul(32)?;
        Some(shape)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.as_ref().is_some_and(|t| t.contains_key(name))
    }

    pub(crate) fn has_prefix(&self, prefix: &str) -> bool {
        let first = self.tensors.as_ref().and_then(|t| t.range(prefix.to_owned()..).next());
        first.is_some_and(|(name, _)| name.starts_with(prefix))
    }
}

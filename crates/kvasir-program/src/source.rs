use serde_json::Value as Json;
use std::collections::BTreeMap;

/// What a program is made of: the config in Hugging Face spelling and the names and shapes of the tensors. No bytes.
#[derive(Clone, Debug)]
pub struct Source {
    /// The config.
    pub config: Json,
    /// Shapes of all tensors by Hugging Face name, slowest dimension first. `None` describes a model whose weights
    /// are to be made up (`bench --shape`): every tensor that the config asks for then counts as present.
    pub tensors: Option<BTreeMap<String, Vec<usize>>>,
    /// How the checkpoint keeps its weights.
    pub layout: Layout,
}

/// Where a checkpoint keeps the same weights in another way than the Hugging Face layout, which has none of these set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The rows of each head of the query and key weights are permuted so that rotary pairs are (2i, 2i + 1).
    pub interleaved_qk: bool,
    /// Norm weights already hold 1 + w.
    pub norm_plus_one: bool,
    /// `kv_b_proj` is split into `k_b_proj` [heads, kv_lora, qk_nope] and `v_b_proj` [heads, v_head, kv_lora].
    pub split_kv_b: bool,
    /// Fused experts are split into `experts.N.{gate,up,down}_proj`, [out, in] each.
    pub split_gate_up: bool,
}

impl Source {
    /// A model without weights.
    pub fn of_config(config: Json) -> Self {
        Self { config, tensors: None, layout: Layout::default() }
    }

    /// Shape of a tensor as the config means it: for a weight kept as `NAME_blocks` of 32 four-bit floats, 16 bytes
    /// each, the shape that the unpacked weight has.
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

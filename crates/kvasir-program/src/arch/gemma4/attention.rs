//! Attention of Gemma 4: `q = rope(rms(q) w_q)`, `k = rope(rms(k) w_k)`, `v = rms(v)`, softmax
//! scale 1.
//!
//! Sliding-window and full layers differ in KV heads, head width and RoPE. The last layers may have
//! only queries (shared K/V): they attend to the K and V of the last layer of the same kind that
//! writes them.

use crate::blocks::decoder::Norms;
use crate::blocks::listed_windows;
use crate::builder::config::Config;
use crate::builder::rope_config::RopeConfig;
use crate::builder::{Attend, Builder};
use crate::error::Result;
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::op::Pairs;
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;
use crate::ir::weight::Role;
use std::collections::HashMap;

/// The attention of all layers.
pub(crate) struct Attention {
    query_heads: usize,
    norms: Norms,
    layers: Vec<Layer>,
    /// Number of layers that write K and V; the later ones share.
    writers: usize,
    /// The `LayerId` of each layer built so far that writes K and V.
    written: Vec<LayerId>,
    ropes: HashMap<(bool, usize), RopeId>,
}

/// Heads and window of one layer.
#[derive(Clone, Copy)]
struct Layer {
    window: Option<u32>,
    kv_heads: usize,
    head_dim: usize,
    /// V is the key projection, before the norm and the rope of K.
    value_is_key: bool,
}

impl Attention {
    /// Reads the heads of all layers.
    pub(crate) fn new(b: &Builder<'_>, norms: Norms) -> Result<Self> {
        let c = b.config;
        let layers = Layer::read_all(c)?;
        let shared = c.count("num_kv_shared_layers")?;
        let writers = layers.len().saturating_sub(shared);
        if shared > 0 {
            let has_source = |layer: &Layer| {
                let sources = layers[..writers].iter();
                sources.clone().any(|source| source.window.is_some() == layer.window.is_some())
            };
            if !layers[writers..].iter().all(has_source) {
                let why = format!("is {shared}, of {} layers: no layer has K and V to share", layers.len());
                return Err(c.bad("num_kv_shared_layers", why));
            }
        }
        let query_heads = c.size("num_attention_heads")?;
        Ok(Self { query_heads, norms, layers, writers, written: Vec::new(), ropes: HashMap::new() })
    }

    /// Whether a layer attends to the K and V of an earlier one.
    pub(crate) fn shares_kv(&self, layer: usize) -> bool {
        layer >= self.writers
    }

    /// Builds the attention of the next layer.
    pub(crate) fn build(&mut self, b: &mut Builder<'_>, number: usize, x: ValueId) -> Result<ValueId> {
        let layer = self.layers[number];
        let p = format!("model.layers.{number}.self_attn.");
        let rope = self.rope(b, layer)?;
        let width = self.query_heads * layer.head_dim;
        let q = project(b, &p, "q_proj", width, x)?;
        let q = self.norms.heads(b, q, &format!("{p}q_norm"), self.query_heads)?;
        let q = b.rotary(q, self.query_heads, 0, rope, Pairs::Half)?;
        let (id, k, v) = if self.shares_kv(number) {
            (self.kv_source(layer), None, None)
        } else {
            let k = project(b, &p, "k_proj", layer.kv_heads * layer.head_dim, x)?;
            let v = if layer.value_is_key {
                k
            } else {
                project(b, &p, "v_proj", layer.kv_heads * layer.head_dim, x)?
            };
            let k = self.norms.heads(b, k, &format!("{p}k_norm"), layer.kv_heads)?;
            let k = b.rotary(k, layer.kv_heads, 0, rope, Pairs::Half)?;
            let v = b.unweighted_rms(v, layer.kv_heads, self.norms.eps)?;
            let id = b.layer(layer.facts());
            self.written.push(id);
            (id, Some(k), Some(v))
        };
        if self.shares_kv(number) {
            // Checkpoints may contain these unused tensors.
            let unread = ["k_proj", "v_proj", "k_norm"].map(|part| format!("{p}{part}.weight"));
            b.unread.extend(unread);
        }
        let attend = Attend { q, k, v, scale: 1.0, soft_cap: None, sinks: None, selection: None };
        let y = b.attend(id, &attend)?;
        let bias = b.config.flag_or("attention_bias", false)?;
        let out = b.matrix(&format!("{p}o_proj"), b.program.hidden, width, bias, Role::Matrix)?;
        b.linear(y, out)
    }

    /// The rope of a layer; layers of the same kind and head width share one.
    fn rope(&mut self, b: &mut Builder<'_>, layer: Layer) -> Result<RopeId> {
        let is_sliding = layer.window.is_some();
        if let Some(rope) = self.ropes.get(&(is_sliding, layer.head_dim)) {
            return Ok(*rope);
        }
        let config = if is_sliding {
            RopeConfig::of_kind(b.config, "sliding_attention", "rope_local_base_freq", 10_000.0)?
        } else {
            RopeConfig::of_kind(b.config, "full_attention", "rope_theta", 1_000_000.0)?
        };
        let rope = config.rope(config.dims(layer.head_dim, 1.0)?)?;
        let id = b.rope(rope);
        self.ropes.insert((is_sliding, layer.head_dim), id);
        Ok(id)
    }

    /// The last layer of the same kind that writes K and V.
    fn kv_source(&self, layer: Layer) -> LayerId {
        let writers = self.written.iter().zip(&self.layers).rev();
        let mut same = writers.filter(|(_, source)| source.window.is_some() == layer.window.is_some());
        // `new` has checked that there is one.
        same.next().map_or(LayerId(0), |(id, _)| *id)
    }
}

fn project(b: &mut Builder<'_>, p: &str, name: &str, width: usize, x: ValueId) -> Result<ValueId> {
    let bias = b.config.flag_or("attention_bias", false)?;
    let matrix = b.matrix(&format!("{p}{name}"), width, b.program.hidden, bias, Role::Matrix)?;
    b.linear(x, matrix)
}

impl Layer {
    fn read_all(c: Config<'_>) -> Result<Vec<Self>> {
        let count = c.number("num_hidden_layers")?;
        // The last layer has full attention, whatever the pattern is.
        let windows = listed_windows(c, |layer| !(layer + 1).is_multiple_of(6) && layer + 1 < count)?;
        let k_is_v = c.flag_or("attention_k_eq_v", false)?;
        let (dim, full_dim) = (c.size("head_dim")?, c.size("global_head_dim")?);
        let heads = c.size("num_key_value_heads")?;
        let full_heads = if k_is_v { c.size_or("num_global_key_value_heads", heads)? } else { heads };
        let overrides = c.object("per_layer_config")?;
        let mut layers = Vec::with_capacity(count);
        for (number, window) in windows.into_iter().enumerate() {
            let (kv_heads, head_dim) = if window.is_some() { (heads, dim) } else { (full_heads, full_dim) };
            let number = number.to_string();
            let overrides = match &overrides {
                Some(all) => all.entry(&number)?,
                None => None,
            };
            let size = |key: &str, default: usize| match overrides {
                Some(overrides) => overrides.size_or(key, default),
                None => Ok(default),
            };
            layers.push(Self {
                window,
                kv_heads: size("num_key_value_heads", kv_heads)?,
                head_dim: size("head_dim", head_dim)?,
                value_is_key: k_is_v && window.is_none(),
            });
        }
        Ok(layers)
    }

    fn facts(self) -> LayerFacts {
        LayerFacts {
            kv_heads: self.kv_heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
            value_in_key: false,
            window: self.window,
            lookahead: 0,
            index_dim: 0,
        }
    }
}

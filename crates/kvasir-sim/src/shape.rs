//! Model shapes for the roofline model: parameters, KV size and attention operations of published
//! dense models.
//!
//! No weights. Covers GQA with a gated feed-forward block; no MoE and no MLA.

/// The dimensions of a dense transformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// KV heads (GQA).
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Intermediate width of the gated feed-forward block.
    pub feed_forward: u32,
    /// Vocabulary size.
    pub vocabulary: u32,
    /// Context length that the model is made for.
    pub max_model_len: u32,
    /// Whether LM head and embedding share one table.
    pub tied: bool,
}

/// The shapes known by name, from the published configs.
pub const SHAPES: [Shape; 6] = [
    shape("qwen3-0.6b", [28, 1024, 16, 8, 128, 3072, 151_936, 40_960], true),
    shape("qwen3-8b", [36, 4096, 32, 8, 128, 12_288, 151_936, 40_960], false),
    shape("qwen3-14b", [40, 5120, 40, 8, 128, 17_408, 151_936, 40_960], false),
    shape("qwen3-32b", [64, 5120, 64, 8, 128, 25_600, 151_936, 40_960], false),
    shape("llama-3.2-1b", [16, 2048, 32, 8, 64, 8192, 128_256, 131_072], true),
    shape("llama-3-8b", [32, 4096, 32, 8, 128, 14_336, 128_256, 8192], false),
];

const fn shape(name: &'static str, n: [u32; 8], tied: bool) -> Shape {
    let [layers, hidden, heads, kv_heads, head_dim, feed_forward, vocabulary, max_model_len] = n;
    Shape { name, layers, hidden, heads, kv_heads, head_dim, feed_forward, vocabulary, max_model_len, tied }
}

impl Shape {
    /// The shape of this name.
    pub fn named(name: &str) -> Option<Self> {
        SHAPES.iter().find(|shape| shape.name == name).copied()
    }

    /// Parameters of all layers, which every token is multiplied with. Norms are not counted.
    pub fn layer_weights(&self) -> f64 {
        let [hidden, heads, kv, dim, wide] =
            [self.hidden, self.heads, self.kv_heads, self.head_dim, self.feed_forward].map(f64::from);
        let attention = hidden * dim * (2.0 * heads + 2.0 * kv);
        f64::from(self.layers) * (attention + 3.0 * hidden * wide)
    }

    /// Parameters of the LM head, which only sampled rows are multiplied with.
    pub fn head_weights(&self) -> f64 {
        f64::from(self.hidden) * f64::from(self.vocabulary)
    }

    /// Parameters of the embedding table; 0 if tied to the LM head.
    pub fn table_weights(&self) -> f64 {
        if self.tied { 0.0 } else { self.head_weights() }
    }

    /// KV cache elements per token.
    pub fn kv_values(&self) -> f64 {
        2.0 * f64::from(self.layers) * f64::from(self.kv_heads) * f64::from(self.head_dim)
    }

    /// Attention operations per pair of query and visible key, over all layers.
    pub fn attention_operations(&self) -> f64 {
        4.0 * f64::from(self.layers) * f64::from(self.heads) * f64::from(self.head_dim)
    }
}

/// The shard of a model on its busiest tensor-parallel rank. Attention is divided by heads; MLP and
/// LM head are divided evenly. KV heads that several ranks need are replicated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shard {
    /// Weights of its layers.
    pub(crate) layer_weights: f64,
    /// Weights of its LM head.
    pub(crate) head_weights: f64,
    /// KV cache elements per token.
    pub(crate) kv_values: f64,
    /// As [`Shape::attention_operations`].
    pub(crate) attention_operations: f64,
}

impl Shard {
    pub(crate) fn of(shape: &Shape, ranks: u32) -> Self {
        let ranks = ranks.max(1);
        let share = |count: u32| f64::from(count.div_ceil(ranks)) / f64::from(count.max(1));
        let (heads, kv_heads) = (share(shape.heads), share(shape.kv_heads));
        let [hidden, query, kv, dim, feed_forward] =
            [shape.hidden, shape.heads, shape.kv_heads, shape.head_dim, shape.feed_forward].map(f64::from);
        let attention = hidden * dim * (2.0 * query * heads + 2.0 * kv * kv_heads);
        let mlp = 3.0 * hidden * feed_forward / f64::from(ranks);
        Self {
            layer_weights: f64::from(shape.layers) * (attention + mlp),
            head_weights: shape.head_weights() / f64::from(ranks),
            kv_values: shape.kv_values() * kv_heads,
            attention_operations: shape.attention_operations() * heads,
        }
    }

    /// Weights that a forward pass reads.
    pub(crate) fn weights(&self) -> f64 {
        self.layer_weights + self.head_weights
    }
}

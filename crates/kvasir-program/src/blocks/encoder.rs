//! Bidirectional attention of encoders, their activation functions, and the pooling mode of embedding
//! models.
//!
//! A step holds whole sequences, so each attention op writes all K and V rows that it reads. Layers
//! with the same window therefore share the K/V slots of one `LayerFacts`.

use crate::builder::config::Config;
use crate::builder::{Attend, Builder};
use crate::error::Result;
use crate::ir::elementwise::Elementwise;
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::pooling::Pooling;
use crate::ir::value::ValueId;
use serde_json::Value as Json;

/// Number and size of the attention heads; K and V have as many heads as Q.
#[derive(Clone, Copy)]
pub(crate) struct EncoderHeads {
    pub(crate) count: usize,
    pub(crate) dim: usize,
}

impl EncoderHeads {
    pub(crate) fn read(config: Config<'_>) -> Result<Self> {
        let (hidden, count) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        if !hidden.is_multiple_of(count) {
            return Err(
                config.bad("num_attention_heads", format!("is {count}, which does not divide {hidden}"))
            );
        }
        Ok(Self { count, dim: hidden / count })
    }

    /// Adds the K/V layout of all layers whose tokens attend to `half_window` positions in each
    /// direction; `None` is the whole sequence.
    pub(crate) fn kv_layer(self, b: &mut Builder<'_>, half_window: Option<u32>) -> LayerId {
        b.layer(LayerFacts {
            kv_heads: self.count,
            key_dim: self.dim,
            value_dim: self.dim,
            value_in_key: false,
            window: half_window.map(|half_window| half_window.saturating_add(1)),
            lookahead: half_window.unwrap_or(u32::MAX),
            index_dim: 0,
        })
    }

    /// Attention with the softmax scale 1 / sqrt(dim).
    pub(crate) fn attend(
        self,
        b: &mut Builder<'_>,
        layer: LayerId,
        [q, k, v]: [ValueId; 3],
    ) -> Result<ValueId> {
        let scale = (self.dim as f64).powf(-0.5);
        b.attend(
            layer,
            &Attend { q, k: Some(k), v: Some(v), scale, soft_cap: None, sinks: None, selection: None },
        )
    }
}

/// The pooling of an embedding model: the config key `pooling_mode`, which is read from the
/// sentence-transformers files; the mean by default, as in sentence-transformers.
pub(crate) fn pooling(config: Config<'_>) -> Result<Pooling> {
    let Some(name) = config.text("pooling_mode")? else { return Ok(Pooling::Mean) };
    let unknown = || config.bad("pooling_mode", format!("is {name:?}, not mean, cls or lasttoken"));
    Pooling::named(name).ok_or_else(unknown)
}

/// Sets the maximum number of positions to at most `max_seq_length`, which is read from the
/// sentence-transformers files.
pub(crate) fn limit_max_positions(b: &mut Builder<'_>, positions: usize) -> Result<()> {
    let max_seq_length = b.config.size_or("max_seq_length", positions)?;
    b.program.max_positions = positions.min(max_seq_length);
    Ok(())
}

/// The activation function that the config key `key` names; GELU by default.
pub(crate) fn activation_function(config: Config<'_>, key: &str) -> Result<Elementwise> {
    match config.get(key).and_then(Json::as_str).unwrap_or("gelu") {
        "gelu" => Ok(Elementwise::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Elementwise::GeluTanh),
        "relu" => Ok(Elementwise::Relu),
        "silu" | "swish" => Ok(Elementwise::Silu),
        other => Err(config.bad(key, format!("is {other:?}, which is not supported"))),
    }
}

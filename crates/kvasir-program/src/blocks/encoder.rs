//! Parts of encoder stacks: attention over the whole sequence, and the pooling behind the last layer.
//!
//! A step holds whole sequences, so that each attention op writes all K and V rows that it reads. All
//! layers of one reach therefore use the K/V slots of one layer.

use crate::builder::config::Config;
use crate::builder::{Attend, Builder};
use crate::error::Result;
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::pooling::Pooling;
use crate::ir::value::ValueId;

/// Heads of an encoder's attention.
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

    /// The K/V layout of all layers that see `reach` positions in each direction; `None` is the whole
    /// sequence.
    pub(crate) fn layer(self, b: &mut Builder<'_>, reach: Option<u32>) -> LayerId {
        b.layer(LayerFacts {
            kv_heads: self.count,
            key_dim: self.dim,
            value_dim: self.dim,
            value_in_key: false,
            window: reach.map(|reach| reach.saturating_add(1)),
            lookahead: reach.unwrap_or(u32::MAX),
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

/// The pooling of an embedding model: `pooling_mode`, which a checkpoint's sentence-transformers
/// modules give; the mean without them, as sentence-transformers has it.
pub(crate) fn pooling(config: Config<'_>) -> Result<Pooling> {
    let Some(name) = config.text("pooling_mode")? else { return Ok(Pooling::Mean) };
    let unknown = || config.bad("pooling_mode", format!("is {name:?}, not mean, cls or lasttoken"));
    Pooling::named(name).ok_or_else(unknown)
}

/// Limits the positions to `max_seq_length`, which a checkpoint's sentence-transformers modules give.
pub(crate) fn limit_positions(b: &mut Builder<'_>, positions: usize) -> Result<()> {
    let trained = b.config.size_or("max_seq_length", positions)?;
    b.program.max_positions = positions.min(trained);
    Ok(())
}

//! Qwen2 (biases on the Q, K and V projections) and Qwen3 (QK-norm: an RMSNorm over each query and
//! key head instead; MTP layers as in DeepSeek-V3, if the checkpoint has any).

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::decoder::{Norms, decoder, prediction};
use crate::blocks::feed_forward::FeedForward;
use crate::blocks::qwen_windows;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::encoder::POOLING;
use crate::gguf::heads::{HEADS, QKV_BIAS};
use crate::ir::rope::RopeId;
use crate::ir::value::ValueId;

pub(crate) static QWEN2: Architecture = Architecture {
    classes: &[Class::text("Qwen2ForCausalLM", "qwen2")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen2"],
        written: |_| "qwen2",
        claims: |_| true,
        tensors: &[],
        transforms: &[],
        rules: &[HEADS],
    },
    models: "Qwen2, Qwen2.5",
    specifics: "attention biases, sliding windows",
    defaults: |config| fill(config, [("sliding_window", 4096.into()), ("max_window_layers", 28.into())]),
    target: qwen2,
    prediction: None,
};

pub(crate) static QWEN3: Architecture = Architecture {
    classes: &[Class::text("Qwen3ForCausalLM", "qwen3")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen3"],
        written: |_| "qwen3",
        claims: |_| true,
        tensors: &[],
        transforms: &[],
        rules: &[HEADS, QKV_BIAS, POOLING],
    },
    models: "Qwen3, Qwen3-Embedding",
    specifics: "per-head norms; prediction layers, if there are any",
    defaults: |config| {
        let window = [("sliding_window", 4096.into()), ("max_window_layers", 28.into())];
        fill(config, window);
        fill(config, [("head_dim", 128.into())]);
    },
    target: qwen3,
    prediction: Some(qwen3_prediction),
};

fn qwen2(b: &mut Builder<'_>) -> Result<()> {
    let attention = Attention { bias: true, ..Attention::read(b.config)? };
    Parts::new(b, attention)?.target(b)
}

fn qwen3(b: &mut Builder<'_>) -> Result<()> {
    Parts::qwen3(b)?.target(b)
}

fn qwen3_prediction(b: &mut Builder<'_>) -> Result<()> {
    let parts = Parts::qwen3(b)?;
    prediction(b, parts.norms, |b, i, x| parts.layer(b, i, x))
}

struct Parts {
    attention: Attention,
    ffn: FeedForward,
    norms: Norms,
    /// By layer; those beyond the list have none.
    windows: Vec<Option<u32>>,
    rope: RopeId,
}

impl Parts {
    fn qwen3(b: &mut Builder<'_>) -> Result<Self> {
        let bias = b.config.flag_or("attention_bias", false)?;
        let norms = Some(Norms::rms(b.config)?);
        Self::new(b, Attention { bias, out_bias: bias, norms, ..Attention::read(b.config)? })
    }

    fn new(b: &mut Builder<'_>, attention: Attention) -> Result<Self> {
        let (norms, ffn) = (Norms::rms(b.config)?, FeedForward::read(b.config)?);
        let windows = qwen_windows(b.config)?;
        let rope = attention.rope(b, RopeConfig::read(b.config)?, 1.0)?;
        Ok(Self { attention, ffn, norms, windows, rope })
    }

    fn layer(&self, b: &mut Builder<'_>, i: usize, x: ValueId) -> Result<ValueId> {
        let window = self.windows.get(i).copied().flatten();
        let attend = |b: &mut Builder<'_>, h| self.attention.build(b, i, h, self.rope, window);
        layer(b, i, x, self.norms, attend, |b, p, h| self.ffn.build(b, p, h))
    }

    fn target(&self, b: &mut Builder<'_>) -> Result<()> {
        decoder(b, 1.0, self.norms, |b, i, x| self.layer(b, i, x))
    }
}

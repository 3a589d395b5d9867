//! Phi-3: fused QKV and gate/up projections, partial rotary embedding, LongRoPE.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::fill;
use crate::arch::llama::layer;
use crate::blocks::attention::Attention;
use crate::blocks::common_window;
use crate::blocks::decoder::{Norms, decoder};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::Builder;
use crate::builder::rope_config::RopeConfig;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::{HEADS, WINDOW};
use crate::gguf::rule::{Absent, Rule};
use crate::gguf::tensor_name::TensorName::Stem;

pub(crate) static PHI3: Architecture = Architecture {
    classes: &[Class::text("Phi3ForCausalLM", "phi3")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["phi3"],
        written: |_| "phi3",
        claims: |_| true,
        tensors: &[&[Stem("ffn_up", "mlp.gate_up_proj")]],
        transforms: &[],
        rules: &[
            HEADS,
            WINDOW,
            &[Rule::count(
                "rope.scaling.original_context_length",
                "original_max_position_embeddings",
                Absent::Omit,
            )],
        ],
    },
    models: "Phi-3, Phi-3.5, Phi-4-mini",
    specifics: "`longrope`: factors depend on prompt plus limit",
    defaults: |config| {
        fill(config, [("rms_norm_eps", 1e-5.into()), ("original_max_position_embeddings", 4096.into())]);
    },
    target,
    prediction: None,
};

fn target(b: &mut Builder<'_>) -> Result<()> {
    let c = b.config;
    let (norms, window) = (Norms::rms(c)?, common_window(c)?);
    let attention = Attention { fused: true, ..Attention::read(c)? };
    let ffn = FeedForward { fused: Some("gate_up_proj"), ..FeedForward::read(c)? };
    // Older Phi-3 configs say `yarn` but mean LongRoPE.
    let rope = RopeConfig::read(c)?.with_kind("yarn", "longrope");
    let rope = attention.rope(b, rope, 1.0)?;
    decoder(b, 1.0, norms, |b, i, x| {
        layer(b, i, x, norms, |b, h| attention.build(b, i, h, rope, window), |b, p, h| ffn.build(b, p, h))
    })
}

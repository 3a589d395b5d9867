//! Qwen3.5 with a MoE in each layer; the routing weights are always renormalized.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::qwen3_5::MTP_RENAMES;
use crate::arch::qwen3_5::layers::{FeedForwards, Layers, SharedMoe};
use crate::arch::qwen3_5::metadata::{
    DELTA, DELTA_TENSORS, QWEN3_5_TENSORS, SHARED_EXPERT, TILED_TRANSFORMS, defaults,
};
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS};
use crate::gguf::heads::HEADS;

pub(crate) static QWEN3_5_MOE: Architecture = Architecture {
    classes: &[
        Class::text("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
        Class::multimodal("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", &["visual."]),
    ],
    renames: MTP_RENAMES,
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen35moe"],
        written: |_| "qwen35moe",
        claims: |_| true,
        tensors: &[QWEN3_5_TENSORS, DELTA_TENSORS],
        transforms: &[TILED_TRANSFORMS],
        rules: &[HEADS, EXPERTS, EXPERT_WIDTH, SHARED_EXPERT, DELTA],
    },
    models: "Qwen3.5 MoE (text)",
    specifics: "Gated DeltaNet in three of four layers, MoE with a gated shared expert, prediction layer",
    defaults,
    target: |b| layers(b)?.target(b),
    prediction: Some(|b| layers(b)?.prediction(b)),
};

fn layers(b: &mut Builder<'_>) -> Result<Layers> {
    let moe = SharedMoe::read(b.config, true)?;
    Layers::new(b, false, FeedForwards::Moe(moe))
}

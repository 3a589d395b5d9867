//! Qwen3.5 with dense feed-forward blocks.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::qwen3_5::MTP_RENAMES;
use crate::arch::qwen3_5::layers::{FeedForwards, Layers};
use crate::arch::qwen3_5::metadata::{DELTA, DELTA_TENSORS, QWEN3_5_TENSORS, TILED_TRANSFORMS, defaults};
use crate::blocks::feed_forward::FeedForward;
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::heads::HEADS;

pub(crate) static QWEN3_5: Architecture = Architecture {
    classes: &[
        Class::text("Qwen3_5ForCausalLM", "qwen3_5_text"),
        Class::multimodal("Qwen3_5ForConditionalGeneration", "qwen3_5_text", &["visual."]),
    ],
    renames: MTP_RENAMES,
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen35"],
        written: |_| "qwen35",
        claims: |_| true,
        tensors: &[QWEN3_5_TENSORS, DELTA_TENSORS],
        transforms: &[TILED_TRANSFORMS],
        rules: &[HEADS, DELTA],
    },
    models: "Qwen3.5 (text)",
    specifics: "Gated DeltaNet in three of four layers, output gates, prediction layer",
    defaults,
    target: |b| layers(b)?.target(b),
    prediction: Some(|b| layers(b)?.prediction(b)),
};

fn layers(b: &mut Builder<'_>) -> Result<Layers> {
    let dense = FeedForward::read(b.config)?;
    Layers::new(b, false, FeedForwards::Dense(dense))
}

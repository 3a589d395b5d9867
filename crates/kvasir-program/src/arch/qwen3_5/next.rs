//! Qwen3-Next: recurrent layers whose projection rows are ordered by key head, and a MoE in most
//! layers.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::qwen3_5::MTP_RENAMES;
use crate::arch::qwen3_5::layers::{FeedForwards, Layers, SharedMoe};
use crate::arch::qwen3_5::metadata::{
    DELTA, DELTA_TENSORS, KEY_HEAD_TRANSFORMS, QWEN3_5_TENSORS, SHARED_EXPERT, defaults,
};
use crate::builder::Builder;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::gguf::experts::{EXPERT_WIDTH, EXPERTS, read_dense_layers};
use crate::gguf::heads::HEADS;
use crate::gguf::rule::{Rule, write_nothing};

pub(crate) static QWEN3_NEXT: Architecture = Architecture {
    classes: &[Class::text("Qwen3NextForCausalLM", "qwen3_next")],
    renames: MTP_RENAMES,
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["qwen3next"],
        written: |_| "qwen3next",
        claims: |_| true,
        tensors: &[QWEN3_5_TENSORS, DELTA_TENSORS],
        transforms: &[KEY_HEAD_TRANSFORMS],
        rules: &[
            HEADS,
            EXPERTS,
            EXPERT_WIDTH,
            SHARED_EXPERT,
            DELTA,
            &[Rule::Code { read: read_dense_layers, write: write_nothing }],
        ],
    },
    models: "Qwen3-Next",
    specifics: "Gated DeltaNet in three of four layers, MoE with a gated shared expert",
    defaults,
    target: |b| layers(b)?.target(b),
    prediction: Some(|b| layers(b)?.prediction(b)),
};

fn layers(b: &mut Builder<'_>) -> Result<Layers> {
    let moe = SharedMoe::read(b.config, b.config.flag_or("norm_topk_prob", true)?)?;
    Layers::new(b, true, FeedForwards::Moe(moe))
}

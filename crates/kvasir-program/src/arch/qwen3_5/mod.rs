//! Qwen3.5 (text) and Qwen3-Next: three of four layers are Gated DeltaNet, the others attention
//! with an output gate. Dense, or MoE with a gated shared expert; an MTP layer.

pub(crate) mod dense;
pub(crate) mod layers;
pub(crate) mod metadata;
pub(crate) mod moe;
pub(crate) mod next;

use crate::arch::class::Rename;

/// Hugging Face names of the prediction layer (MTP), and the canonical names.
pub(crate) const MTP_RENAMES: &[Rename] = &[
    Rename { from: "mtp.layers.0.", to: "model.layers.{}." },
    Rename { from: "mtp.fc.", to: "model.layers.{}.eh_proj." },
    Rename { from: "mtp.pre_fc_norm_embedding.", to: "model.layers.{}.enorm." },
    Rename { from: "mtp.pre_fc_norm_hidden.", to: "model.layers.{}.hnorm." },
    Rename { from: "mtp.norm.", to: "model.layers.{}.shared_head.norm." },
];

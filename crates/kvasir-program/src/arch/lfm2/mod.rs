//! LFM2: gated short convolutions and attention layers, dense or with a MoE.

pub(crate) mod dense;
pub(crate) mod layers;
pub(crate) mod metadata;
pub(crate) mod moe;

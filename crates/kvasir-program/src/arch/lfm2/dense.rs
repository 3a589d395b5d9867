//! LFM2 with dense feed-forward blocks.

use crate::arch::Architecture;
use crate::arch::class::Class;
use crate::arch::config_defaults::{fill, is_missing};
use crate::arch::lfm2::layers::{DENSE_NAMES, FeedForwards, target};
use crate::arch::lfm2::metadata::{KINDS, TENSORS, TRANSFORMS, common_defaults};
use crate::blocks::feed_forward::FeedForward;
use crate::gguf::Gguf;
use crate::gguf::heads::HEADS;
use crate::gguf::rule::{Constant, Rule};
use serde_json::{Map, Value as Json};

pub(crate) static LFM2: Architecture = Architecture {
    classes: &[Class::text("Lfm2ForCausalLM", "lfm2")],
    renames: &[],
    config_tensors: &[],
    is_encoder: false,
    gguf: Gguf {
        names: &["lfm2"],
        written: |_| "lfm2",
        claims: |_| true,
        tensors: &[TENSORS],
        transforms: &[TRANSFORMS],
        rules: &[
            HEADS,
            KINDS,
            &[Rule::Implied { config: "block_auto_adjust_ff_dim", value: Constant::Flag(false) }],
        ],
    },
    models: "LFM2",
    specifics: "gated short convolutions",
    defaults,
    target: |b| {
        let dense = FeedForward { names: DENSE_NAMES, ..FeedForward::read(b.config)? };
        target(b, &FeedForwards { dense, moe: None })
    },
    prediction: None,
};

/// With `block_auto_adjust_ff_dim`, the feed-forward width is two thirds of the configured one
/// times a multiplier, rounded up.
fn defaults(config: &mut Map<String, Json>) {
    common_defaults(config);
    let count = |key: &str| config.get(key).and_then(Json::as_u64);
    let Some(width) = count("block_ff_dim").or_else(|| count("intermediate_size")) else { return };
    let is_adjusted = config.get("block_auto_adjust_ff_dim").and_then(Json::as_bool).unwrap_or(true);
    let factor = config.get("block_ffn_dim_multiplier").and_then(Json::as_f64).unwrap_or(1.0);
    let unit = count("block_multiple_of").unwrap_or(256).max(1);
    // Sizes of configs are below 2^24; a larger one is refused when it is read.
    let adjusted = ((width.min(1 << 24) * 2 / 3) as f64 * factor) as u64;
    let width = if is_adjusted { adjusted.div_ceil(unit).saturating_mul(unit) } else { width };
    config.insert("intermediate_size".to_owned(), width.into());
    config.insert("block_auto_adjust_ff_dim".to_owned(), false.into());
    if is_missing(config, "conv_L_cache") {
        fill(config, [("conv_L_cache", 3.into())]);
    }
}

//! Building blocks shared by architectures: GQA attention, MLA, Gated DeltaNet, Kimi Delta
//! Attention, Mamba-2, hyper-connections, feed-forward, MoE, the decoder stack, sliding windows.

pub(crate) mod attention;
pub(crate) mod block_indexer;
pub(crate) mod classifier;
pub(crate) mod decoder;
pub(crate) mod encoder;
pub(crate) mod feed_forward;
pub(crate) mod gated_delta;
pub(crate) mod grouped;
pub(crate) mod hyper_connection;
pub(crate) mod kimi_delta;
pub(crate) mod latent;
pub(crate) mod mamba2;
pub(crate) mod routed;

use crate::builder::config::Config;
use crate::error::Result;

/// The sliding window, for architectures in which all layers have it or none.
pub(crate) fn common_window(config: Config<'_>) -> Result<Option<u32>> {
    Ok(config.opt_size("sliding_window")?.map(|w| w as u32))
}

/// The sliding window per layer: from `layer_types` if present, else where `sliding_by_default` is
/// true.
pub(crate) fn listed_windows(
    config: Config<'_>,
    sliding_by_default: impl Fn(usize) -> bool,
) -> Result<Vec<Option<u32>>> {
    let (layers, window) = (config.number("num_hidden_layers")?, common_window(config)?);
    let kinds = [("full_attention", None), ("sliding_attention", window)];
    let listed = config.by_layer_kind("layer_types", layers, kinds)?;
    let default = || (0..layers).map(|i| window.filter(|_| sliding_by_default(i))).collect();
    Ok(listed.unwrap_or_else(default))
}

/// Qwen's rule: no sliding window unless `use_sliding_window`, and then from layer
/// `max_window_layers` on.
pub(crate) fn qwen_windows(config: Config<'_>) -> Result<Vec<Option<u32>>> {
    let on = config.flag_or("use_sliding_window", false)?;
    let first = config.count("max_window_layers")?;
    listed_windows(config, |layer| on && layer >= first)
}

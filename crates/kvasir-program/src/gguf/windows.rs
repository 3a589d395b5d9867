//! Metadata of layers with and without a sliding window, in a pattern (`layer_types`).

use crate::error::Result;
use crate::gguf::reader::ConfigReader;
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::Value as Json;

/// Sliding windows in all but every n-th layer, or by a list of flags; `EVERY` is n without a key.
pub(crate) fn read_pattern<const EVERY: u64>(r: &mut ConfigReader<'_>) -> Result<()> {
    let pattern = r.file.value("attention.sliding_window_pattern");
    let listed = pattern.as_ref().and_then(Json::as_array).cloned().unwrap_or_default();
    let every = pattern.as_ref().and_then(Json::as_u64).unwrap_or(EVERY);
    let slides = |n: u64| match listed.get(n as usize) {
        Some(flag) => flag.as_bool().unwrap_or(flag.as_u64() != Some(0)),
        None => !(n + 1).is_multiple_of(every),
    };
    let kind = |n| if slides(n) { "sliding_attention" } else { "full_attention" };
    r.set("layer_types", (0..r.blocks()).map(kind).collect::<Vec<_>>());
    Ok(())
}

/// The pattern as a list of flags; without `layer_types`, all but every n-th layer slide.
pub(crate) fn write_pattern<const EVERY: usize>(w: &mut MetadataWriter<'_>) -> Result<()> {
    let flags = match w.config.texts("layer_types")? {
        Some(types) => types.into_iter().map(|kind| kind == "sliding_attention").collect(),
        None => (1..=w.config.number("num_hidden_layers")?).map(|n| !n.is_multiple_of(EVERY)).collect(),
    };
    w.set("attention.sliding_window_pattern", MetadataValue::Flags(flags));
    Ok(())
}

//! Rows of a learned position table that no position uses.

use crate::builder::config::Config;
use crate::error::Result;
use serde_json::Value as Json;

/// Rows of the position table before that of position 0: none in BERT, those up to the padding token's
/// id in RoBERTa.
pub(crate) fn skipped_rows(config: Config<'_>) -> Result<usize> {
    match config.text("model_type")? {
        None | Some("bert") => Ok(0),
        Some(_) if config.get("pad_token_id").is_none() => Ok(2),
        Some(_) => Ok(config.count("pad_token_id")? + 1),
    }
}

/// [`skipped_rows`] of a config in Hugging Face spelling, for converters.
pub fn skipped_positions(config: &Json) -> Result<usize> {
    skipped_rows(Config::new(config))
}

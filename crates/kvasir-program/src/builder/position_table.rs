//! Unused leading rows of a learned position table (RoBERTa).

use crate::builder::config::Config;
use crate::error::Result;
use serde_json::Value as Json;

/// Number of rows of the position table before the row of position 0: none in BERT, `pad_token_id +
/// 1` in RoBERTa, whose default `pad_token_id` is 1.
pub(crate) fn skipped_rows(config: Config<'_>) -> Result<usize> {
    match config.text("model_type")? {
        None | Some("bert") => Ok(0),
        Some(_) if config.get("pad_token_id").is_none() => Ok(2),
        Some(_) => Ok(config.count("pad_token_id")? + 1),
    }
}

/// Number of rows of the position table before the row of position 0, for a Hugging Face config.
pub fn skipped_position_rows(config: &Json) -> Result<usize> {
    skipped_rows(Config::new(config))
}

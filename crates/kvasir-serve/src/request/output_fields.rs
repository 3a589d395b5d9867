//! Parses fields that shape an answer's output and not its sampling, of vLLM's and SGLang's APIs.

use crate::error::ApiError;
use crate::request::reader::Reader;

/// How an answer is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFields {
    /// Leave control tokens out of the text.
    pub skip_special_tokens: bool,
    /// End the text with the stop sequence that ended it.
    pub include_stop: bool,
    /// Return the ids of prompt and answer.
    pub token_ids: bool,
    /// Write tokens of log-probabilities as `token_id:N`.
    pub tokens_as_ids: bool,
    /// Write probabilities after sampling (`post_sampling_probs`) instead of log-probabilities.
    pub probabilities: bool,
    /// Return the reasoning.
    pub include_reasoning: bool,
    /// Separate the reasoning from the content; otherwise it stays there with its marks.
    pub separate_reasoning: bool,
}

impl Default for OutputFields {
    fn default() -> Self {
        Self {
            skip_special_tokens: true,
            include_stop: false,
            token_ids: false,
            tokens_as_ids: false,
            probabilities: false,
            include_reasoning: true,
            separate_reasoning: true,
        }
    }
}

impl OutputFields {
    /// Parses the fields.
    pub fn read(body: &Reader) -> Result<Self, ApiError> {
        Ok(Self {
            skip_special_tokens: body.flag("skip_special_tokens", true)?,
            include_stop: body.flag("include_stop_str_in_output", false)?,
            token_ids: body.flag("return_token_ids", false)?,
            tokens_as_ids: body.flag("return_tokens_as_token_ids", false)?,
            probabilities: body.flag("post_sampling_probs", false)?,
            include_reasoning: body.flag("include_reasoning", true)?,
            separate_reasoning: body.flag("separate_reasoning", true)?,
        })
    }
}

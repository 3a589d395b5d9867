//! Length limits of an answer: their fields, and how they fit the context.
//!
//! A maximum is a bound, not a demand: what the context cannot hold behind the prompt is clamped, so
//! that clients with a generous default get an answer. A minimum is a demand, and refused. With a
//! context shift the context bounds neither.

use crate::error::{ApiError, Overflow};
use crate::request::reader::Reader;

/// Length limits of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length {
    /// Maximum tokens; `None` means up to the context length.
    pub max_tokens: Option<u32>,
    /// Minimum tokens: no stop condition applies before.
    pub min_tokens: u32,
    /// The client's name of the maximum.
    pub field: &'static str,
    /// Treatment of a maximum beyond the context.
    pub overlong: Overlong,
}

/// Treatment of a maximum that exceeds what the context leaves behind the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlong {
    /// Clamp it.
    #[default]
    Clamp,
    /// Reject the request: the client reads the error, and shortens its prompt.
    Refuse,
    /// Reject a prompt that leaves less than the reserved tokens, else clamp.
    Reserve,
}

impl Length {
    /// Parses OpenAI's names of the maximum and llama.cpp's, and `min_tokens`.
    pub(crate) fn read(body: &Reader) -> Result<Self, ApiError> {
        // With `echo`, `max_tokens: 0` is valid.
        let old = if body.flag("echo", false)? && body.integer("max_tokens", 0..=LARGEST_MAXIMUM)? == Some(0)
        {
            Some(0)
        } else {
            max_tokens(body, "max_tokens")?
        };
        // llama.cpp's name; negative without a limit of its own.
        let predicted = body.integer("n_predict", -2..=LARGEST_MAXIMUM)?;
        if predicted == Some(0) {
            return Err(body.error("n_predict", "must not be 0: an answer has at least one token"));
        }
        let predicted = predicted.filter(|n| *n > 0).map(|n| n as u32);
        let new = max_tokens(body, "max_completion_tokens")?;
        let (field, max_tokens) = match (new, old) {
            (Some(_), _) => ("max_completion_tokens", new),
            (None, Some(_)) => ("max_tokens", old),
            (None, None) if predicted.is_some() => ("n_predict", predicted),
            (None, None) => ("max_tokens", None),
        };
        let min_tokens = body.integer("min_tokens", 0..=MAX_TOKENS)?.unwrap_or(0) as u32;
        match max_tokens {
            Some(max) if min_tokens > max => {
                Err(body.error("min_tokens", format!("must not exceed the maximum of {max} tokens")))
            }
            _ => Ok(Self { max_tokens, min_tokens, field, overlong: Overlong::Clamp }),
        }
    }

    /// Maximum of an answer behind `prompt` tokens. `param` is the client's name of the prompt.
    pub(crate) fn fit(&self, param: &str, prompt: u32, context: u32) -> Result<u32, ApiError> {
        let overflow = |param: &str, requested| {
            Err(ApiError::overflow(param, Overflow { prompt, requested, limit: context }))
        };
        let left = context.saturating_sub(prompt);
        match self.overlong {
            Overlong::Reserve if self.reserved(context) > left => {
                overflow(param, Some(self.reserved(context)))
            }
            _ if left == 0 => overflow(param, None),
            Overlong::Refuse if self.max_tokens > Some(left) => overflow(param, self.max_tokens),
            _ if self.min_tokens > left => overflow("min_tokens", Some(self.min_tokens)),
            _ => Ok(self.max_tokens.map_or(left, |most| most.min(left))),
        }
    }

    /// Maximum of an answer behind `prompt` tokens, if the context is shifted when it is full.
    pub(crate) fn fit_shifting(&self, param: &str, prompt: u32, context: u32) -> Result<u32, ApiError> {
        if prompt >= context {
            return Err(ApiError::overflow(param, Overflow { prompt, requested: None, limit: context }));
        }
        let unlimited = context.saturating_mul(UNLIMITED_CONTEXTS).max(self.min_tokens);
        Ok(self.max_tokens.unwrap_or(unlimited))
    }

    /// Tokens reserved for the answer when the server truncates the prompt: the answer's maximum,
    /// at most half of the context, since answers rarely reach their maximum.
    pub(crate) fn reserved(&self, context: u32) -> u32 {
        self.max_tokens.unwrap_or(1).min(context / 2).max(1)
    }
}

/// Context lengths after which an answer without a maximum ends although the context is shifted: a
/// model that never stops must not run forever. Ollama's number.
const UNLIMITED_CONTEXTS: u32 = 10;

/// Upper bound of any token count; the model's context length is checked elsewhere.
pub(crate) const MAX_TOKENS: i64 = 1 << 24;

/// Largest value of a maximum. Clients send very large ones for "no limit".
const LARGEST_MAXIMUM: i64 = u32::MAX as i64;

/// The maximum answer tokens, in the endpoint's field.
pub(crate) fn max_tokens(body: &Reader, field: &str) -> Result<Option<u32>, ApiError> {
    Ok(body.integer(field, 1..=LARGEST_MAXIMUM)?.map(|n| n as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use serde_json::{Value, json};

    fn read(body: Value) -> Length {
        let ignored = IgnoredFields::default();
        Length::read(&Reader::new(body.as_object().unwrap(), &ignored)).unwrap()
    }

    #[test]
    fn the_newest_name_of_the_maximum_counts() {
        let all = json!({"max_completion_tokens": 3, "max_tokens": 4, "n_predict": 5});
        for (body, field, most) in [
            (all, "max_completion_tokens", Some(3)),
            (json!({"max_tokens": 4, "n_predict": 5}), "max_tokens", Some(4)),
            (json!({"n_predict": 2147483647}), "n_predict", Some(i32::MAX as u32)),
            (json!({"n_predict": -1}), "max_tokens", None),
        ] {
            let length = read(body);
            assert_eq!((length.field, length.max_tokens), (field, most));
        }
    }

    #[test]
    fn a_maximum_is_clamped_and_a_minimum_refused() {
        let length = read(json!({"max_tokens": 900, "min_tokens": 50}));
        assert_eq!(
            [100, 850, 950].map(|prompt| length.fit("p", prompt, 1000).ok()),
            [Some(900), Some(150), Some(50)]
        );
        let error = |length: Length, prompt| length.fit("p", prompt, 1000).unwrap_err().param.unwrap();
        assert_eq!(error(length, 951), "min_tokens");
        assert_eq!([1000, 1001].map(|prompt| error(length, prompt)), ["p", "p"]);
        let refusing = Length { overlong: Overlong::Refuse, ..length };
        assert_eq!(refusing.fit("p", 100, 1000).ok(), Some(900));
        assert_eq!(error(refusing, 101), "p", "the field that the client can shorten");
    }

    #[test]
    fn at_most_half_of_the_context_is_reserved() {
        let length = |most| Length { overlong: Overlong::Reserve, ..read(json!({"max_tokens": most})) };
        let fits = |most, prompt| length(most).fit("p", prompt, 1000).ok();
        assert_eq!([fits(300, 700), fits(300, 701)], [Some(300), None]);
        assert_eq!([fits(900, 500), fits(900, 501)], [Some(500), None]);
    }
}

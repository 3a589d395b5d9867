//! llama.cpp's samplers as options of `chat`, `run` and `generate`. Their values become fields of a
//! request, whose parser checks them.

use crate::io::failure::Failure;
use clap::builder::NonEmptyStringValueParser;
use kvasir_formats::Tokenizer;
use kvasir_sample::{Sampler, SamplerChain, Sampling};
use kvasir_serve::{
    ApiError,
    request::{IgnoredFields, Reader, SamplerFields, UnknownFields},
};
use serde_json::{Map, Value, json};

/// Options of llama.cpp's samplers, beside temperature, top-k, top-p, min-p and penalties.
#[derive(clap::Args)]
pub(crate) struct SamplerArgs {
    /// Order of the samplers: names separated by commas or semicolons, or llama.cpp's letters (edskypmxt) [default: penalties, dry, temperature, top_n_sigma, top_k, typ_p, top_p, min_p, xtc]
    #[arg(long, value_name = "LIST")]
    samplers: Option<String>,
    /// Locally typical sampling: cumulative probability that is kept; 1 keeps all tokens
    #[arg(long, value_name = "P")]
    typical_p: Option<f64>,
    /// Keep tokens within N standard deviations of the largest logit; 0 keeps all
    #[arg(long, value_name = "N")]
    top_n_sigma: Option<f64>,
    /// Probability of applying XTC, which excludes all tokens above its threshold but the least likely of them
    #[arg(long, value_name = "P")]
    xtc_probability: Option<f64>,
    /// Minimum probability of a token that XTC may exclude; above 0.5 turns it off
    #[arg(long, value_name = "P")]
    xtc_threshold: Option<f64>,
    /// Dynamic temperature: maximum change of the temperature by the entropy, up and down
    #[arg(long, value_name = "RANGE")]
    dynatemp_range: Option<f64>,
    /// Exponent of the entropy in the dynamic temperature
    #[arg(long, value_name = "X")]
    dynatemp_exponent: Option<f64>,
    /// Number of newest tokens that the penalties count; 0 turns them off, -1 is the whole context
    #[arg(long, value_name = "N")]
    repeat_last_n: Option<i64>,
    /// Scale of the DRY penalty on repeated sequences; 0 turns it off
    #[arg(long, value_name = "X")]
    dry_multiplier: Option<f64>,
    /// Base of the DRY penalty, which grows exponentially with the repeated length
    #[arg(long, value_name = "X")]
    dry_base: Option<f64>,
    /// Length of a repetition that DRY does not penalize, in tokens
    #[arg(long, value_name = "N")]
    dry_allowed_length: Option<i64>,
    /// Number of newest tokens that DRY searches for repetitions; -1 is the whole context
    #[arg(long, value_name = "N")]
    dry_penalty_last_n: Option<i64>,
    /// Text that interrupts a repetition for DRY; may be repeated [default: line feed, colon, quotation mark, asterisk]
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    dry_sequence_breaker: Vec<String>,
    /// Mirostat 1 or 2, which replaces all samplers but the temperature; 0 turns it off
    #[arg(long, value_name = "VERSION")]
    mirostat: Option<i64>,
    /// Target surprise of Mirostat in bits
    #[arg(long, value_name = "BITS")]
    mirostat_tau: Option<f64>,
    /// Learning rate of Mirostat
    #[arg(long, value_name = "RATE")]
    mirostat_eta: Option<f64>,
    /// Minimum number of tokens that top-p, min-p, typical-p and XTC keep
    #[arg(long, value_name = "N")]
    min_keep: Option<i64>,
}

impl SamplerArgs {
    /// The options as fields of a request body; unset ones are absent.
    pub(crate) fn fields(&self) -> Map<String, Value> {
        let breakers = Some(&self.dry_sequence_breaker).filter(|texts| !texts.is_empty());
        let fields = [
            ("samplers", self.samplers.as_deref().map(order)),
            ("typical_p", self.typical_p.map(Value::from)),
            ("top_n_sigma", self.top_n_sigma.map(Value::from)),
            ("xtc_probability", self.xtc_probability.map(Value::from)),
            ("xtc_threshold", self.xtc_threshold.map(Value::from)),
            ("dynatemp_range", self.dynatemp_range.map(Value::from)),
            ("dynatemp_exponent", self.dynatemp_exponent.map(Value::from)),
            ("repeat_last_n", self.repeat_last_n.map(Value::from)),
            ("dry_multiplier", self.dry_multiplier.map(Value::from)),
            ("dry_base", self.dry_base.map(Value::from)),
            ("dry_allowed_length", self.dry_allowed_length.map(Value::from)),
            ("dry_penalty_last_n", self.dry_penalty_last_n.map(Value::from)),
            ("dry_sequence_breakers", breakers.map(|texts| json!(texts))),
            ("mirostat", self.mirostat.map(Value::from)),
            ("mirostat_tau", self.mirostat_tau.map(Value::from)),
            ("mirostat_eta", self.mirostat_eta.map(Value::from)),
            ("min_keep", self.min_keep.map(Value::from)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Validates the options; `sampling` holds the other parameters. `None` if no sampler is on.
    /// Errors name the option.
    pub(crate) fn read(&self, sampling: &Sampling) -> Result<Option<SamplerFields>, Failure> {
        let (fields, ignored) = (self.fields(), IgnoredFields::default().with_rule(UnknownFields::Refuse));
        SamplerFields::read(&Reader::new(&fields, &ignored), sampling).map_err(|error| refused(&error))
    }

    /// The sampler chain with the tokens of its sequence breakers; `None` if no sampler is on.
    pub(crate) fn chain(
        &self,
        sampling: &Sampling,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Option<SamplerChain>, Failure> {
        let Some(samplers) = self.read(sampling)? else { return Ok(None) };
        match tokenizer {
            Some(tokenizer) => samplers.resolve(tokenizer).map(Some).map_err(|error| refused(&error)),
            None if samplers.chain.dry.is_some() && !self.dry_sequence_breaker.is_empty() => {
                Err(Failure::usage("--dry-sequence-breaker needs a model with a tokenizer"))
            }
            None => Ok(Some(samplers.chain)),
        }
    }
}

/// Turns an error about a field into one about its option.
fn refused(error: &ApiError) -> Failure {
    let field = error.param.as_deref().unwrap_or_default();
    let option = match field {
        "dry_sequence_breakers" => "--dry-sequence-breaker".to_owned(),
        field => format!("--{}", field.replace('_', "-")),
    };
    Failure::usage(error.message.replace(&format!("`{field}`"), &option))
}

/// The value of the field `samplers`: a list of names, or letters unchanged.
fn order(text: &str) -> Value {
    let is_list = text.contains([',', ';']) || Sampler::named(text).is_some();
    if is_list { text.split([',', ';']).map(str::trim).collect() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_names_or_letters() {
        assert_eq!(order("top_k;temperature"), json!(["top_k", "temperature"]));
        assert_eq!(order("top_k, xtc"), json!(["top_k", "xtc"]));
        assert_eq!(order("xtc"), json!(["xtc"]));
        assert_eq!(order("kt"), json!("kt"));
    }

    #[test]
    fn errors_name_the_option() {
        let error = refused(&ApiError::param("typical_p", "`typical_p` must be a number from 0 to 1"));
        assert!(error.to_string().contains("--typical-p must be a number"), "{error}");
    }
}

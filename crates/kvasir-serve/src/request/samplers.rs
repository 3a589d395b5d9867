//! Parses llama.cpp's samplers (typical-p, top-n-sigma, XTC, DRY, dynamic temperature, Mirostat) and
//! their order.
//!
//! A request that turns none of them on and names no order has no chain: the default processors
//! sample it.

use crate::error::ApiError;
use crate::request::reader::Reader;
use kvasir_formats::Tokenizer;
use kvasir_sample::{Breakers, Dry, Mirostat, MirostatVersion, Sampler, SamplerChain, Sampling};
use serde_json::Value;

/// Maximum samplers of an order, each once.
const MAX_SAMPLERS: usize = 9;
/// Maximum number of sequence breakers.
const MAX_BREAKERS: usize = 16;
/// Maximum tokens that contain a sequence breaker or end in the beginning of one.
const MAX_BREAKER_TOKENS: usize = 1 << 16;
/// Maximum bytes of a sequence breaker, which is truncated to them as in llama.cpp.
const MAX_BREAKER_BYTES: usize = 40;
const BREAKERS_FIELD: &str = "dry_sequence_breakers";
/// Default sequence breakers, as in llama.cpp.
const DEFAULT_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// llama.cpp's samplers of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplerFields {
    /// The chain, without the tokens of its sequence breakers.
    pub chain: SamplerChain,
    /// Whether the request names the order.
    pub is_ordered: bool,
    /// DRY's sequence breakers, which interrupt a repetition; empty without DRY.
    pub breakers: Vec<String>,
}

impl SamplerFields {
    /// Parses and validates the fields. `sampling` holds the other parameters.
    pub fn read(body: &Reader, sampling: &Sampling) -> Result<Option<Self>, ApiError> {
        let mut chain = SamplerChain::default();
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut chain.typical_p, body.number("typical_p", 0.0..=1.0)?);
        set(&mut chain.top_n_sigma, body.number("top_n_sigma", -1e6..=1e6)?);
        set(&mut chain.xtc_probability, body.number("xtc_probability", 0.0..=1.0)?);
        set(&mut chain.xtc_threshold, body.number("xtc_threshold", 0.0..=1.0)?);
        set(&mut chain.dynatemp_range, body.number("dynatemp_range", 0.0..=100.0)?);
        set(&mut chain.dynatemp_exponent, body.number("dynatemp_exponent", 0.0..=100.0)?);
        chain.min_keep = body.integer("min_keep", 0..=i64::from(i32::MAX))?.map_or(0, |n| n as u32);
        chain.penalty_last_n = last_n(body, "repeat_last_n")?;
        let (dry, breakers) = dry(body)?;
        chain.dry = dry;
        chain.mirostat = mirostat(body)?;
        let order = order(body)?;
        let is_ordered = order.is_some();
        chain.order = order.unwrap_or(chain.order);
        let has_penalties = sampling.repetition_penalty != 1.0
            || sampling.presence_penalty != 0.0
            || sampling.frequency_penalty != 0.0;
        let is_on = is_ordered
            || chain.typical_p < 1.0
            || chain.top_n_sigma > 0.0
            || chain.xtc_probability > 0.0 && chain.xtc_threshold <= 0.5
            || chain.dynatemp_range > 0.0
            || chain.min_keep > 1
            || chain.penalty_last_n.is_some() && has_penalties
            || chain.dry.is_some()
            || chain.mirostat.is_some();
        Ok(is_on.then_some(Self { chain, is_ordered, breakers }))
    }

    /// The chain with the tokens of its sequence breakers. Scans the whole vocabulary if it has
    /// any.
    pub fn resolve(&self, tokenizer: &Tokenizer) -> Result<SamplerChain, ApiError> {
        let mut chain = self.chain.clone();
        if let Some(dry) = &mut chain.dry {
            dry.breakers = self.breaker_tokens(tokenizer)?;
        }
        Ok(chain)
    }

    /// The tokens of the sequence breakers.
    pub fn breaker_tokens(&self, tokenizer: &Tokenizer) -> Result<Breakers, ApiError> {
        let texts: Vec<&str> = self.breakers.iter().map(String::as_str).collect();
        let refused = |why: String| ApiError::param(BREAKERS_FIELD, format!("`{BREAKERS_FIELD}` {why}"));
        let overlaps = tokenizer.overlaps(&texts, MAX_BREAKER_TOKENS).map_err(|e| refused(e.to_string()))?;
        let overlaps = overlaps.ok_or_else(|| {
            refused(format!("begin in more than {MAX_BREAKER_TOKENS} tokens; send rarer texts"))
        })?;
        Ok(Breakers::new(overlaps.heads, overlaps.tails))
    }
}

/// A window of the newest tokens; −1 is the whole context.
fn last_n(body: &Reader, field: &str) -> Result<Option<u32>, ApiError> {
    let tokens = body.integer(field, -1..=i64::from(i32::MAX))?;
    Ok(tokens.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
}

/// DRY, if it is on, with its sequence breakers.
fn dry(body: &Reader) -> Result<(Option<Dry>, Vec<String>), ApiError> {
    let default = Dry::default();
    let length = body.integer("dry_allowed_length", 0..=i64::from(i32::MAX))?;
    // llama.cpp replaces a base below 1, too.
    let base = body.number("dry_base", 0.0..=1000.0)?.filter(|base| *base >= 1.0);
    let dry = Dry {
        multiplier: body.number("dry_multiplier", 0.0..=1000.0)?.unwrap_or(default.multiplier),
        base: base.unwrap_or(default.base),
        allowed_length: length.map_or(default.allowed_length, |n| n as u32),
        last_n: last_n(body, "dry_penalty_last_n")?.unwrap_or(default.last_n),
        breakers: Breakers::default(),
    };
    let breakers = breakers(body)?;
    let is_on = dry.multiplier > 0.0 && dry.last_n > 0;
    Ok(if is_on { (Some(dry), breakers) } else { (None, Vec::new()) })
}

fn breakers(body: &Reader) -> Result<Vec<String>, ApiError> {
    let field = BREAKERS_FIELD;
    let Some(items) = body.list(field, MAX_BREAKERS)? else {
        return Ok(DEFAULT_BREAKERS.map(str::to_owned).to_vec());
    };
    if items.is_empty() {
        return Err(body.error(field, "must be a non-empty array of strings"));
    }
    let one = |item: &Value| {
        let text = item.as_str().filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| body.error(field, "must hold texts that are not empty"))?;
        Ok(text[..text.floor_char_boundary(MAX_BREAKER_BYTES)].to_owned())
    };
    items.iter().map(one).collect()
}

fn mirostat(body: &Reader) -> Result<Option<Mirostat>, ApiError> {
    let default = Mirostat::default();
    let tau = body.number("mirostat_tau", 0.0..=1000.0)?.unwrap_or(default.tau);
    let eta = body.number("mirostat_eta", 0.0..=1000.0)?.unwrap_or(default.eta);
    let version = match body.integer("mirostat", 0..=2)? {
        Some(1) => MirostatVersion::V1,
        Some(2) => MirostatVersion::V2,
        _ => return Ok(None),
    };
    Ok(Some(Mirostat { version, tau, eta }))
}

/// `samplers`: a list of names, or a text of letters.
fn order(body: &Reader) -> Result<Option<Vec<Sampler>>, ApiError> {
    let field = "samplers";
    let known = || {
        let names: Vec<&str> = Sampler::llama_cpp_order().iter().map(|sampler| sampler.name()).collect();
        format!("must hold samplers of {}", names.join(", "))
    };
    if let Some(Value::String(letters)) = body.get(field) {
        let letters: Vec<char> = letters.chars().take(MAX_SAMPLERS + 1).collect();
        let one = |letter: char| {
            let why = || format!("has the letter `{letter}`; it {}, as letters of edskypmxt", known());
            Sampler::of_letter(letter).ok_or_else(|| body.error(field, why()))
        };
        let order: Vec<Sampler> = letters.into_iter().map(one).collect::<Result<_, _>>()?;
        return once_each(body, field, order).map(Some);
    }
    let Some(items) = body.list(field, MAX_SAMPLERS)? else { return Ok(None) };
    let one = |item: &Value| item.as_str().and_then(Sampler::named).ok_or_else(|| body.error(field, known()));
    let order: Vec<Sampler> = items.iter().map(one).collect::<Result<_, _>>()?;
    once_each(body, field, order).map(Some)
}

/// Refuses an order that repeats a sampler: each costs time at every token.
fn once_each(body: &Reader, field: &str, order: Vec<Sampler>) -> Result<Vec<Sampler>, ApiError> {
    let repeated = order.iter().enumerate().find(|(i, sampler)| order[..*i].contains(sampler));
    match repeated {
        Some((_, sampler)) => Err(body.error(field, format!("has `{}` twice", sampler.name()))),
        None => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use serde_json::json;

    fn read(body: Value) -> Result<Option<SamplerFields>, ApiError> {
        let penalized = Sampling { repetition_penalty: 1.1, ..Sampling::default() };
        SamplerFields::read(&Reader::new(body.as_object().unwrap(), &IgnoredFields::default()), &penalized)
    }

    fn chain(body: Value) -> SamplerChain {
        read(body).unwrap().unwrap().chain
    }

    #[test]
    fn values_that_turn_a_sampler_off_are_no_chain() {
        let neutral = json!({
            "typical_p": 1.0, "top_n_sigma": -1, "xtc_probability": 0, "xtc_threshold": 0.1, "min_keep": 0,
            "dynatemp_range": 0, "dynatemp_exponent": 1, "dry_multiplier": 0, "dry_base": 1.75,
            "dry_allowed_length": 2, "dry_penalty_last_n": -1, "mirostat": 0, "mirostat_tau": 5,
            "mirostat_eta": 0.1, "dry_sequence_breakers": ["\n"],
        });
        assert_eq!(read(neutral), Ok(None));
        assert_eq!(read(json!({"xtc_probability": 1, "xtc_threshold": 0.6})), Ok(None));
        assert_eq!(read(json!({"dry_multiplier": 1, "dry_penalty_last_n": 0})), Ok(None));
        for on in [
            json!({"typical_p": 0.5}),
            json!({"top_n_sigma": 1}),
            json!({"xtc_probability": 0.5}),
            json!({"dynatemp_range": 0.5}),
            json!({"min_keep": 3}),
            json!({"repeat_last_n": 64}),
            json!({"dry_multiplier": 0.8}),
            json!({"mirostat": 1}),
            json!({"samplers": []}),
        ] {
            assert!(read(on.clone()).unwrap().is_some(), "{on}");
        }
    }

    #[test]
    fn parameters_reach_their_samplers() {
        let dry = chain(json!({"dry_multiplier": 0.8, "dry_base": 0.5, "dry_penalty_last_n": -1})).dry;
        let dry = dry.unwrap();
        assert_eq!((dry.base, dry.last_n, dry.allowed_length), (1.75, u32::MAX, 2));
        let mirostat = chain(json!({"mirostat": 1, "mirostat_tau": 3})).mirostat.unwrap();
        assert_eq!(mirostat, Mirostat { version: MirostatVersion::V1, tau: 3.0, eta: 0.1 });
        assert_eq!(chain(json!({"repeat_last_n": 0})).penalty_last_n, Some(0));
        let fields = read(json!({"dry_multiplier": 1})).unwrap().unwrap();
        assert_eq!(fields.breakers, DEFAULT_BREAKERS);
        let long = json!({"dry_multiplier": 1, "dry_sequence_breakers": ["é".repeat(30)]});
        assert_eq!(read(long).unwrap().unwrap().breakers, ["é".repeat(20)]);
    }

    #[test]
    fn an_order_is_a_list_of_names_or_a_text_of_letters() {
        let expected = vec![Sampler::TopK, Sampler::Temperature, Sampler::TypicalP];
        assert_eq!(chain(json!({"samplers": ["top-k", "temperature", "typ_p"]})).order, expected);
        assert_eq!(chain(json!({"samplers": "kty"})).order, expected);
        assert_eq!(chain(json!({"min_keep": 2})).order, Sampler::temperature_first());
        assert!(!read(json!({"min_keep": 2})).unwrap().unwrap().is_ordered);
    }

    #[test]
    fn hostile_values_are_refused_by_name() {
        for (field, value) in [
            ("typical_p", json!(1.1)),
            ("typical_p", json!(null)),
            ("top_n_sigma", json!("x")),
            ("xtc_threshold", json!(-1)),
            ("dynatemp_range", json!(1e300)),
            ("dry_multiplier", json!(-1)),
            ("dry_allowed_length", json!(-1)),
            ("dry_penalty_last_n", json!(-2)),
            ("dry_sequence_breakers", json!([])),
            ("dry_sequence_breakers", json!("\n")),
            ("dry_sequence_breakers", json!([""])),
            ("dry_sequence_breakers", json!(vec!["a"; 17])),
            ("mirostat", json!(3)),
            ("mirostat_tau", json!(-1)),
            ("min_keep", json!(1.5)),
            ("repeat_last_n", json!(1e12)),
            ("samplers", json!("kz")),
            ("samplers", json!("k".repeat(1000))),
            ("samplers", json!(["top_k", "temperature", "topk"])),
            ("samplers", json!(["infill"])),
            ("samplers", json!({"k": 1})),
        ] {
            match read(json!({field: value})) {
                Err(error) => {
                    assert_eq!((error.status, error.param.as_deref()), (400, Some(field)), "{value}")
                }
                Ok(fields) => assert!(value.is_null() && fields.is_none(), "{field}: {value}"),
            }
        }
    }
}

//! llama.cpp's sampler chain: logits processors that a request names, in the order that it names
//! them.
//!
//! A request without a chain has the processors of [`draw`](fn@crate::draw), whose order is fixed.
//! With Mirostat, only temperature and Mirostat apply, as in llama.cpp. Token mask, logit bias and
//! suppressed ids always come first.

use crate::dry::Dry;
use crate::mirostat::Mirostat;
use serde::{Deserialize, Serialize};

/// A sampler of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// DRY: penalizes repeated token sequences.
    Dry,
    /// Top-n-sigma: truncates by the standard deviation of the logits.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Locally typical sampling.
    TypicalP,
    /// Top-p.
    TopP,
    /// Min-p.
    MinP,
    /// XTC: excludes top choices at random.
    Xtc,
    /// Fixed or dynamic temperature.
    Temperature,
}

/// All samplers with llama.cpp's name and letter, in its default order.
const SAMPLERS: [(Sampler, &str, char); 9] = [
    (Sampler::Penalties, "penalties", 'e'),
    (Sampler::Dry, "dry", 'd'),
    (Sampler::TopNSigma, "top_n_sigma", 's'),
    (Sampler::TopK, "top_k", 'k'),
    (Sampler::TypicalP, "typ_p", 'y'),
    (Sampler::TopP, "top_p", 'p'),
    (Sampler::MinP, "min_p", 'm'),
    (Sampler::Xtc, "xtc", 'x'),
    (Sampler::Temperature, "temperature", 't'),
];

impl Sampler {
    /// llama.cpp's default order, with the temperature last.
    pub fn llama_cpp_order() -> Vec<Self> {
        SAMPLERS.iter().map(|(sampler, ..)| *sampler).collect()
    }

    /// The order of requests without a chain, with the temperature before the truncations.
    pub fn temperature_first() -> Vec<Self> {
        let mut order = Self::llama_cpp_order();
        order.pop();
        order.insert(2, Self::Temperature);
        order
    }

    /// The sampler with this name or alias of llama.cpp: `top_k`, `top-k`, `topk`, `nucleus`,
    /// `temp`, `typ`.
    pub fn named(name: &str) -> Option<Self> {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '-'], "");
        let name = match plain(name).as_str() {
            "nucleus" => "topp".to_owned(),
            "temp" => "temperature".to_owned(),
            "typ" | "typicalp" => "typp".to_owned(),
            other => other.to_owned(),
        };
        SAMPLERS.iter().find(|(_, known, _)| plain(known) == name).map(|(sampler, ..)| *sampler)
    }

    /// The sampler with this letter in llama.cpp's `--sampling-seq`.
    pub fn of_letter(letter: char) -> Option<Self> {
        SAMPLERS.iter().find(|(.., known)| *known == letter).map(|(sampler, ..)| *sampler)
    }

    /// Its name in llama.cpp.
    pub fn name(self) -> &'static str {
        SAMPLERS.iter().find(|(sampler, ..)| *sampler == self).map_or("", |(_, name, _)| name)
    }
}

/// The order of llama.cpp's samplers, and their parameters that are not in
/// [`Sampling`](crate::Sampling).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerChain {
    /// The samplers that apply, in this order.
    pub order: Vec<Sampler>,
    /// Minimum number of candidates that top-p, min-p, typical-p and XTC keep.
    pub min_keep: u32,
    /// Number of newest tokens of prompt and output that all penalties apply to. With `None`, the
    /// repetition penalty applies to prompt and output, the others to the output, as without a
    /// chain.
    pub penalty_last_n: Option<u32>,
    /// Probability mass that locally typical sampling keeps; 1 turns it off.
    pub typical_p: f32,
    /// Distance from the largest logit that top-n-sigma keeps, in standard deviations; at most 0
    /// turns it off.
    pub top_n_sigma: f32,
    /// Probability with which XTC applies at a token.
    pub xtc_probability: f32,
    /// Minimum probability of a top choice for XTC; above 0.5 turns it off.
    pub xtc_threshold: f32,
    /// Largest deviation of the dynamic temperature from the temperature; 0 turns it off.
    pub dynatemp_range: f32,
    /// Exponent of the normalized entropy in the dynamic temperature.
    pub dynatemp_exponent: f32,
    /// Parameters of DRY; `None` turns it off.
    pub dry: Option<Dry>,
    /// Mirostat, which replaces all samplers but the temperature.
    pub mirostat: Option<Mirostat>,
}

impl Default for SamplerChain {
    fn default() -> Self {
        Self {
            order: Sampler::temperature_first(),
            min_keep: 0,
            penalty_last_n: None,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            dry: None,
            mirostat: None,
        }
    }
}

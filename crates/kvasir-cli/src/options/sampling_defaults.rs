//! Default sampling parameters of `kvasir serve`, for requests that leave them out. They replace those of
//! the model's generation config.

use kvasir_sample::Sampling;

/// Options for default sampling parameters; unset ones keep the model's.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct SamplingDefaults {
    /// Default temperature of requests; 0 is greedy [default: the model's]
    #[arg(long, env = "KVASIR_TEMPERATURE", value_name = "T", value_parser = |text: &str| number(text, 0.0, 100.0))]
    temperature: Option<f32>,
    /// Default top-k of requests; 0 keeps all tokens [default: the model's]
    #[arg(long, env = "KVASIR_TOP_K", value_name = "K")]
    top_k: Option<u32>,
    /// Default top-p of requests: cumulative probability that is kept; 0 keeps the most likely token [default: the model's]
    #[arg(long, env = "KVASIR_TOP_P", value_name = "P", value_parser = |text: &str| number(text, 0.0, 1.0))]
    top_p: Option<f32>,
    /// Default min-p of requests: minimum probability, relative to the most likely token [default: the model's]
    #[arg(long, env = "KVASIR_MIN_P", value_name = "P", value_parser = |text: &str| number(text, 0.0, 1.0))]
    min_p: Option<f32>,
    /// Default repetition penalty of requests; 1 turns it off [default: the model's]
    #[arg(long, env = "KVASIR_REPETITION_PENALTY", value_name = "X", value_parser = |text: &str| number(text, 0.01, 100.0))]
    repetition_penalty: Option<f32>,
    /// Default presence penalty of requests [default: the model's]
    #[arg(long, env = "KVASIR_PRESENCE_PENALTY", value_name = "X", value_parser = |text: &str| number(text, -2.0, 2.0))]
    presence_penalty: Option<f32>,
    /// Default frequency penalty of requests [default: the model's]
    #[arg(long, env = "KVASIR_FREQUENCY_PENALTY", value_name = "X", value_parser = |text: &str| number(text, -2.0, 2.0))]
    frequency_penalty: Option<f32>,
    /// Seed of requests that name none [default: a new one for every request]
    #[arg(long, env = "KVASIR_SEED", value_name = "N")]
    seed: Option<u64>,
}

impl SamplingDefaults {
    /// The model's parameters, replaced by those that are set.
    pub(crate) fn applied_to(&self, model: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(model.temperature),
            top_k: self.top_k.unwrap_or(model.top_k),
            top_p: self.top_p.unwrap_or(model.top_p),
            min_p: self.min_p.unwrap_or(model.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(model.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(model.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(model.frequency_penalty),
            ..model
        }
    }

    /// Default seed; `None` gives every request a new one.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }
}

fn number(text: &str, low: f32, high: f32) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| format!("must be a number from {low} to {high}"))
}

//! Parses sampling parameters shared by all generation endpoints: temperature, top-p, top-k,
//! penalties, stop, seed, logit bias, logprobs.

use crate::error::ApiError;
use crate::request::length::{Length, MAX_TOKENS};
use crate::request::output_fields::OutputFields;
use crate::request::reader::Reader;
use crate::request::samplers::SamplerFields;
use crate::request::speculation::SpeculationFields;
use kvasir_chat::StopRegex;
use kvasir_engine::Params;
use kvasir_sample::Sampling;

/// Maximum temperature. OpenAI's API allows up to 2, llama.cpp any.
const MAX_TEMPERATURE: f64 = 100.0;
/// Maximum repetition penalty.
const MAX_REPETITION_PENALTY: f64 = 100.0;
/// Maximum log-probabilities per token.
const MAX_TOP_LOGPROBS: i64 = 20;
/// Maximum choices per prompt.
const MAX_N: i64 = 128;
/// Maximum number of stop sequences, and bytes per stop sequence.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 256;
/// Maximum entries of `logit_bias`.
const MAX_BIAS: usize = 1024;
/// Maximum number of `bad_words`.
const MAX_BAD_WORDS: usize = 128;
/// Maximum ids in `stop_token_ids`.
const MAX_STOP_IDS: usize = 128;

/// Parameters common to all generation endpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingFields {
    /// Sampling parameters; unset ones keep the defaults.
    pub sampling: Sampling,
    /// llama.cpp's samplers, if any is on.
    pub samplers: Option<SamplerFields>,
    /// Whether prefill progress is reported (`return_progress`).
    pub prompt_progress: bool,
    /// Requested seed; without one, each request gets its own.
    pub seed: Option<u64>,
    /// Length limits.
    pub length: Length,
    /// Context shift: prompt tokens to keep. None ends the answer where the context is full.
    pub context_shift: Option<u32>,
    /// Number of choices per prompt.
    pub n: u32,
    /// Stop sequences, excluded from the answer.
    pub stop: Vec<String>,
    /// Regular expressions behind whose match the answer ends.
    pub stop_regex: Vec<String>,
    /// Stop token ids.
    pub stop_token_ids: Vec<u32>,
    /// Ignore end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Logit bias by token id.
    pub bias: Vec<(u32, f32)>,
    /// Scheduling priority; larger runs first under `--order priority`.
    pub priority: i32,
    /// Number of log-probabilities per prompt token.
    pub prompt_logprobs: Option<u32>,
    /// Isolates its prefix cache entries from other requests'.
    pub cache_salt: Option<String>,
    /// Number of the slot that records the request (`id_slot`); `None` lets the server choose.
    pub slot: Option<u32>,
    /// The only ids that may be sampled; empty allows all.
    pub allowed_token_ids: Vec<u32>,
    /// Texts whose token sequences are never generated.
    pub bad_words: Vec<String>,
    /// Keep only this many tokens at the prompt's end; -1 keeps as many as fit.
    pub truncate_prompt: Option<i32>,
    /// Speculative decoding.
    pub speculation: SpeculationFields,
    /// How the answer is written.
    pub output: OutputFields,
}

impl SamplingFields {
    /// Parses the parameters. `defaults` come from the model's generation config; `vocab` bounds
    /// token ids.
    pub fn read(body: &Reader, defaults: &Sampling, vocab: u32) -> Result<Self, ApiError> {
        let mut sampling = *defaults;
        let set = |target: &mut f32, value: Option<f32>| *target = value.unwrap_or(*target);
        set(&mut sampling.temperature, body.number("temperature", 0.0..=MAX_TEMPERATURE)?);
        set(&mut sampling.top_p, body.number("top_p", 0.0..=1.0)?);
        set(&mut sampling.min_p, body.number("min_p", 0.0..=1.0)?);
        set(&mut sampling.presence_penalty, body.number("presence_penalty", -2.0..=2.0)?);
        set(&mut sampling.frequency_penalty, body.number("frequency_penalty", -2.0..=2.0)?);
        // `repetition_penalty` replaces `repeat_penalty`, llama.cpp's name.
        for field in ["repeat_penalty", "repetition_penalty"] {
            set(&mut sampling.repetition_penalty, body.number(field, 0.0..=MAX_REPETITION_PENALTY)?);
            if sampling.repetition_penalty <= 0.0 {
                return Err(body.error(field, "must be greater than 0"));
            }
        }
        sampling.processed_logprobs = body.flag("post_sampling_probs", false)?;
        if let Some(k) = body.integer("top_k", -1..=i64::from(vocab))? {
            sampling.top_k = k.max(0) as u32;
        }
        let seed = body.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64);
        sampling.seed = seed.unwrap_or(sampling.seed);
        Ok(Self {
            samplers: SamplerFields::read(body, &sampling)?,
            prompt_progress: body.flag("return_progress", false)?,
            sampling,
            seed,
            length: Length::read(body)?,
            context_shift: None,
            n: body.integer("n", 1..=MAX_N)?.map_or(1, |n| n as u32),
            stop: stops(body, "stop")?,
            stop_regex: stop_regex(body)?,
            stop_token_ids: token_ids(body, "stop_token_ids", MAX_STOP_IDS, vocab)?,
            ignore_eos: body.flag("ignore_eos", false)?,
            bias: bias(body, vocab)?,
            priority: body
                .integer("priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?
                .map_or(0, |p| p as i32),
            prompt_logprobs: prompt_logprobs(body)?,
            cache_salt: body.text("cache_salt")?.map(str::to_owned),
            slot: body.integer("id_slot", -1..=i64::from(i32::MAX))?.and_then(|slot| slot.try_into().ok()),
            allowed_token_ids: allowed_token_ids(body, vocab)?,
            bad_words: bad_words(body)?,
            truncate_prompt: truncate_prompt(body)?,
            speculation: SpeculationFields::read(body)?,
            output: OutputFields::read(body)?,
        })
    }
}

impl SamplingFields {
    /// Engine parameters, with at most `max_tokens` output tokens.
    pub fn params(&self, max_tokens: u32) -> Params {
        Params {
            max_tokens,
            min_tokens: self.length.min_tokens,
            ignore_eos: self.ignore_eos,
            stop_ids: self.stop_token_ids.clone(),
            priority: self.priority,
            sampling: Sampling { prompt_logprobs: self.prompt_logprobs, ..self.sampling },
            bias: self.bias.clone(),
            max_drafts: self.speculation.max_tokens,
            prompt_progress: self.prompt_progress,
            ..Params::default()
        }
    }
}

/// `truncate_prompt_tokens`: how many to keep; -1 keeps what fits.
fn truncate_prompt(body: &Reader) -> Result<Option<i32>, ApiError> {
    match body.integer("truncate_prompt_tokens", -1..=MAX_TOKENS)? {
        Some(0) => Err(body.error("truncate_prompt_tokens", "must be -1 or at least 1")),
        kept => Ok(kept.map(|n| n as i32)),
    }
}

/// `prompt_logprobs`: not with streaming or `n > 1`.
fn prompt_logprobs(body: &Reader) -> Result<Option<u32>, ApiError> {
    let count = body.integer("prompt_logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|count| count as u32);
    match count {
        Some(_) => whole_prompt_scores(body).map(|()| count),
        None => Ok(None),
    }
}

/// Rejects streaming and `n > 1` with prompt log-probabilities.
pub(crate) fn whole_prompt_scores(body: &Reader) -> Result<(), ApiError> {
    let why = "does not go with log-probabilities of the prompt";
    if body.flag("stream", false)? {
        return Err(body.error("stream", why));
    }
    match body.integer("n", 1..=MAX_N)? {
        Some(2..) => Err(body.error("n", why)),
        _ => Ok(()),
    }
}

/// `logprobs` (a flag in chats) with `top_logprobs`.
pub(crate) fn chat_logprobs(body: &Reader) -> Result<Option<u32>, ApiError> {
    let top = top_logprobs(body)?;
    match (body.flag("logprobs", false)?, top) {
        (false, Some(1..)) => Err(body.error("top_logprobs", "needs `logprobs` to be true")),
        (false, _) => Ok(None),
        (true, top) => Ok(Some(top.unwrap_or(0))),
    }
}

/// `top_logprobs`.
pub(crate) fn top_logprobs(body: &Reader) -> Result<Option<u32>, ApiError> {
    Ok(body.integer("top_logprobs", 0..=MAX_TOP_LOGPROBS)?.map(|top| top as u32))
}

/// Stop sequences: a string or a list.
pub(crate) fn stops(body: &Reader, field: &str) -> Result<Vec<String>, ApiError> {
    let stop = |text: &str| match text.len() {
        0 => Err(body.error(field, "must not be empty")),
        1..=MAX_STOP_BYTES => Ok(text.to_owned()),
        n => Err(body.error(field, format!("may have at most {MAX_STOP_BYTES} bytes, not {n}"))),
    };
    if let Some(one) = body.get(field).and_then(|value| value.as_str()) {
        return Ok(vec![stop(one)?]);
    }
    let items = body.list(field, MAX_STOPS)?.unwrap_or(&[]).iter();
    items.map(|item| stop(item.as_str().ok_or_else(|| body.error(field, "must hold texts"))?)).collect()
}

/// Regular expressions that end the answer: one or a list.
fn stop_regex(body: &Reader) -> Result<Vec<String>, ApiError> {
    let patterns = stops(body, "stop_regex")?;
    StopRegex::new(&patterns).map_err(|why| body.error("stop_regex", format!("is invalid: {why}")))?;
    Ok(patterns)
}

/// Texts whose token sequences are never generated.
fn bad_words(body: &Reader) -> Result<Vec<String>, ApiError> {
    let items = body.list("bad_words", MAX_BAD_WORDS)?.unwrap_or(&[]).iter();
    let word = |item: &serde_json::Value| {
        let word = item.as_str().filter(|word| (1..=MAX_STOP_BYTES).contains(&word.trim().len()));
        word.map(str::to_owned)
            .ok_or_else(|| body.error("bad_words", format!("must hold texts of 1 to {MAX_STOP_BYTES} bytes")))
    };
    items.map(word).collect()
}

/// `allowed_token_ids`: an empty list would allow no token at all.
fn allowed_token_ids(body: &Reader, vocab: u32) -> Result<Vec<u32>, ApiError> {
    let ids = token_ids(body, "allowed_token_ids", vocab as usize, vocab)?;
    match body.get("allowed_token_ids") {
        Some(_) if ids.is_empty() => Err(body.error("allowed_token_ids", "must not be empty")),
        _ => Ok(ids),
    }
}

/// A list of token ids.
fn token_ids(body: &Reader, field: &str, max: usize, vocab: u32) -> Result<Vec<u32>, ApiError> {
    let items = body.list(field, max)?.unwrap_or(&[]).iter();
    let id = |item: &serde_json::Value| item.as_u64().filter(|id| *id < u64::from(vocab)).map(|id| id as u32);
    items
        .map(|item| id(item).ok_or_else(|| body.error(field, format!("must hold token ids below {vocab}"))))
        .collect()
}

fn bias(body: &Reader, vocab: u32) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(value) = body.get("logit_bias") else { return Ok(Vec::new()) };
    let map = value.as_object().ok_or_else(|| body.error("logit_bias", "must be an object"))?;
    if map.len() > MAX_BIAS {
        return Err(
            body.error("logit_bias", format!("may have at most {MAX_BIAS} entries, not {}", map.len()))
        );
    }
    let entry = |(key, value): (&String, &serde_json::Value)| {
        // Only canonical decimal ids, so no id can appear twice.
        let id = key.parse().ok().filter(|id: &u32| *id < vocab && id.to_string() == *key);
        let id = id.ok_or_else(|| {
            body.error(
                "logit_bias",
                format!("has the key `{}`, which is no token id below {vocab}", shortened(key)),
            )
        })?;
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let bias = bias.ok_or_else(|| body.error("logit_bias", "must hold numbers from -100 to 100"))?;
        Ok((id, bias as f32))
    };
    map.iter().map(entry).collect()
}

fn shortened(text: &str) -> String {
    text.chars().take(20).collect()
}

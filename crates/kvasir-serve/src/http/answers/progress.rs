//! Progress of an answer in llama.cpp's formats: `timings`, and `prompt_progress` during prefill.

use serde_json::{Value, json};
use std::time::Duration;

/// Cache hit and times of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Prompt tokens found in the prefix cache.
    pub cached: u32,
    /// Time to first token (TTFT), queueing included.
    pub ttft: Duration,
    /// Time from the first token to the newest.
    pub decode_time: Duration,
}

impl Progress {
    /// `timings` as llama.cpp has them. The prompt's time is that to the first token, so a single
    /// token has no rate.
    pub(crate) fn timings(self, prompt: u32, tokens: u32) -> Value {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let per_second = |n: u32, time: Duration| match time {
            Duration::ZERO => 0.0,
            time => f64::from(n) / time.as_secs_f64(),
        };
        let per_token = |n: u32, time: Duration| ms(time) / f64::from(n.max(1));
        let Self { cached, ttft, decode_time } = self;
        let prompt = prompt.saturating_sub(cached);
        // The first token comes from the prompt's last step.
        let decoded = tokens.saturating_sub(1);
        json!({
            "cache_n": cached,
            "prompt_n": prompt,
            "prompt_ms": ms(ttft),
            "prompt_per_token_ms": per_token(prompt, ttft),
            "prompt_per_second": per_second(prompt, ttft),
            "predicted_n": tokens,
            "predicted_ms": ms(decode_time),
            "predicted_per_token_ms": per_token(decoded, decode_time),
            "predicted_per_second": per_second(decoded, decode_time),
        })
    }
}

/// Prefill progress of one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    /// Prompt length in tokens.
    pub total: u32,
    /// Prompt tokens found in the prefix cache.
    pub cached: u32,
    /// Prompt tokens whose K/V is in the cache, those found there included.
    pub processed: u32,
    /// Time since admission.
    pub elapsed: Duration,
}

impl PromptProgress {
    /// `prompt_progress` as llama.cpp has it.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "total": self.total, "cache": self.cached, "processed": self.processed,
            "time_ms": self.elapsed.as_millis() as u64,
        })
    }

    /// `timings` as llama.cpp has them, of the tokens processed so far.
    pub(crate) fn timings(self) -> Value {
        let Self { cached, processed, elapsed, .. } = self;
        Progress { cached, ttft: elapsed, decode_time: Duration::ZERO }.timings(processed, 0)
    }
}

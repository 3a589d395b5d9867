//! Metric families under the names of llama.cpp's server, without labels, for its dashboards.

use crate::metrics::Metrics;
use std::fmt::Write;

impl Metrics {
    /// All families in Prometheus' text format. `n_tokens_max` is a maximum, but has the type
    /// `counter`, as in llama.cpp.
    pub(super) fn llama_cpp_families(&self) -> String {
        let (engine, mut text) = (&self.engine, String::new());
        let mut family = |kind: &str, name: &str, help: &str, value: f64| {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "# HELP llamacpp:{name} {help}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}"
            );
        };
        let rate = |n: u64, time: f64| if time > 0.0 { n as f64 / time } else { 0.0 };
        let (computed, generated) = (engine.computed_tokens.get(), engine.generation_tokens.get());
        let (prefill, decode, steps) = (self.prefill.sum(), self.decode.sum(), engine.steps.get());
        let accepted: u64 = engine.accepted_by_position.iter().map(|position| position.get()).sum();
        for (name, help, value) in [
            ("prompt_tokens_total", "Prompt tokens computed.", computed as f64),
            (
                "prompt_tokens_cached_total",
                "Prompt tokens found in the prefix cache.",
                engine.prefix_hits.get() as f64,
            ),
            ("prompt_seconds_total", "Time from admission to the first token, over all requests.", prefill),
            ("tokens_predicted_total", "Generated tokens.", generated as f64),
            (
                "tokens_predicted_seconds_total",
                "Time from the first token to the end, over all requests.",
                decode,
            ),
            ("n_decode_total", "Engine steps.", steps as f64),
            ("n_tokens_max", "Tokens of the longest sequence.", self.longest_sequence.get() as f64),
            (
                "spec_decode_num_draft_tokens_total",
                "Draft tokens verified.",
                engine.draft_tokens.get() as f64,
            ),
            ("spec_decode_num_accepted_tokens_total", "Draft tokens accepted.", accepted as f64),
            ("spec_decode_num_drafts_total", "Verifications of drafts.", engine.drafts.get() as f64),
        ] {
            family("counter", name, help, value);
        }
        let rows_per_step = engine.step_rows.get() as f64 / steps.max(1) as f64;
        for (name, help, value) in [
            ("prompt_tokens_seconds", "Computed prompt tokens per second.", rate(computed, prefill)),
            ("predicted_tokens_seconds", "Generated tokens per second.", rate(generated, decode)),
            ("requests_processing", "Running requests.", engine.running.get() as f64),
            ("requests_deferred", "Requests in the queue.", engine.waiting.get() as f64),
            ("n_busy_slots_per_decode", "Sequences per engine step.", rows_per_step),
        ] {
            family("gauge", name, help, value);
        }
        text
    }
}

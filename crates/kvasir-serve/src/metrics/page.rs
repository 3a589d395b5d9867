//! The `/metrics` page: names and help texts of all metric families, in Kvasir's or vLLM's naming.

use crate::metrics::{
    DEFERRED, FINISHED, Metrics, REJECTED,
    prometheus::{Names, TextExposition},
};

impl Metrics {
    /// All metrics in Prometheus' text format. `open` is the number of open answers.
    pub fn page(&self, names: Names, model: &str, open: usize) -> String {
        let prefix = match names {
            Names::Own => "kvasir:",
            Names::Vllm => "vllm:",
        };
        let mut page = TextExposition::new(prefix, model);
        self.gauges(&mut page, open);
        self.counters(&mut page);
        self.histograms(&mut page);
        page.text
    }

    fn gauges(&self, page: &mut TextExposition, open: usize) {
        let capacity = self.capacity.get();
        let usage = self.slots_held.get() as f64 / capacity.max(1) as f64;
        page.gauge("num_requests_running", "Requests that run.", self.running.get() as f64);
        page.gauge("num_requests_waiting", "Requests that wait in the queue.", self.waiting.get() as f64);
        page.gauge("num_requests_open", "Answers that are being made or waited for.", open as f64);
        page.gauge("kv_cache_usage_perc", "Share of the slots that requests hold, 0 to 1.", usage);
        page.gauge("kv_cache_slots_held", "Slots that requests hold.", self.slots_held.get() as f64);
        page.gauge(
            "kv_cache_slots_cached",
            "Slots of prefixes that nobody holds and that may be found.",
            self.slots_cached.get() as f64,
        );
        let block = self.block.get().max(1);
        page.info(
            "cache_config_info",
            "How the cache is laid out.",
            &format!("block_size=\"{block}\",num_gpu_blocks=\"{}\"", capacity / block),
        );
        page.info("build_info", "What is running.", &format!("version=\"{}\"", env!("CARGO_PKG_VERSION")));
    }

    fn counters(&self, page: &mut TextExposition) {
        page.counter(
            "prompt_tokens_total",
            "Tokens of the prompts of requests that have ended.",
            self.prompt_tokens.get(),
        );
        page.counter(
            "prompt_tokens_computed_total",
            "Tokens of prompts that were computed.",
            self.computed_tokens.get(),
        );
        page.counter("generation_tokens_total", "Tokens that were generated.", self.generation_tokens.get());
        page.counter(
            "prefix_cache_queries_total",
            "Tokens that were looked up in the cache.",
            self.prefix_queries.get(),
        );
        page.counter("prefix_cache_hits_total", "Tokens that were found there.", self.prefix_hits.get());
        page.counter("num_preemptions_total", "Requests sent back to the queue.", self.preemptions.get());
        page.counter(
            "num_pauses_total",
            "Decode rows paused by the rectangular policy, net of swaps within a step.",
            self.pauses.get(),
        );
        page.counter("num_resumes_total", "Paused decode rows that were resumed.", self.resumes.get());
        page.counter("steps_total", "Steps that were made.", self.steps.get());
        page.counter("failed_steps_total", "Steps that failed.", self.failed_steps.get());
        let by = |label: &'static str, names: &'static [&'static str]| {
            names.iter().map(move |name| format!("{label}=\"{name}\""))
        };
        let values = self.finished.iter().map(|counter| counter.get());
        page.counters(
            "request_success_total",
            "Requests that have ended, by how.",
            by("finished_reason", &FINISHED).zip(values),
        );
        let values = self.rejected.iter().map(|counter| counter.get());
        page.counters(
            "admission_rejections_total",
            "Requests that were turned away, by why.",
            by("reason", &REJECTED).zip(values),
        );
        let values = self.deferred.iter().map(|counter| counter.get());
        page.counters(
            "held_total",
            "Times that a request was looked at and did not run, by why.",
            by("reason", &DEFERRED).zip(values),
        );
    }

    fn histograms(&self, page: &mut TextExposition) {
        for (name, help, histogram) in [
            ("time_to_first_token_seconds", "From arrival to the first token.", &self.ttft),
            ("inter_token_latency_seconds", "Between two pieces of one answer.", &self.inter_token),
            (
                "request_time_per_output_token_seconds",
                "Per token after the first, of each request.",
                &self.tpot,
            ),
            ("e2e_request_latency_seconds", "From arrival to the end.", &self.e2e),
            ("request_queue_time_seconds", "From arrival to admission.", &self.queue),
            ("request_prefill_time_seconds", "From admission to the first token.", &self.prefill),
            ("request_decode_time_seconds", "From the first token to the end.", &self.decode),
            ("step_time_seconds", "Time of a step on the device.", &self.step_time),
            ("iteration_tokens_total", "Tokens of a step.", &self.step_tokens),
            ("request_prompt_tokens", "Tokens of a prompt.", &self.prompts),
            ("request_generation_tokens", "Tokens of an answer.", &self.answers),
        ] {
            page.histogram(name, help, histogram);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_family_appears_once_per_naming() {
        let metrics = Metrics::default();
        for (names, prefix) in [(Names::Own, "kvasir:"), (Names::Vllm, "vllm:")] {
            let text = metrics.page(names, "m", 3);
            let mut families: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
            assert!(families.iter().all(|family| family.starts_with(prefix)));
            for expected in [
                "num_requests_running",
                "num_requests_waiting",
                "kv_cache_usage_perc",
                "request_success_total",
            ] {
                assert!(families.contains(&format!("{prefix}{expected}").as_str()), "{expected}");
            }
            let all = families.len();
            families.sort_unstable();
            families.dedup();
            assert_eq!(families.len(), all);
            assert!(text.contains(&format!("{prefix}num_requests_open{{model_name=\"m\"}} 3\n")));
        }
    }
}

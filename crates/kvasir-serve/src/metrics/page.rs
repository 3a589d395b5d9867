//! The `/metrics` page: names and help texts of all metric families, in Kvasir's or vLLM's naming.
//!
//! The gauges that the schedulers of llm-d and of the Gateway API inference extension read are also
//! exported under vLLM's names, because these schedulers treat a pod without an engine label as
//! vLLM. They read the first sample of a family, so each of these gauges has one sample, summed
//! over all replicas. With `--metrics-alias llama.cpp`, the families of llama.cpp's server follow.

use crate::context::connection_cut::ConnectionCut;
use crate::metrics::deferral_group::DeferralGroup;
use crate::metrics::engine_metrics::{DRAFT_POSITIONS, EngineMetrics};
use crate::metrics::prometheus::{Counter, Names, TextExposition};
use crate::metrics::tokenizers::tokenizer_processes;
use crate::metrics::transfers::transfers;
use crate::metrics::{FINISHED, Metrics, REJECTED};
use kvasir_chat::TokenizerStatus;
use kvasir_engine::{ReplicaPhase, ReplicaStatus};
use kvasir_kv::CacheEnd;
use std::mem;

/// Status of the server beside its engine metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerStatus<'a> {
    /// Engine processes; empty if the engine runs in the server's process.
    pub replicas: &'a [ReplicaStatus],
    /// Tokenizer processes; empty if the server's process tokenizes.
    pub tokenizers: &'a [TokenizerStatus],
    /// Reports that were dropped because a log or trace queue was full.
    pub dropped_reports: u64,
    /// Lines that could not be written to the log.
    pub lost_log_lines: u64,
    /// Whether the reader may learn what other API keys have cached; otherwise `other_key` counts
    /// as `never_computed`.
    pub sees_all: bool,
}

impl Metrics {
    /// All metrics in Prometheus' text format. `open` is the number of open answers.
    pub fn page(&self, names: Names, model: &str, open: usize, status: ServerStatus<'_>) -> String {
        let ServerStatus { replicas, tokenizers, .. } = status;
        let mut page = TextExposition::new(names.prefix(), model);
        self.scheduler_gauges(&mut page);
        self.gauges(&mut page, open);
        self.replica_gauges(&mut page);
        replica_processes(&mut page, replicas);
        transfers(&mut page, replicas);
        tokenizer_processes(&mut page, tokenizers);
        self.counters(&mut page);
        self.short_hits(&mut page, status.sees_all);
        report_losses(&mut page, status);
        self.per_key.expose(&mut page);
        self.histograms(&mut page);
        let TextExposition { mut text, .. } = page;
        let mut aliases = TextExposition::new(Names::Vllm.prefix(), model);
        if names != Names::Vllm {
            self.scheduler_gauges(&mut aliases);
        }
        adapter_info(&mut aliases);
        text.push_str(&aliases.text);
        if names == Names::LlamaCpp {
            text.push_str(&self.llama_cpp_families());
        }
        text
    }

    /// Gauges that the schedulers of llm-d and of the Gateway API inference extension read.
    fn scheduler_gauges(&self, page: &mut TextExposition) {
        let capacity = self.engine.capacity.get();
        let usage = self.engine.slots_held.get() as f64 / capacity.max(1) as f64;
        page.gauge("num_requests_running", "Running requests.", self.engine.running.get() as f64);
        page.gauge("num_requests_waiting", "Requests in the queue.", self.engine.waiting.get() as f64);
        page.gauge("kv_cache_usage_perc", "Share of the KV cache held by running requests, 0 to 1.", usage);
        let block = self.engine.block.get().max(1);
        page.info(
            "cache_config_info",
            "Block size and number of blocks of the KV cache.",
            &format!("block_size=\"{block}\",num_gpu_blocks=\"{}\"", capacity / block),
        );
    }

    fn gauges(&self, page: &mut TextExposition, open: usize) {
        page.gauge("num_requests_open", "Answers in progress or pending.", open as f64);
        page.gauge(
            "kv_cache_slots_held",
            "KV cache slots held by running requests.",
            self.engine.slots_held.get() as f64,
        );
        page.gauge(
            "kv_cache_slots_cached",
            "KV cache slots of cached prefixes, evictable.",
            self.engine.slots_cached.get() as f64,
        );
        page.gauge(
            "kv_cache_slots_retained",
            "KV cache slots that only retained conversations and pinned prefixes hold, evictable.",
            self.engine.slots_retained.get() as f64,
        );
        page.info(
            "build_info",
            "Version of the server.",
            &format!("version=\"{}\"", env!("CARGO_PKG_VERSION")),
        );
    }

    /// Queue and KV cache by replica, if engines run in other processes.
    fn replica_gauges(&self, page: &mut TextExposition) {
        let Some(replicas) = &self.replicas else { return };
        type Value = fn(&EngineMetrics) -> f64;
        let families: [(&str, &str, Value); 3] = [
            ("replica_requests_running", "Running requests by replica.", |engine| {
                engine.running.get() as f64
            }),
            ("replica_requests_waiting", "Requests in the queue by replica.", |engine| {
                engine.waiting.get() as f64
            }),
            (
                "replica_kv_cache_usage_perc",
                "Share of the KV cache held by running requests, by replica.",
                |engine| engine.slots_held.get() as f64 / engine.capacity.get().max(1) as f64,
            ),
        ];
        for (name, help, value) in families {
            let values = replicas.by_replica();
            page.gauges(name, help, values.map(|(i, engine)| (format!("replica=\"{i}\""), value(engine))));
        }
    }

    fn counters(&self, page: &mut TextExposition) {
        page.counter("prompt_tokens_total", "Prompt tokens of finished requests.", self.prompt_tokens.get());
        page.counter(
            "prompt_tokens_computed_total",
            "Prompt tokens computed, not taken from the prefix cache.",
            self.engine.computed_tokens.get(),
        );
        page.counter("generation_tokens_total", "Generated tokens.", self.engine.generation_tokens.get());
        page.counter(
            "prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache.",
            self.engine.prefix_queries.get(),
        );
        page.counter(
            "prefix_cache_hits_total",
            "Prompt tokens found in the prefix cache.",
            self.engine.prefix_hits.get(),
        );
        page.counter(
            "num_preemptions_total",
            "Preemptions: running requests returned to the queue.",
            self.engine.preemptions.get(),
        );
        page.counter(
            "padding_tokens_total",
            "Dummy tokens that steps were padded with.",
            self.engine.padding.get(),
        );
        page.counter(
            "num_pauses_total",
            "Decode rows paused by the rectangular policy, net of swaps within a step.",
            self.engine.pauses.get(),
        );
        page.counter("num_resumes_total", "Paused decode rows that were resumed.", self.engine.resumes.get());
        let by_position = self.engine.accepted_by_position.iter().map(|gauge| gauge.get());
        page.counter("spec_decode_num_drafts_total", "Verifications of drafts.", self.engine.drafts.get());
        page.counter(
            "spec_decode_num_draft_tokens_total",
            "Draft tokens verified.",
            self.engine.draft_tokens.get(),
        );
        page.counter(
            "spec_decode_num_accepted_tokens_total",
            "Draft tokens accepted.",
            by_position.clone().sum(),
        );
        let positions = DRAFT_POSITIONS.iter().map(|name| format!("position=\"{name}\""));
        page.counters(
            "spec_decode_num_accepted_tokens_per_pos_total",
            "Draft tokens accepted, by position.",
            positions.zip(by_position),
        );
        page.counter(
            "slow_readers_total",
            "Connections closed because their client read a stream too slowly.",
            ConnectionCut::count(),
        );
        page.counter("steps_total", "Engine steps.", self.engine.steps.get());
        page.counter("failed_steps_total", "Engine steps that failed.", self.engine.failed_steps.get());
        page.counter(
            "dummy_steps_total",
            "Dummy steps: steps that an expert-parallel engine without work runs with the other engines.",
            self.engine.dummy_steps.get(),
        );
        let by = |label: &'static str, names: &'static [&'static str]| {
            names.iter().map(move |name| format!("{label}=\"{name}\""))
        };
        let values = self.finished.iter().map(|counter| counter.get());
        page.counters(
            "request_success_total",
            "Finished requests by finish reason.",
            by("finished_reason", &FINISHED).zip(values),
        );
        let values = self.rejected.iter().map(|counter| counter.get());
        page.counters(
            "admission_rejections_total",
            "Requests rejected at admission, by reason.",
            by("reason", &REJECTED).zip(values),
        );
        let values = self.engine.deferred.iter().map(|counter| counter.get());
        page.counters(
            "held_total",
            "Deferrals: times that a request was not scheduled into a step, by reason.",
            by("reason", &DeferralGroup::LABELS).zip(values),
        );
    }

    fn short_hits(&self, page: &mut TextExposition, sees_all: bool) {
        let families = [
            (
                "prefix_ends_total",
                "Admissions whose prefix hit was short, by reason.",
                &self.engine.prefix_ends,
            ),
            (
                "prefix_end_tokens_total",
                "Prompt tokens after the end of short prefix hits, by reason.",
                &self.engine.prefix_end_tokens,
            ),
        ];
        for (name, help, counters) in families {
            let mut values = counters.each_ref().map(Counter::get);
            if !sees_all {
                let hidden = mem::take(&mut values[CacheEnd::OtherKey as usize]);
                values[CacheEnd::NeverComputed as usize] += hidden;
            }
            let labels = CacheEnd::ALL.map(|short| format!("reason=\"{}\"", short.label()));
            page.counters(name, help, labels.into_iter().zip(values));
        }
    }

    fn histograms(&self, page: &mut TextExposition) {
        for (name, help, histogram) in [
            ("time_to_first_token_seconds", "Time from arrival to the first token.", &self.ttft),
            (
                "inter_token_latency_seconds",
                "Time between consecutive pieces of an answer.",
                &self.inter_token,
            ),
            (
                "request_time_per_output_token_seconds",
                "Time per token after the first, per request.",
                &self.tpot,
            ),
            ("e2e_request_latency_seconds", "Time from arrival to the end of a request.", &self.e2e),
            ("request_queue_time_seconds", "Time from arrival to admission.", &self.queue),
            ("request_prefill_time_seconds", "Time from admission to the first token.", &self.prefill),
            (
                "request_decode_time_seconds",
                "Time from the first token to the end of a request.",
                &self.decode,
            ),
            ("step_time_seconds", "Time of a step on the device.", &self.engine.step_time),
            ("iteration_tokens_total", "Tokens per step.", &self.engine.step_tokens),
            ("request_prompt_tokens", "Prompt length in tokens.", &self.prompts),
            ("request_generation_tokens", "Answer length in tokens.", &self.answers),
        ] {
            page.histogram(name, help, histogram);
        }
    }
}

/// Reports that no LoRA adapter can be loaded. Without this family, schedulers log an error at each
/// scrape.
fn adapter_info(page: &mut TextExposition) {
    page.info(
        "lora_requests_info",
        "LoRA adapters of running and waiting requests, and how many fit.",
        "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"",
    );
}

/// Exposes the number of lost log lines and spans.
fn report_losses(page: &mut TextExposition, status: ServerStatus<'_>) {
    page.counter(
        "dropped_reports_total",
        "Log lines and spans dropped because their queue was full.",
        status.dropped_reports,
    );
    page.counter(
        "lost_log_lines_total",
        "Lines that could not be written to the log.",
        status.lost_log_lines,
    );
}

/// Exposes readiness, restarts and hangs of each replica.
fn replica_processes(page: &mut TextExposition, replicas: &[ReplicaStatus]) {
    if replicas.is_empty() {
        return;
    }
    let labeled = |value: fn(&ReplicaStatus) -> u64| {
        replicas.iter().map(move |status| (format!("replica=\"{}\"", status.replica), value(status)))
    };
    page.gauges(
        "replica_ready",
        "Whether the replica accepts requests, 1 or 0.",
        labeled(|status| (status.phase == ReplicaPhase::Ready).into()).map(|(label, n)| (label, n as f64)),
    );
    page.counters(
        "replica_restarts_total",
        "Processes of the replica that have ended or failed to start.",
        labeled(|status| status.restarts.into()),
    );
    page.counters(
        "replica_hangs_total",
        "Processes of the replica that were killed because they had requests and made no step.",
        labeled(|status| status.hangs.into()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::engine_metrics::ReplicaMetrics;
    use kvasir_engine::Role;
    use std::sync::Arc;

    /// The samples of a family: labels and value.
    fn samples<'a>(page: &'a str, family: &str) -> Vec<(&'a str, f64)> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(family)?.strip_prefix('{'));
        lines.map(|line| line.rsplit_once("} ").unwrap()).map(|(l, v)| (l, v.parse().unwrap())).collect()
    }

    #[test]
    fn scheduler_gauges_have_vllm_names() {
        let two = Metrics::of_replicas(2);
        let replica = EngineMetrics::default();
        replica.running.set(3);
        replica.waiting.set(5);
        replica.capacity.set(64);
        replica.slots_held.set(16);
        replica.block.set(16);
        let replicas: &ReplicaMetrics = two.replicas.as_ref().unwrap();
        (0..2).for_each(|i| replicas.update(i, &replica.snapshot()));
        let one = Metrics { engine: Arc::new(replica), ..Metrics::default() };
        for (metrics, engines) in [(one, 1), (two, 2)] {
            for names in [Names::Own, Names::Vllm] {
                let page = metrics.page(names, "m", 0, ServerStatus::default());
                let value = |family: &str| match samples(&page, family)[..] {
                    [(_, value)] => value,
                    ref all => panic!("{family}: {all:?}"),
                };
                assert_eq!(value("vllm:num_requests_running"), f64::from(3 * engines));
                assert_eq!(value("vllm:num_requests_waiting"), f64::from(5 * engines));
                assert_eq!(value("vllm:kv_cache_usage_perc"), 0.25);
                let (cache, _) = samples(&page, "vllm:cache_config_info")[0];
                let blocks = 4 * engines;
                let labels = format!("model_name=\"m\",block_size=\"16\",num_gpu_blocks=\"{blocks}\"");
                assert_eq!(cache, labels);
                let (adapters, _) = samples(&page, "vllm:lora_requests_info")[0];
                assert!(adapters.contains("max_lora=\"0\""), "{adapters}");
            }
        }
    }

    #[test]
    fn every_metric_family_appears_once_per_naming() {
        let metrics = Metrics::default();
        let all = [(Names::Own, "kvasir:"), (Names::Vllm, "vllm:"), (Names::LlamaCpp, "kvasir:")];
        for (names, prefix) in all {
            let replica = ReplicaStatus { role: Role::Prefill, ..ReplicaStatus::default() };
            let (replicas, tokenizers) = ([replica], [TokenizerStatus::default()]);
            let status =
                ServerStatus { replicas: &replicas, tokenizers: &tokenizers, ..ServerStatus::default() };
            let text = metrics.page(names, "m", 3, status);
            let mut families: Vec<&str> =
                text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
            let is_alias = |family: &str| family.starts_with("vllm:") || family.starts_with("llamacpp:");
            assert!(families.iter().all(|family| family.starts_with(prefix) || is_alias(family)));
            for expected in [
                "num_requests_running",
                "num_requests_waiting",
                "kv_cache_usage_perc",
                "request_success_total",
                "tokenizer_ready",
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

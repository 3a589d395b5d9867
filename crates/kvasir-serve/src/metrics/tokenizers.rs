//! Metrics of tokenizer processes.

use crate::metrics::prometheus::TextExposition;
use kvasir_chat::TokenizerStatus;

/// Exposes the readiness and the counters of each tokenizer process; nothing without them.
pub(crate) fn tokenizer_processes(page: &mut TextExposition, tokenizers: &[TokenizerStatus]) {
    if tokenizers.is_empty() {
        return;
    }
    let labeled = |value: fn(&TokenizerStatus) -> u64| {
        tokenizers.iter().map(move |status| (format!("tokenizer=\"{}\"", status.tokenizer), value(status)))
    };
    let gauge = |value| labeled(value).map(|(label, n)| (label, n as f64));
    page.gauges(
        "tokenizer_ready",
        "Whether the tokenizer process accepts jobs, 1 or 0.",
        gauge(|status| status.is_ready.into()),
    );
    page.gauges("tokenizer_jobs", "Pending jobs of the tokenizer process.", gauge(|status| status.jobs));
    page.counters(
        "tokenizer_completed_jobs_total",
        "Completed jobs of the tokenizer process.",
        labeled(|status| status.completed_jobs),
    );
    page.counters(
        "tokenizer_restarts_total",
        "Tokenizer processes that have ended or failed to start.",
        labeled(|status| status.restarts.into()),
    );
    page.counters(
        "tokenizer_hangs_total",
        "Tokenizer processes that were killed because they had jobs and sent nothing for too long.",
        labeled(|status| status.hangs.into()),
    );
    page.counters(
        "tokenizer_dropped_messages_total",
        "Messages of tokenizer processes that could not be read.",
        labeled(|status| status.dropped_messages),
    );
}

//! Counters per API key, labeled by the key's name.
//!
//! Names come from `--api-key-file`, and the number of labels is bounded. The key itself appears
//! nowhere.

use crate::metrics::prometheus::{Counter, TextExposition, escaped};
use kvasir_engine::Summary;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Maximum number of names; keys with further names are counted together.
const MAX_NAMES: usize = 256;
/// Label of keys without a name.
const UNNAMED: &str = "unnamed";
/// Label of keys whose names are beyond `MAX_NAMES`.
const OTHERS: &str = "others";
/// Labels that no key may have as its name.
pub(crate) const RESERVED_LABELS: [&str; 2] = [UNNAMED, OTHERS];

/// Counters of all keys with the same label.
#[derive(Debug, Default)]
pub(crate) struct KeyMetrics {
    requests: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    rejections: Counter,
}

impl KeyMetrics {
    /// Counts a request that the engine has ended; a refused one counts as rejected.
    pub(crate) fn ended(&self, summary: &Summary, is_refused: bool) {
        if is_refused {
            return self.rejected();
        }
        self.requests.add(1);
        self.prompt_tokens.add(summary.prompt.into());
        self.generation_tokens.add(summary.outputs.into());
    }

    /// Counts a rejected request.
    pub(crate) fn rejected(&self) {
        self.rejections.add(1);
    }
}

/// The counters of all keys.
#[derive(Debug, Default)]
pub(super) struct PerKey(Mutex<BTreeMap<String, Arc<KeyMetrics>>>);

impl PerKey {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<KeyMetrics>>> {
        // No holder of the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of a key with this name.
    pub(super) fn of(&self, name: Option<&str>) -> Arc<KeyMetrics> {
        let mut by_name = self.lock();
        let name = name.unwrap_or(UNNAMED);
        if let Some(metrics) = by_name.get(name) {
            return metrics.clone();
        }
        let name = if by_name.len() < MAX_NAMES { name } else { OTHERS };
        by_name.entry(name.to_owned()).or_default().clone()
    }

    /// Writes the metric families; writes nothing before the first request with a key.
    pub(super) fn expose(&self, page: &mut TextExposition) {
        let by_name = self.lock();
        if by_name.is_empty() {
            return;
        }
        let mut family = |name: &str, help: &str, counter: fn(&KeyMetrics) -> &Counter| {
            let values = by_name.iter();
            let values =
                values.map(|(key, metrics)| (format!("key=\"{}\"", escaped(key)), counter(metrics).get()));
            page.counters(name, help, values);
        };
        family("key_requests_total", "Ended requests of an API key, by its name.", |metrics| {
            &metrics.requests
        });
        family("key_prompt_tokens_total", "Prompt tokens of ended requests of an API key.", |metrics| {
            &metrics.prompt_tokens
        });
        family(
            "key_generation_tokens_total",
            "Generated tokens of ended requests of an API key.",
            |metrics| &metrics.generation_tokens,
        );
        family("key_rejections_total", "Rejected requests of an API key.", |metrics| &metrics.rejections);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_labels_is_bounded() {
        let keys = PerKey::default();
        (0..2 * MAX_NAMES).for_each(|n| keys.of(Some(&format!("key {n}"))).rejected());
        keys.of(None).rejected();
        let by_name = keys.lock();
        assert_eq!((by_name.len(), by_name[OTHERS].rejections.get()), (MAX_NAMES + 1, MAX_NAMES as u64 + 1));
        assert_eq!(by_name["key 0"].rejections.get(), 1);
    }
}

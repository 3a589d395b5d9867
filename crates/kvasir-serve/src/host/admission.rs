//! Admission control of the server: open answers per server and per API key, and their token
//! budget.
//!
//! `AdmissionLimits` holds the limits, `Clients` the registry of open answers. With `key_shares`,
//! dynamic thresholds (Choudhury and Hahne, 1998) limit each API key: it may hold at most three
//! times the free answers, and three times the free tokens. One busy key then leaves a quarter
//! free, and k busy keys leave 1/(3k + 1). A key without open answers may take all that is free.
//!
//! `AdmissionLimits::check_feasible` rejects with 400 what can never fit; `Clients::admit` rejects
//! with 429 what does not fit now.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::host::output_buffer::OutputBuffer;
use crate::host::request_output::RequestOutput;
use crate::metrics::{Rejected, per_key::KeyMetrics};
use std::{collections::HashMap, sync::Arc, time::Instant};

/// Limits on concurrent work, running and queued; requests beyond them get status 429.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Open answers of all keys.
    pub answers: usize,
    /// Open answers per API key.
    pub answers_per_key: usize,
    /// Total tokens of prompts and expected answers.
    pub tokens: u64,
    /// Whether dynamic thresholds limit the answers and tokens of each API key.
    pub key_shares: bool,
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self { answers: 4096, answers_per_key: 4096, tokens: 1 << 26, key_shares: false }
    }
}

impl AdmissionLimits {
    /// Maximum number of open requests of a key, each of at most `tokens` tokens, if no other key
    /// has open requests.
    pub(crate) fn at_once(&self, key: u64, tokens: u64) -> usize {
        let by_tokens = usize::try_from(self.tokens / tokens.max(1)).unwrap_or(usize::MAX);
        let all = self.answers.min(by_tokens);
        let limit = if self.has_threshold(key) { (all / 4 * 3).max(1) } else { all };
        limit.min(self.answers_per_key)
    }

    /// Whether a dynamic threshold limits this key. Key 0 stands for all clients of a server
    /// without API keys and has none.
    fn has_threshold(&self, key: u64) -> bool {
        self.key_shares && key != 0
    }

    /// Rejects a request that can never fit: `n` answers to each of `prompts` prompts, `tokens` in
    /// total.
    pub(crate) fn check_feasible(&self, prompts: u64, n: u64, tokens: u64) -> Result<(), ApiError> {
        let (requested, answers) = (prompts * n, self.answers.min(self.answers_per_key) as u64);
        if requested > answers {
            let param = if prompts > 1 { "prompt" } else { "n" };
            let why = format!("{requested} answers are requested; at most {answers} may be open at once");
            return Err(ApiError::param(param, why));
        }
        if tokens > self.tokens {
            let param = match (prompts, n) {
                (2.., _) => "prompt",
                (_, 2..) => "n",
                _ => "max_tokens",
            };
            let why = format!(
                "prompts and answers may have {tokens} tokens; those of all open answers may have at most {}",
                self.tokens
            );
            return Err(ApiError::param(param, why));
        }
        Ok(())
    }
}

/// One open answer: its buffer and what it counts toward the limits.
pub(crate) struct Client {
    pub(crate) buffer: Arc<OutputBuffer<RequestOutput>>,
    pub(crate) context: Arc<RequestContext>,
    pub(crate) key: u64,
    /// Counters of the API key; `None` without a key.
    pub(crate) key_metrics: Option<Arc<KeyMetrics>>,
    pub(crate) tokens: u64,
    /// Time of the last delivery, for inter-token latency.
    pub(crate) delivered_at: Option<Instant>,
    /// Its connection is closed because it reads too slowly: output is dropped until the engine
    /// reports the end of the request.
    pub(crate) is_cut: bool,
}

/// Open answers of a key, and the tokens of their prompts and expected answers.
#[derive(Clone, Copy, Debug, Default)]
struct KeyUsage {
    answers: usize,
    tokens: u64,
}

/// Factor of the dynamic thresholds: what a key may hold, relative to what is free.
const THRESHOLD_FACTOR: u64 = 3;

/// Registry of open answers, with totals per key.
#[derive(Default)]
pub(crate) struct Clients {
    pub(crate) by_tag: HashMap<u64, Client>,
    by_key: HashMap<u64, KeyUsage>,
    tokens: u64,
    /// The engine has stopped: no answer may be opened any more.
    is_closed: bool,
}

impl Clients {
    pub(crate) fn insert(&mut self, tag: u64, client: Client) {
        let open = self.by_key.entry(client.key).or_default();
        open.answers += 1;
        open.tokens += client.tokens;
        self.tokens += client.tokens;
        self.by_tag.insert(tag, client);
    }

    pub(crate) fn remove(&mut self, tag: u64) -> Option<Client> {
        let client = self.by_tag.remove(&tag)?;
        self.tokens -= client.tokens;
        if let Some(open) = self.by_key.get_mut(&client.key) {
            open.answers -= 1;
            open.tokens -= client.tokens;
            if open.answers == 0 {
                self.by_key.remove(&client.key);
            }
        }
        Some(client)
    }

    /// Refuses further answers; returns the open ones.
    pub(crate) fn close(&mut self) -> Vec<Client> {
        let open = std::mem::take(self);
        self.is_closed = true;
        open.by_tag.into_values().collect()
    }

    /// Whether the engine has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether `n` more answers of this key, with `tokens` in total, fit the limits now.
    pub(crate) fn admit(
        &self,
        limits: &AdmissionLimits,
        key: u64,
        n: usize,
        tokens: u64,
    ) -> Result<(), (Rejected, String)> {
        if self.by_tag.len() + n > limits.answers {
            let why = format!("{} answers are open, of at most {}", self.by_tag.len(), limits.answers);
            return Err((Rejected::QueueFull, why));
        }
        let own = self.by_key.get(&key).copied().unwrap_or_default();
        if own.answers + n > limits.answers_per_key {
            let (open, most) = (own.answers, limits.answers_per_key);
            return Err((
                Rejected::KeyLimit,
                format!("{open} answers of this key are open, of at most {most}"),
            ));
        }
        if self.tokens.saturating_add(tokens) > limits.tokens {
            let why = format!(
                "open answers and their prompts may have {} tokens, of at most {}",
                self.tokens, limits.tokens
            );
            return Err((Rejected::TokensWaiting, why));
        }
        let is_limited = limits.has_threshold(key) && own.answers > 0;
        let is_above_threshold =
            |held: u64, free: u64| is_limited && held > THRESHOLD_FACTOR.saturating_mul(free);
        let free = limits.answers - self.by_tag.len() - n;
        if is_above_threshold((own.answers + n) as u64, free as u64) {
            let why = format!(
                "{} answers of this key are open; the free ones are reserved for other keys",
                own.answers
            );
            return Err((Rejected::KeyLimit, why));
        }
        if is_above_threshold(own.tokens.saturating_add(tokens), limits.tokens - self.tokens - tokens) {
            let why = format!(
                "open answers of this key and their prompts hold {} tokens; the free ones are reserved for other keys",
                own.tokens
            );
            return Err((Rejected::KeyLimit, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(key: u64, tokens: u64) -> Client {
        let (buffer, context) = (Arc::default(), Arc::default());
        Client { buffer, context, key, key_metrics: None, tokens, delivered_at: None, is_cut: false }
    }

    #[test]
    fn admission_counts_answers_keys_and_tokens() {
        let limits = AdmissionLimits { answers: 3, answers_per_key: 2, tokens: 100, key_shares: false };
        let never = |prompts, n, tokens| {
            limits.check_feasible(prompts, n, tokens).map_err(|error| error.param.unwrap()).err()
        };
        assert_eq!((never(1, 2, 100), never(1, 3, 1)), (None, Some("n".into())));
        assert_eq!((never(1, 1, 101), never(1, 2, 101)), (Some("max_tokens".into()), Some("n".into())));
        assert_eq!((never(2, 1, 100), never(3, 1, 1)), (None, Some("prompt".into())));
        assert_eq!((never(2, 1, 101), never(2, 2, 1)), (Some("prompt".into()), Some("prompt".into())));
        let mut clients = Clients::default();
        let refused = |clients: &Clients, key, n, tokens| {
            clients.admit(&limits, key, n, tokens).err().map(|(why, _)| why)
        };
        clients.insert(1, client(7, 40));
        clients.insert(2, client(7, 40));
        assert_eq!(refused(&clients, 7, 1, 1), Some(Rejected::KeyLimit));
        assert_eq!(refused(&clients, 8, 1, 20), None);
        assert_eq!(refused(&clients, 8, 1, 21), Some(Rejected::TokensWaiting));
        assert_eq!(refused(&clients, 8, 2, 1), Some(Rejected::QueueFull));
        assert!(clients.remove(1).is_some() && clients.remove(1).is_none());
        assert_eq!(refused(&clients, 7, 1, 60), None);
        assert!(clients.remove(2).is_some());
        assert_eq!((clients.tokens, clients.by_key.len(), clients.by_tag.len()), (0, 0, 0));
    }
    /// Open answers per key after each key has opened one more, repeatedly, until none is admitted.
    fn greedy(limits: AdmissionLimits, keys: &[u64]) -> Vec<usize> {
        let mut clients = Clients::default();
        let mut tag = 0;
        for _ in 0..limits.answers {
            for &key in keys {
                tag += 1;
                if clients.admit(&limits, key, 1, 10).is_ok() {
                    clients.insert(tag, client(key, 10));
                }
            }
        }
        keys.iter().map(|key| clients.by_key.get(key).map_or(0, |open| open.answers)).collect()
    }

    #[test]
    fn keys_share_answers_and_tokens() {
        let limits = AdmissionLimits { answers: 70, answers_per_key: 70, tokens: 10_000, key_shares: true };
        assert_eq!(greedy(limits, &[1]), [52], "three quarters");
        assert_eq!(greedy(limits, &[1, 2]), [30, 30], "three sevenths each");
        assert_eq!(greedy(limits, &[0]), [70], "without keys there is nothing to share");
        assert_eq!(greedy(AdmissionLimits { key_shares: false, ..limits }, &[1, 2]), [35, 35]);
        let few_tokens = AdmissionLimits { answers: 1000, tokens: 700, ..limits };
        assert_eq!((greedy(few_tokens, &[1]), greedy(few_tokens, &[1, 2])), (vec![52], vec![30, 30]));
        for key in [0, 1] {
            let at_once = limits.at_once(key, 10);
            assert!((at_once..at_once + 4).contains(&greedy(limits, &[key])[0]), "{key}: {at_once}");
        }
        let one = AdmissionLimits { answers: 1, ..limits };
        assert_eq!(greedy(one, &[1]), [1], "a key without answers may take all");
    }
}

//! Admission control of the server: open answers per server and per API key, and their token
//! budget.
//!
//! `AdmissionLimits` holds the limits, `Clients` the registry of open answers.
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
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self { answers: 4096, answers_per_key: 4096, tokens: 1 << 26 }
    }
}

impl AdmissionLimits {
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
}

/// Registry of open answers, with totals per key.
#[derive(Default)]
pub(crate) struct Clients {
    pub(crate) by_tag: HashMap<u64, Client>,
    by_key: HashMap<u64, usize>,
    tokens: u64,
    /// The engine has stopped: no answer may be opened any more.
    is_closed: bool,
}

impl Clients {
    pub(crate) fn insert(&mut self, tag: u64, client: Client) {
        *self.by_key.entry(client.key).or_default() += 1;
        self.tokens += client.tokens;
        self.by_tag.insert(tag, client);
    }

    pub(crate) fn remove(&mut self, tag: u64) -> Option<Client> {
        let client = self.by_tag.remove(&tag)?;
        self.tokens -= client.tokens;
        if let Some(open) = self.by_key.get_mut(&client.key) {
            *open -= 1;
            if *open == 0 {
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
        let own = self.by_key.get(&key).copied().unwrap_or(0);
        if own + n > limits.answers_per_key {
            let why = format!("{own} answers of this key are open, of at most {}", limits.answers_per_key);
            return Err((Rejected::KeyLimit, why));
        }
        if self.tokens.saturating_add(tokens) > limits.tokens {
            let why = format!(
                "open answers and their prompts may have {} tokens, of at most {}",
                self.tokens, limits.tokens
            );
            return Err((Rejected::TokensWaiting, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(key: u64, tokens: u64) -> Client {
        let (buffer, context) = (Arc::default(), Arc::default());
        Client { buffer, context, key, key_metrics: None, tokens, delivered_at: None }
    }

    #[test]
    fn admission_counts_answers_keys_and_tokens() {
        let limits = AdmissionLimits { answers: 3, answers_per_key: 2, tokens: 100 };
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
}

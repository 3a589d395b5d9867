use kvasir_exec::Abilities;
use serde::{Deserialize, Serialize};

/// What a core may never exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Sequences that run at once.
    pub max_num_seqs: u32,
    /// Tokens in one step.
    pub max_num_batched_tokens: u32,
    /// Prompt and outputs together.
    pub max_model_len: u32,
    /// Tokens of one prompt; none leaves room for one output.
    pub max_prompt: Option<u32>,
    /// Requests that wait at once.
    pub max_waiting: u32,
    /// Slots that admission leaves free, in thousandths of the capacity.
    pub watermark: u32,
    /// Prompts look for what earlier requests left.
    pub prefix_cache: bool,
    /// Sequences with state beside their K and V that run at once; none sets no bound.
    pub state_slots: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_num_seqs: 512,
            max_num_batched_tokens: 16384,
            max_model_len: 4096,
            max_prompt: None,
            max_waiting: 1 << 20,
            watermark: 0,
            prefix_cache: true,
            state_slots: None,
        }
    }
}

impl Limits {
    /// Tokens of the longest prompt that is taken.
    pub fn longest_prompt(&self) -> u32 {
        self.max_prompt.unwrap_or(self.max_model_len.saturating_sub(1))
    }

    /// Rows that a decode step can have when each feeds `tokens`: what it makes sense to prepare for.
    pub fn decode_bound(&self, tokens: u32) -> u32 {
        self.max_num_seqs.min(self.max_num_batched_tokens / tokens.max(1))
    }

    /// No more than what an executor can do.
    pub fn within(mut self, abilities: &Abilities) -> Self {
        self.max_num_seqs = self.max_num_seqs.min(abilities.pool_rows);
        self.max_num_batched_tokens = self.max_num_batched_tokens.min(abilities.max_tokens);
        self
    }
}

/// What steps cost, as measured by whoever runs them. A policy reads no clock; these are handed in and recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Nanoseconds of a step with one decode row.
    pub step_ns: u64,
    /// Nanoseconds that each further decode row adds.
    pub row_ns: u64,
    /// Nanoseconds that each token of a prompt adds.
    pub token_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_bound() {
        let bound = |seqs, budget, tokens| {
            Limits { max_num_seqs: seqs, max_num_batched_tokens: budget, ..Limits::default() }
                .decode_bound(tokens)
        };
        let got = [
            bound(256, 16384, 4),
            bound(256, 512, 4),
            bound(256, 512, 1),
            bound(256, 2, 4),
            bound(1024, 512, 8),
        ];
        assert_eq!(got, [256, 128, 256, 0, 64]);
    }
}

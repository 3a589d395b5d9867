use super::speaker::Ended;
use serde_json::{Value, json};

/// Tokens of a request, over all its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Of the prompts.
    pub(super) prompt: u64,
    /// Of those, how many were in the cache.
    pub(super) cached: u64,
    /// Of the answers.
    pub(super) completion: u64,
    /// Of those, how many were spent on reasoning.
    pub(super) reasoning: u64,
}

impl Usage {
    /// With an answer that ended; the prompt counts once, with its first answer.
    pub(super) fn add(self, first: bool, ended: &Ended) -> Self {
        let once = |n: u32| if first { u64::from(n) } else { 0 };
        Self {
            prompt: self.prompt + once(ended.prompt),
            cached: self.cached + once(ended.cached),
            completion: self.completion + u64::from(ended.tokens),
            reasoning: self.reasoning + u64::from(ended.reasoning),
        }
    }

    pub(super) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}

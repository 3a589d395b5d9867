//! Token usage of a request, summed over its answers.

use crate::http::answers::answer_stream::AnswerOutcome;
use serde_json::{Value, json};

/// Token counts of a request, over all its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Prompt tokens.
    pub(crate) prompt: u64,
    /// Prompt tokens found in the prefix cache.
    pub(crate) cached: u64,
    /// Answer tokens.
    pub(crate) completion: u64,
    /// Reasoning tokens among them.
    pub(crate) reasoning: u64,
}

impl Usage {
    /// Adds an ended answer; a prompt counts once, with its first answer.
    pub(crate) fn add(self, first: bool, ended: &AnswerOutcome) -> Self {
        let once = |n: u32| if first { u64::from(n) } else { 0 };
        Self {
            prompt: self.prompt + once(ended.prompt),
            cached: self.cached + once(ended.cached),
            completion: self.completion + u64::from(ended.tokens),
            reasoning: self.reasoning + u64::from(ended.reasoning),
        }
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }
}

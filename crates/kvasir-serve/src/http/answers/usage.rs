//! Token usage of a request, summed over its answers.

use crate::http::answers::answer_stream::AnswerOutcome;
use kvasir_kv::CacheEnd;
use serde_json::{Value, json};

/// Token counts of a request, over all its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Prompt tokens.
    pub(crate) prompt: u64,
    /// Prompt tokens found in the prefix cache.
    pub(crate) cached: u64,
    /// Prompt tokens that matched cached K/V.
    pub(crate) matched: u64,
    /// The short prefix hit with the most uncached tokens: their number, and the reason.
    pub(crate) cache_end: Option<(u32, CacheEnd)>,
    /// Answer tokens.
    pub(crate) completion: u64,
    /// Reasoning tokens among them.
    pub(crate) reasoning: u64,
    /// Drafts of speculative decoding that were verified, and those accepted.
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
}

impl Usage {
    /// Adds an ended answer; a prompt counts once, with its first answer.
    pub(crate) fn add(self, first: bool, ended: &AnswerOutcome) -> Self {
        let of_prompt = |n: u32| if first { u64::from(n) } else { 0 };
        let missing = ended.prompt.saturating_sub(ended.cached);
        let cache_end = ended.cache_end.filter(|_| first).map(|cache_end| (missing, cache_end));
        Self {
            prompt: self.prompt + of_prompt(ended.prompt),
            cached: self.cached + of_prompt(ended.cached),
            matched: self.matched + of_prompt(ended.matched),
            cache_end: self.cache_end.max(cache_end),
            completion: self.completion + u64::from(ended.tokens),
            reasoning: self.reasoning + u64::from(ended.reasoning),
            drafted: self.drafted + u64::from(ended.drafted),
            accepted: self.accepted + u64::from(ended.accepted),
        }
    }

    /// Token details of the prompt, with `cache_end` for a short prefix hit.
    pub(crate) fn prompt_details(self) -> Value {
        let mut details = json!({"cached_tokens": self.cached, "matched_tokens": self.matched});
        if let Some((_, cache_end)) = self.cache_end {
            details["cache_end"] = cache_end.label().into();
        }
        details
    }

    /// Token details of the answer, with draft counts if drafts were verified.
    pub(crate) fn details(self) -> Value {
        let mut details = json!({"reasoning_tokens": self.reasoning});
        if self.drafted > 0 {
            details["accepted_prediction_tokens"] = self.accepted.into();
            details["rejected_prediction_tokens"] = (self.drafted - self.accepted).into();
        }
        details
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": self.prompt_details(),
            "completion_tokens_details": self.details(),
        })
    }
}

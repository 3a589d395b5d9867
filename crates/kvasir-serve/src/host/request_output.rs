//! Output of one answer, as it accumulates in the reader's buffer, and the memory charged for it.

use crate::context::request_context::Tenant;
use crate::error::ApiError;
use crate::memory_budget::{HeldMemory, MAX_UNREAD, STREAMS};
use kvasir_engine::Summary;
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;
use std::time::Instant;

/// Output of one answer since it was last read. Its buffers are reused.
#[derive(Debug, Default)]
pub struct RequestOutput {
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Their log-probabilities, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log-probabilities of the prompt's tokens from the second on, with the first output if
    /// requested.
    pub scores: Vec<TokenLogprobs>,
    /// Prompt tokens served from the KV cache, once, when the request is admitted.
    pub cached: Option<u32>,
    /// When the request was admitted; set together with `cached`.
    pub admitted: Option<Instant>,
    /// Prompt tokens whose K/V is written, and when the step that wrote the last of them was
    /// delivered, if the request has `return_progress`.
    pub processed: Option<(u32, Instant)>,
    /// Hidden state of the prompt's last token, with the first output if requested.
    pub hidden: Vec<f32>,
    /// The outcome, with the last output.
    pub ended: Option<Summary>,
    unread: Unread,
}

impl RequestOutput {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.hidden.clear();
        self.cached = None;
        self.admitted = None;
        self.processed = None;
        self.ended = None;
        self.unread = Unread::default();
    }

    /// Charges what was added since the last call to the budget of streams. Fails if the reader is
    /// too far behind.
    pub(crate) fn charge(&mut self, tenant: Tenant) -> Result<(), ApiError> {
        let bytes_of = |list: &[TokenLogprobs]| {
            // All entries of a request have the same number of alternatives.
            let top = list.last().map_or(0, |last| size_of_val(&*last.top));
            list.len() * (size_of::<TokenLogprobs>() + top)
        };
        let flat = size_of_val(&*self.tokens) + size_of_val(&*self.hidden);
        self.unread.grow_to(flat + bytes_of(&self.logprobs) + bytes_of(&self.scores), tenant)
    }
}

/// Memory charged for a backlog. Most backlogs have at most [`UNCHARGED`] bytes, which are not
/// charged.
#[derive(Debug, Default)]
struct Unread(Option<HeldMemory>);

/// Maximum bytes of a backlog that is not charged.
const UNCHARGED: usize = 64 << 10;
/// Granularity of charges, in bytes.
const CHARGED_AT_ONCE: usize = 64 << 10;

impl Unread {
    fn grow_to(&mut self, bytes: usize, tenant: Tenant) -> Result<(), ApiError> {
        if bytes <= UNCHARGED {
            return Ok(());
        }
        let memory = self.0.get_or_insert_with(|| STREAMS.hold_for(tenant));
        memory.grow_within(bytes.next_multiple_of(CHARGED_AT_ONCE), MAX_UNREAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlogs_are_charged_until_they_are_cleared() {
        let (tenant, mut output) = (Tenant::Key(4711), RequestOutput::default());
        let held = || STREAMS.held_of(tenant);
        output.tokens.resize(UNCHARGED / 4, 7);
        output.charge(tenant).unwrap();
        assert_eq!(held(), 0);
        let logprobs = TokenLogprobs { chosen: 0.0, top: vec![(7, 0.0); 20] };
        output.logprobs = vec![logprobs.clone(); 1000];
        output.charge(tenant).unwrap();
        assert!((160_000 + UNCHARGED..400_000).contains(&held()), "{}", held());
        output.scores = vec![logprobs; MAX_UNREAD / 160];
        assert!(output.charge(tenant).is_err(), "one answer has a limit");
        output.clear();
        assert_eq!(held(), 0);
    }
}

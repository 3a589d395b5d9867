//! `--policy prefill-first`: waiting prompts before decodes, in separate steps, with optional
//! chunked prefill and a delay factor.
//!
//! Admission reserves slots for the prompt only. A decode that finds no free slot preempts the
//! sequence admitted last, which is recomputed later. Chunks are multiples of `CHUNK_GRAIN` tokens
//! or of the block size, whichever is larger, unless the whole step has fewer.

use crate::request::finish::Refusal;
use crate::request::sequence::Sequence;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::admission::AdmissionTerms;
use crate::scheduler::limits::Limits;
use crate::scheduler::policy::Policy;
use crate::scheduler::policy::decode_pass::{decode_running, never_fits};
use crate::scheduler::schedule::Feed;
use crate::scheduler::view::SchedulerView;

/// Whether prompts are split into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunking {
    /// `--chunked-prefill off`: a prompt runs whole or waits.
    Off,
    /// Only the first prompt of a step is split, at the token budget; others that do not fit wait.
    /// The rule of nano-vllm, for the replay of its recorded cases; no flag selects it.
    First,
    /// `--chunked-prefill on`: a prompt that exceeds the token budget is split.
    On {
        /// Largest chunk of one prompt per step; none is unbounded.
        cap: Option<u32>,
    },
}

/// Prefill before decode, never mixed in one step.
///
/// A prompt is admitted only if the KV cache has slots for all of it. A decode without a free slot
/// preempts the sequence admitted last, in the end itself. With a delay factor, admission waits
/// until the oldest waiting request has waited that many times the duration of the last prefill
/// step.
#[derive(Debug)]
pub struct PrefillFirst {
    chunking: Chunking,
    delay_factor: f64,
}

/// Chunk granularity in tokens, unless blocks are larger.
const CHUNK_GRAIN: u32 = 64;

/// Size of the next prefill chunk: all `left` tokens if they fit `budget` (or if not `chunked`),
/// else the budget rounded down to the granularity. An `empty` step takes a smaller chunk. None if
/// the chunk would be empty.
pub fn prefill_chunk(left: u32, budget: u32, block: u32, chunked: bool, empty: bool) -> Option<u32> {
    if left <= budget || !chunked {
        return Some(left);
    }
    let grain = block.max(CHUNK_GRAIN);
    match budget / grain * grain {
        0 if empty => Some(budget),
        0 => None,
        whole => Some(whole),
    }
}

impl PrefillFirst {
    /// A prefill-first policy; a delay factor of 0 admits immediately.
    pub fn new(chunking: Chunking, delay_factor: f64) -> Self {
        Self { chunking, delay_factor }
    }

    /// Whether the delay factor permits admissions in this step.
    fn delay_has_passed(&self, view: &SchedulerView<'_>) -> bool {
        if self.delay_factor <= 0.0 || view.running() == 0 {
            return true;
        }
        let arrived = |entry: u32| view.sequence(entry).timings().arrived;
        let Some(oldest) = view.waiting_in_order().map(arrived).min() else { return true };
        view.now().saturating_sub(oldest) as f64 > self.delay_factor * view.costs().prefill_ns as f64
    }

    /// Schedules the next chunk of one prompt. False if no further prompt may be fed in this step.
    fn feed_prompt(&self, view: &mut SchedulerView<'_>, entry: u32) -> bool {
        let left = view.sequence(entry).to_feed();
        if left == 0 {
            return true;
        }
        let share = view.prefill_tokens_left(entry);
        let Some(tokens) = self.chunk(view, entry, left) else {
            view.defer(entry, DeferReason::ChunkTooSmall);
            // If the key's share is the limit, other keys may still have theirs.
            return share < view.token_budget();
        };
        let tokens = tokens.min(view.chunk_limit(entry));
        match view.feed(entry, Feed { tokens, ..Feed::default() }) {
            Ok(()) => true,
            Err(reason) => {
                view.defer(entry, reason);
                false
            }
        }
    }

    /// Size of the next chunk of a prompt with `left` tokens to feed; `None` if it must wait for
    /// the next step.
    fn chunk(&self, view: &SchedulerView<'_>, entry: u32, left: u32) -> Option<u32> {
        // Prompt tokens that its key may still feed in this step.
        let share = view.prefill_tokens_left(entry);
        let (budget, empty) = (view.token_budget(), view.scheduled_rows() == 0);
        if share == 0 {
            return None;
        }
        match self.chunking {
            // Whole or not at all, except for the first prompt of the step.
            Chunking::First => (empty || left <= budget.min(share)).then(|| left.min(budget).min(share)),
            // Recomputation after a preemption may exceed one step's budget; only then is it split.
            Chunking::Off if left <= view.limits().max_num_batched_tokens => {
                // A prompt longer than the key's whole share runs if it is the key's first in the
                // step.
                let is_within_share = left <= share || view.is_first_prompt_of_key(entry);
                (left <= budget && is_within_share).then_some(left)
            }
            Chunking::Off => empty.then_some(budget),
            Chunking::On { cap } => {
                let left = left.min(cap.unwrap_or(u32::MAX));
                // A share is used whole: rounded down to the granularity, it could be nothing.
                if share < budget {
                    return (share > 0).then(|| left.min(share));
                }
                prefill_chunk(left, budget, view.block_size(), true, empty)
            }
        }
    }

    /// Feeds prompts in progress, then admits waiting requests in queue order.
    fn prefill(&self, view: &mut SchedulerView<'_>) {
        let admits = self.delay_has_passed(view);
        let budget = view.token_budget();
        view.share_prefill(|_| budget);
        let visited = if view.prefilling() > 0 { view.running() } else { 0 };
        for i in 0..visited {
            let Some(entry) = view.running_at(i) else { break };
            if view.sequence(entry).is_prefilling() && !self.feed_prompt(view, entry) {
                return;
            }
        }
        if !admits {
            view.defer_rest_waiting(DeferReason::Delay);
            return;
        }
        while let Some(entry) = view.next_waiting() {
            if never_fits(view, entry) {
                view.finish_capacity(entry);
                continue;
            }
            let reserve_to = self.reserve_to(view.sequence(entry), view.capacity());
            let terms = AdmissionTerms { reserve_to, hit_limit: u32::MAX };
            let refused = self.no_budget(view, entry).or_else(|| view.admit(entry, terms).err());
            if let Some(reason) = refused {
                view.defer(entry, reason);
                if view.pass_over(entry, reason) {
                    continue;
                }
                return;
            }
            if !self.feed_prompt(view, entry) {
                return;
            }
        }
    }

    /// Checks the token budget for a waiting request, net of its prefix-cache hit, before it is
    /// admitted.
    fn no_budget(&self, view: &mut SchedulerView<'_>, entry: u32) -> Option<DeferReason> {
        if view.token_budget().min(view.prefill_tokens_left(entry)) == 0 {
            return Some(DeferReason::TokenBudget);
        }
        let len = view.sequence(entry).len();
        if len <= view.token_budget().min(view.prefill_tokens_left(entry)) {
            return None;
        }
        let left = len - view.lookup(entry).tokens.min(len);
        self.chunk(view, entry, left).is_none().then_some(DeferReason::TokenBudget)
    }
}

impl Policy for PrefillFirst {
    fn name(&self) -> &'static str {
        "prefill-first"
    }

    fn reserve_to(&self, sequence: &Sequence, _: u32) -> u32 {
        sequence.len()
    }

    fn schedule(&mut self, view: &mut SchedulerView<'_>) {
        if view.decodes_are_due() {
            decode_running(view);
            if view.scheduled_rows() > 0 {
                view.defer_rest_running(DeferReason::Interleave);
                return view.defer_rest_waiting(DeferReason::Interleave);
            }
        }
        self.prefill(view);
        if view.scheduled_rows() > 0 {
            view.defer_rest_running(DeferReason::PrefillFirst);
        } else {
            decode_running(view);
        }
    }

    fn accepts(&self, prompt_len: u32, limits: &Limits) -> Result<(), Refusal> {
        let budget = limits.max_num_batched_tokens;
        match self.chunking {
            Chunking::Off if prompt_len > budget => Err(Refusal::OverBudget { tokens: prompt_len, budget }),
            _ => Ok(()),
        }
    }
}

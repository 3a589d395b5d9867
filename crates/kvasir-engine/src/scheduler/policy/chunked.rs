//! `--policy chunked`: chunked prefill under a token budget, optionally mixed with decodes in one
//! step.
//!
//! - `Mixing::Off`: a step holds prefill chunks or decodes, never both; prefill has priority.
//! - `Mixing::On`: stall-free batching as in Sarathi-Serve. Decodes are picked first, and prefill
//!   chunks take the rest of the step. With a target, the cost model sizes the chunks so that a
//!   mixed step keeps its time.
//!
//! Admission reserves slots for all that a sequence may write, so requests are not preempted.
//! Prompts in progress are fed before new ones start.

use crate::request::timings::Nanos;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::PublishAt;
use crate::scheduler::kv_manager::admission::AdmissionTerms;
use crate::scheduler::limits::Costs;
use crate::scheduler::policy::Policy;
use crate::scheduler::policy::decode_pass::{decode_running, never_fits};
use crate::scheduler::schedule::Feed;
use crate::scheduler::view::SchedulerView;

/// Whether a step may mix prefill chunks and decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// Prefill first; decodes run in steps without prefill.
    Off,
    /// Every step decodes all it can and fills the rest of the budget with prefill chunks.
    On {
        /// Step-time target: prefill chunks are cut so that a mixed step meets it, as far as costs
        /// are known.
        target: Option<StepTarget>,
    },
}

/// Time target of a mixed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepTarget {
    /// Absolute, in nanoseconds.
    Time(Nanos),
    /// Relative: percent of the predicted time of its decodes alone.
    Percent(u32),
}

/// Chunked prefill under a token budget per step, with slots reserved for all that running
/// sequences may still write, so that none is preempted.
#[derive(Debug)]
pub struct Chunked {
    max_extend_tokens: u32,
    mixing: Mixing,
}

/// Smallest chunk beside decodes, so that a time target cannot starve prefill.
const MIN_CHUNK: u32 = 16;

/// First chunk beside decodes while costs are unknown: large enough to learn from, small enough not
/// to stall decodes.
const FIRST_CHUNK: u32 = 64;

#[derive(Clone, Copy)]
struct PrefillBudget {
    tokens: u32,
    /// Set if the step has a time target.
    time: Option<TimeBudget>,
}

#[derive(Clone, Copy)]
struct TimeBudget {
    time: Nanos,
    /// Tokens that may be fed regardless of time.
    least: u32,
}

impl PrefillBudget {
    /// Largest chunk of a prompt from position `at` that fits the budget.
    fn tokens(&self, costs: &Costs, at: u32) -> u32 {
        // Very small chunks are not worth it: each makes the step read all K/V before it.
        let whole = |tokens: u32| if tokens < MIN_CHUNK { 0 } else { tokens };
        let fits = |time: TimeBudget| whole(costs.tokens_in(time.time, at).unwrap_or(0)).max(time.least);
        self.tokens.min(self.time.map_or(u32::MAX, fits))
    }

    fn exhausted(&self) -> DeferReason {
        match self.time {
            Some(_) if self.tokens > 0 => DeferReason::CostTarget,
            _ => DeferReason::TokenBudget,
        }
    }

    fn charge(&mut self, costs: &Costs, at: u32, tokens: u32) {
        self.tokens -= tokens;
        if let Some(time) = &mut self.time {
            time.time = time.time.saturating_sub(costs.tokens_take(tokens, at));
            time.least = time.least.saturating_sub(tokens);
        }
    }
}

impl Chunked {
    /// A chunked-prefill policy with at most `max_extend_tokens` prefill tokens per step (at least
    /// 1).
    pub fn new(max_extend_tokens: u32, mixing: Mixing) -> Self {
        Self { max_extend_tokens: max_extend_tokens.max(1), mixing }
    }

    /// Feeds prompts in progress, then admits waiting requests in queue order, until the budget is
    /// used up.
    fn prefill(&self, view: &mut SchedulerView<'_>, mut budget: PrefillBudget) {
        budget.tokens = budget.tokens.min(view.token_budget());
        let costs = view.costs();
        if let Some(tokens) = view.share_prefill(|at| budget.tokens(&costs, at)) {
            budget = PrefillBudget { tokens, time: None };
        }
        let visited = if view.prefilling() > 0 { view.running() } else { 0 };
        for i in 0..visited {
            let Some(entry) = view.running_at(i) else { break };
            if view.sequence(entry).is_prefilling() && view.sequence(entry).to_feed() > 0 {
                self.feed(view, entry, &mut budget);
            }
        }
        while let Some(entry) = view.next_waiting() {
            if never_fits(view, entry) {
                view.finish_capacity(entry);
                continue;
            }
            if budget.tokens(&view.costs(), 0) == 0 {
                return view.defer(entry, budget.exhausted());
            }
            let reserve_to = self.reserve_to(view.sequence(entry), view.capacity());
            let admitted = match view.prefill_tokens_left(entry) {
                0 => Err(DeferReason::TokenBudget),
                _ => view.admit(entry, AdmissionTerms { reserve_to, hit_limit: u32::MAX }).map(drop),
            };
            if let Err(reason) = admitted {
                view.defer(entry, reason);
                if view.pass_over(entry, reason) {
                    continue;
                }
                return;
            }
            if !self.feed(view, entry, &mut budget) {
                return;
            }
        }
    }

    /// Schedules the next chunk of one prompt; defers it and returns false if that fails.
    fn feed(&self, view: &mut SchedulerView<'_>, entry: u32, budget: &mut PrefillBudget) -> bool {
        let (costs, at) = (view.costs(), view.sequence(entry).claimed());
        let most = budget.tokens(&costs, at).min(view.chunk_limit(entry));
        let tokens = view.sequence(entry).to_feed().min(most).min(view.prefill_tokens_left(entry));
        let fed = match tokens {
            0 => Err(budget.exhausted()),
            _ => view.feed(entry, Feed { tokens, ..Feed::default() }),
        };
        match fed {
            Ok(()) => budget.charge(&costs, at, tokens),
            Err(reason) => view.defer(entry, reason),
        }
        fed.is_ok()
    }

    /// The prefill budget beside the decodes already scheduled.
    fn prefill_budget(&self, view: &SchedulerView<'_>, target: Option<StepTarget>) -> PrefillBudget {
        let all = PrefillBudget { tokens: self.max_extend_tokens, time: None };
        let (Some(target), Some(rows)) = (target, view.scheduled_rows().checked_sub(1)) else { return all };
        let costs = view.costs();
        let alone = costs.step_ns + costs.row_ns * rows as u64;
        let is_known = costs.tokens_in(0, 0).is_some();
        let (time, is_known) = match target {
            StepTarget::Time(target) => (target.saturating_sub(alone), is_known),
            StepTarget::Percent(share) => {
                (alone.saturating_mul(u64::from(share.saturating_sub(100))) / 100, is_known && alone > 0)
            }
        };
        match (is_known, target) {
            (true, _) => PrefillBudget { time: Some(TimeBudget { time, least: MIN_CHUNK }), ..all },
            (false, StepTarget::Time(_)) => all,
            (false, StepTarget::Percent(_)) => {
                PrefillBudget { time: Some(TimeBudget { time: 0, least: FIRST_CHUNK }), ..all }
            }
        }
    }
}

impl Policy for Chunked {
    fn name(&self) -> &'static str {
        "chunked"
    }

    fn schedule(&mut self, view: &mut SchedulerView<'_>) {
        match self.mixing {
            Mixing::Off => {
                if view.decodes_are_due() {
                    decode_running(view);
                    if view.scheduled_rows() > 0 {
                        view.defer_rest_running(DeferReason::Interleave);
                        return view.defer_rest_waiting(DeferReason::Interleave);
                    }
                }
                self.prefill(view, PrefillBudget { tokens: self.max_extend_tokens, time: None });
                match view.scheduled_rows() {
                    0 => decode_running(view),
                    _ => view.defer_rest_running(DeferReason::PrefillFirst),
                }
            }
            Mixing::On { target } => {
                decode_running(view);
                let budget = self.prefill_budget(view, target);
                self.prefill(view, budget);
            }
        }
    }

    fn publish_at(&self) -> PublishAt {
        PublishAt::Milestones
    }
}

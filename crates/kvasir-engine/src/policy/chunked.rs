//! `--policy chunked`: chunked prefill under a token budget, optionally mixed with decodes in one
//! step.
//!
//! - `Mixing::Off`: a step holds prefill chunks or decodes, never both; prefill has priority.
//! - `Mixing::On`: decodes are picked first, and prefill chunks take the rest of the step. With a
//!   target, chunks are sized by the cost model so that a mixed step keeps its time and does not
//!   stall running decodes.
//!
//! Admission reserves slots for all that a sequence may write, so requests are not preempted.
//! Prompts in progress are fed before new ones start.

use super::{
    Policy, PublishAt,
    room::{decode_running, never_fits},
};
use crate::{Admit, Costs, Desk, Feed, Nanos, Reason};

/// Whether a step may hold prompts and decodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// Prompts first; decodes run in steps without prompts.
    Off,
    /// Every step decodes all it can and gives what is left of it to prompts.
    On {
        /// A chunk beside decodes is cut so that the step takes no longer than this, as far as costs are known.
        target: Option<StepTarget>,
    },
}

/// How long a step with decodes may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepTarget {
    /// So long.
    Time(Nanos),
    /// So many hundredths of the time that its decodes take alone.
    Hundredths(u32),
}

/// `--policy chunked`: a token budget for prompts in each step, long prompts in chunks, and room kept for all that
/// running sequences may still write, so that nobody is preempted.
#[derive(Debug)]
pub struct Chunked {
    max_extend_tokens: u32,
    mixing: Mixing,
}

/// A chunk beside decodes is never smaller, so that no prompt starves under a cost target.
const LEAST_CHUNK: u32 = 16;

/// A chunk beside decodes while nobody knows what its tokens cost, where that must be learnt without a stall.
const FIRST_CHUNK: u32 = 64;

/// What is left of a step for prompts.
#[derive(Clone, Copy)]
struct Budget {
    tokens: u32,
    /// Where the step has a target.
    time: Option<Spare>,
}

/// What is left of a step's target.
#[derive(Clone, Copy)]
struct Spare {
    time: Nanos,
    /// Tokens that may be fed whatever they cost.
    least: u32,
}

impl Budget {
    /// Tokens of a prompt that may be fed from position `at` on.
    fn tokens(&self, costs: &Costs, at: u32) -> u32 {
        // Who is fed a token or two makes the step read all that lies before them.
        let whole = |tokens: u32| if tokens < LEAST_CHUNK { 0 } else { tokens };
        let fits = |spare: Spare| whole(costs.tokens_in(spare.time, at).unwrap_or(0)).max(spare.least);
        self.tokens.min(self.time.map_or(u32::MAX, fits))
    }

    /// Why there is no more of it.
    fn short(&self) -> Reason {
        match self.time {
            Some(_) if self.tokens > 0 => Reason::CostTarget,
            _ => Reason::TokenBudget,
        }
    }

    fn take(&mut self, costs: &Costs, at: u32, tokens: u32) {
        self.tokens -= tokens;
        if let Some(spare) = &mut self.time {
            spare.time = spare.time.saturating_sub(costs.tokens_take(tokens, at));
            spare.least = spare.least.saturating_sub(tokens);
        }
    }
}

impl Chunked {
    /// The policy; `max_extend_tokens` bounds the prompt tokens of one step.
    pub fn new(max_extend_tokens: u32, mixing: Mixing) -> Self {
        Self { max_extend_tokens: max_extend_tokens.max(1), mixing }
    }

    /// Prompts under way first, then newcomers, while the budget lasts.
    fn prefill(&self, desk: &mut Desk<'_>, mut budget: Budget) {
        budget.tokens = budget.tokens.min(desk.budget());
        let looked_at = if desk.prefilling() > 0 { desk.running() } else { 0 };
        for i in 0..looked_at {
            let Some(entry) = desk.running_at(i) else { break };
            if desk.sequence(entry).is_prefilling() && desk.sequence(entry).to_feed() > 0 {
                self.feed(desk, entry, &mut budget);
            }
        }
        while let Some(entry) = desk.next_waiting() {
            if never_fits(desk, entry) {
                desk.give_up(entry);
                continue;
            }
            if budget.tokens(&desk.costs(), 0) == 0 {
                return desk.hold(entry, budget.short());
            }
            let reserve_to = desk.sequence(entry).longest().min(desk.capacity());
            if let Err(reason) = desk.admit(entry, Admit { reserve_to, hit_limit: u32::MAX }) {
                return desk.hold(entry, reason);
            }
            if !self.feed(desk, entry, &mut budget) {
                return;
            }
        }
    }

    /// Feeds the next chunk of one prompt. False if it could not be.
    fn feed(&self, desk: &mut Desk<'_>, entry: u32, budget: &mut Budget) -> bool {
        let (costs, at) = (desk.costs(), desk.sequence(entry).claimed());
        let tokens = desk.sequence(entry).to_feed().min(budget.tokens(&costs, at)).min(desk.at_once(entry));
        let fed = match tokens {
            0 => Err(budget.short()),
            _ => desk.feed(entry, Feed { tokens, ..Feed::default() }),
        };
        match fed {
            Ok(()) => budget.take(&costs, at, tokens),
            Err(reason) => desk.hold(entry, reason),
        }
        fed.is_ok()
    }

    /// What fits beside the decodes already picked.
    fn beside_decodes(&self, desk: &Desk<'_>, target: Option<StepTarget>) -> Budget {
        let all = Budget { tokens: self.max_extend_tokens, time: None };
        let (Some(target), Some(rows)) = (target, desk.picked().checked_sub(1)) else { return all };
        let costs = desk.costs();
        let alone = costs.step_ns + costs.row_ns * rows as u64;
        let is_known = costs.tokens_in(0, 0).is_some();
        let (time, is_known) = match target {
            StepTarget::Time(target) => (target.saturating_sub(alone), is_known),
            StepTarget::Hundredths(share) => {
                (alone.saturating_mul(u64::from(share.saturating_sub(100))) / 100, is_known && alone > 0)
            }
        };
        match (is_known, target) {
            (true, _) => Budget { time: Some(Spare { time, least: LEAST_CHUNK }), ..all },
            (false, StepTarget::Time(_)) => all,
            (false, StepTarget::Hundredths(_)) => {
                Budget { time: Some(Spare { time: 0, least: FIRST_CHUNK }), ..all }
            }
        }
    }
}

impl Policy for Chunked {
    fn name(&self) -> &'static str {
        "chunked"
    }

    fn schedule(&mut self, desk: &mut Desk<'_>) {
        match self.mixing {
            Mixing::Off => {
                self.prefill(desk, Budget { tokens: self.max_extend_tokens, time: None });
                match desk.picked() {
                    0 => decode_running(desk),
                    _ => desk.hold_rest_running(Reason::PrefillFirst),
                }
            }
            Mixing::On { target } => {
                decode_running(desk);
                let budget = self.beside_decodes(desk, target);
                self.prefill(desk, budget);
            }
        }
    }

    fn publish_at(&self) -> PublishAt {
        PublishAt::Milestones
    }
}

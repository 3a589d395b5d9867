use super::{
    Policy, PublishAt,
    room::{decode_running, never_fits},
};
use crate::{Admit, Desk, Feed, Nanos, Reason};

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

impl Chunked {
    /// The policy; `max_extend_tokens` bounds the prompt tokens of one step.
    pub fn new(max_extend_tokens: u32, mixing: Mixing) -> Self {
        Self { max_extend_tokens: max_extend_tokens.max(1), mixing }
    }

    /// Prompts under way first, then newcomers, while the budget lasts.
    fn prefill(&self, desk: &mut Desk<'_>, budget: u32, short: Reason) {
        let mut budget = budget.min(desk.budget());
        let looked_at = if desk.prefilling() > 0 { desk.running() } else { 0 };
        for i in 0..looked_at {
            let Some(entry) = desk.running_at(i) else { break };
            if desk.sequence(entry).is_prefilling() && desk.sequence(entry).to_feed() > 0 {
                self.feed(desk, entry, &mut budget, short);
            }
        }
        while let Some(entry) = desk.next_waiting() {
            if never_fits(desk, entry) {
                desk.give_up(entry);
                continue;
            }
            if budget == 0 {
                return desk.hold(entry, short);
            }
            let reserve_to = desk.sequence(entry).longest().min(desk.capacity());
            if let Err(reason) = desk.admit(entry, Admit { reserve_to, hit_limit: u32::MAX }) {
                return desk.hold(entry, reason);
            }
            if !self.feed(desk, entry, &mut budget, short) {
                return;
            }
        }
    }

    /// Feeds the next chunk of one prompt. False if it could not be.
    fn feed(&self, desk: &mut Desk<'_>, entry: u32, budget: &mut u32, short: Reason) -> bool {
        let tokens = desk.sequence(entry).to_feed().min(*budget).min(desk.at_once(entry));
        let fed = match tokens {
            0 => Err(short),
            _ => desk.feed(entry, Feed { tokens, ..Feed::default() }),
        };
        match fed {
            Ok(()) => *budget -= tokens,
            Err(reason) => desk.hold(entry, reason),
        }
        fed.is_ok()
    }

    /// Prompt tokens that fit beside the decodes already picked.
    fn beside_decodes(&self, desk: &Desk<'_>, target: Option<StepTarget>) -> u32 {
        let costs = desk.costs();
        let (Some(target), Some(rows)) = (target, desk.picked().checked_sub(1)) else {
            return self.max_extend_tokens;
        };
        let alone = costs.step_ns + costs.row_ns * rows as u64;
        let left = match target {
            StepTarget::Time(target) => target.saturating_sub(alone),
            StepTarget::Hundredths(share) => alone.saturating_mul(u64::from(share.saturating_sub(100))) / 100,
        };
        let fits = match (left.checked_div(costs.token_ns), target) {
            (Some(tokens), _) if alone > 0 => tokens.min(u64::from(u32::MAX)) as u32,
            (_, StepTarget::Hundredths(_)) => FIRST_CHUNK,
            (Some(tokens), StepTarget::Time(_)) => tokens.min(u64::from(u32::MAX)) as u32,
            (None, StepTarget::Time(_)) => self.max_extend_tokens,
        };
        fits.max(LEAST_CHUNK).min(self.max_extend_tokens)
    }
}

impl Policy for Chunked {
    fn name(&self) -> &'static str {
        "chunked"
    }

    fn schedule(&mut self, desk: &mut Desk<'_>) {
        match self.mixing {
            Mixing::Off => {
                self.prefill(desk, self.max_extend_tokens, Reason::TokenBudget);
                match desk.picked() {
                    0 => decode_running(desk),
                    _ => desk.hold_rest_running(Reason::PrefillFirst),
                }
            }
            Mixing::On { target } => {
                decode_running(desk);
                let budget = self.beside_decodes(desk, target);
                let cut = budget < self.max_extend_tokens;
                self.prefill(desk, budget, if cut { Reason::CostTarget } else { Reason::TokenBudget });
            }
        }
    }

    fn publish_at(&self) -> PublishAt {
        PublishAt::Milestones
    }
}

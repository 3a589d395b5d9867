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
        target: Option<Nanos>,
    },
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

impl Chunked {
    /// The policy; `max_extend_tokens` bounds the prompt tokens of one step.
    pub fn new(max_extend_tokens: u32, mixing: Mixing) -> Self {
        Self { max_extend_tokens: max_extend_tokens.max(1), mixing }
    }

    /// Prompts under way first, then newcomers, while the budget lasts.
    fn prefill(&self, desk: &mut Desk<'_>, budget: u32, short: Reason) {
        let mut budget = budget.min(desk.budget());
        for i in 0..desk.running() {
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
    fn beside_decodes(&self, desk: &Desk<'_>, target: Option<Nanos>) -> u32 {
        let costs = desk.costs();
        let (Some(target), Some(rows)) = (target, desk.picked().checked_sub(1)) else {
            return self.max_extend_tokens;
        };
        let spent = costs.step_ns + costs.row_ns * rows as u64;
        match target.saturating_sub(spent).checked_div(costs.token_ns) {
            None => self.max_extend_tokens,
            Some(tokens) => {
                (tokens.min(u64::from(u32::MAX)) as u32).max(LEAST_CHUNK).min(self.max_extend_tokens)
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

//! Constraint of a whole answer: follows a compiled grammar token by token, with masks computed
//! ahead of time.
//!
//! `expect` announces the next output to a helper thread, which computes its token mask while the
//! device runs the step. `allowed` uses that mask, or computes it inline.
//!
//! Invariant: the state follows from the output alone (`matcher_state`).

use crate::grammar::{
    mask_threads::{AnnouncedOutput, LookAhead, MaskThreads, locked},
    matcher_state::MatcherState,
    matcher_watchdog::MatcherWatchdog,
};
use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constraint, Follower};
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use std::{
    fmt,
    sync::{Arc, Mutex},
};

/// A compiled grammar, shared by the sequences of a request.
pub(crate) struct AnswerConstraint {
    /// Matcher at the start of an answer. Locked only to be cloned.
    start: Arc<Mutex<Matcher>>,
    mask_threads: Arc<MaskThreads>,
    watchdog: MatcherWatchdog,
}

impl AnswerConstraint {
    pub(super) fn new(start: Matcher, mask_threads: Arc<MaskThreads>, watchdog: MatcherWatchdog) -> Self {
        Self { start: Arc::new(Mutex::new(start)), mask_threads, watchdog }
    }
}

impl fmt::Debug for AnswerConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Form")
    }
}

impl Constraint for AnswerConstraint {
    fn follow(&self) -> Box<dyn Follower> {
        let state = State {
            matcher: MatcherState::new(self.start.clone(), self.watchdog.clone()),
            announced: AnnouncedOutput::default(),
        };
        Box::new(AnswerFollower {
            state: Arc::new(Mutex::new(state)),
            mask_threads: self.mask_threads.clone(),
            bits: Vec::new(),
        })
    }
}

/// The per-sequence follower.
struct AnswerFollower {
    state: Arc<Mutex<State>>,
    mask_threads: Arc<MaskThreads>,
    bits: Vec<u32>,
}

impl fmt::Debug for AnswerFollower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Following")
    }
}

impl Follower for AnswerFollower {
    fn allowed(&mut self, output: &[Token]) -> Allowed<'_> {
        let mut state = locked(&self.state);
        let Some(mask) = state.allowed(output) else { return Allowed::Nothing };
        self.bits.clear();
        self.bits.extend_from_slice(mask.as_slice());
        Allowed::Only(&self.bits)
    }

    fn expect(&mut self, output: &[Token]) {
        self.mask_threads.announce(&self.state, output);
    }
}

/// State of one sequence: its matcher, and the output announced for the next mask.
#[derive(Debug)]
struct State {
    matcher: MatcherState,
    announced: AnnouncedOutput,
}

impl State {
    fn allowed(&mut self, output: &[Token]) -> Option<&SimpleVob> {
        self.announced.withdraw();
        self.matcher.allowed(output)
    }
}

impl LookAhead for State {
    fn announced(&mut self) -> &mut AnnouncedOutput {
        &mut self.announced
    }

    fn compute(&mut self, output: &[Token]) {
        self.allowed(output);
    }
}

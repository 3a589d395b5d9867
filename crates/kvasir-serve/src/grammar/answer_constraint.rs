//! Constraint of a whole answer: follows a compiled grammar token by token, with masks computed
//! ahead of time.
//!
//! `expect` announces the next output to a helper thread, which computes its token mask while the
//! device runs the step. `allowed` uses that mask, or computes it inline.
//!
//! Invariant: the state follows from the output alone. `go_to` rolls the matcher back by the tokens
//! that differ, or restarts it from the beginning.

use crate::grammar::{
    mask_threads::{LookAhead, MaskThreads, locked},
    matcher_watchdog::{MatcherWatchdog, WatchedMatcher},
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
            start: self.start.clone(),
            matcher: self.watchdog.watch(locked(&self.start).clone()),
            watchdog: self.watchdog.clone(),
            consumed: Vec::new(),
            mask: None,
            expected: Vec::new(),
            is_expecting: false,
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
        let mut state = locked(&self.state);
        state.expected.clear();
        state.expected.extend_from_slice(output);
        state.is_expecting = true;
        drop(state);
        self.mask_threads.enqueue(self.state.clone());
    }
}

/// Matcher state of one sequence.
struct State {
    start: Arc<Mutex<Matcher>>,
    matcher: WatchedMatcher,
    watchdog: MatcherWatchdog,
    /// The tokens that `matcher` has consumed.
    consumed: Vec<Token>,
    /// Token mask after `consumed`, once computed.
    mask: Option<SimpleVob>,
    /// The output announced for the next `allowed`.
    expected: Vec<Token>,
    is_expecting: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

impl State {
    /// Token mask after `output`; `None` if no token is allowed or `output` violates the grammar.
    fn allowed(&mut self, output: &[Token]) -> Option<&SimpleVob> {
        self.is_expecting = false;
        if !self.go_to(output) {
            return None;
        }
        if self.mask.is_none() {
            // A grammar that exceeds the matcher's limits fails here; the sequence ends with an
            // error, never with unconstrained output.
            self.mask = self.matcher.work(Matcher::compute_mask_or_eos).ok();
        }
        self.mask.as_ref().filter(|mask| !mask.is_zero())
    }

    /// Moves the matcher to `output`: rolls back tokens that are not in it, then consumes the new
    /// ones. False if `output` violates the grammar.
    fn go_to(&mut self, output: &[Token]) -> bool {
        let mut same = self.consumed.iter().zip(output).take_while(|(a, b)| a == b).count();
        let wrong = self.consumed.len() - same;
        let is_lost = self.matcher.matcher().is_error();
        if is_lost || wrong > 0 && self.matcher.work(|matcher| matcher.rollback(wrong)).is_err() {
            self.matcher = self.watchdog.watch(locked(&self.start).clone());
            same = 0;
        }
        if same < self.consumed.len() || same < output.len() {
            self.mask = None;
        }
        self.consumed.truncate(same);
        for token in &output[same..] {
            let take = |matcher: &mut Matcher| {
                !matcher.is_stopped() && matches!(matcher.try_consume_tokens(&[*token]), Ok(1))
            };
            if !self.matcher.work(take) {
                return false;
            }
            self.consumed.push(*token);
        }
        true
    }
}

impl LookAhead for State {
    fn look_ahead(&mut self) {
        if self.is_expecting {
            let expected = std::mem::take(&mut self.expected);
            self.allowed(&expected);
            self.expected = expected;
        }
    }
}

//! Position of one sequence in a compiled grammar: a matcher that follows the output, and the token
//! mask behind it.
//!
//! Invariant: the state follows from the output alone. `go_to` rolls the matcher back by the tokens
//! that differ, or restarts it from the beginning.

use crate::grammar::{
    mask_threads::locked,
    matcher_watchdog::{MatcherWatchdog, WatchedMatcher},
};
use kvasir_kv::Token;
use llguidance::{Matcher, toktrie::SimpleVob};
use std::{
    fmt,
    sync::{Arc, Mutex},
};

/// Matcher state of one sequence.
pub(crate) struct MatcherState {
    /// Matcher at the start of an answer. Locked only to be cloned.
    start: Arc<Mutex<Matcher>>,
    matcher: WatchedMatcher,
    watchdog: MatcherWatchdog,
    /// The tokens that `matcher` has consumed.
    consumed: Vec<Token>,
    /// The token that the grammar refused behind `consumed`, if the last output had one.
    refused: Option<Token>,
    /// Token mask after `consumed`, once computed.
    mask: Option<SimpleVob>,
}

impl fmt::Debug for MatcherState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MatcherState").field("consumed", &self.consumed.len()).finish_non_exhaustive()
    }
}

impl MatcherState {
    pub(super) fn new(start: Arc<Mutex<Matcher>>, watchdog: MatcherWatchdog) -> Self {
        let matcher = watchdog.watch(locked(&start).clone());
        Self { start, matcher, watchdog, consumed: Vec::new(), refused: None, mask: None }
    }

    /// Token mask after `output`; `None` if no token is allowed or `output` violates the grammar.
    pub(super) fn allowed(&mut self, output: &[Token]) -> Option<&SimpleVob> {
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
        let is_refused = self.refused.is_some() && self.refused == output.get(same).copied();
        if !is_lost && wrong == 0 && is_refused {
            return false;
        }
        self.refused = None;
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
                self.refused = Some(*token);
                return false;
            }
            self.consumed.push(*token);
        }
        true
    }
}

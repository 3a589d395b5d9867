//! [`DraftTrace`]: every round of speculative decoding, for inspection: what was proposed, what the
//! target verified and accepted.

use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{DraftCandidate, Step, StepError};
use kvasir_kv::Token;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One round: a step of the target that verified drafts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftRound {
    /// Tokens before the newest one.
    pub context_len: u32,
    /// The newest token, which the target runs with the drafts.
    pub root: Token,
    /// Everything that was proposed.
    pub candidates: Vec<DraftCandidate>,
    /// Numbers of the candidates that were verified.
    pub kept: Vec<u32>,
    /// The tokens of the accepted candidates.
    pub accepted: Vec<Token>,
    /// The target's own token after them.
    pub bonus: Token,
}

/// The rounds of an engine's requests so far; clones share them.
#[derive(Clone, Debug, Default)]
pub struct DraftTrace(Arc<Mutex<Vec<DraftRound>>>);

impl DraftTrace {
    /// Takes the rounds since the last call, in order.
    pub fn take(&self) -> Vec<DraftRound> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Collects rounds while steps complete.
#[derive(Default)]
pub(crate) struct DraftObserver {
    trace: DraftTrace,
    /// Proposals that were not verified yet, by request.
    proposed: HashMap<u64, Vec<DraftCandidate>>,
}

impl DraftObserver {
    pub(crate) fn new() -> (Self, DraftTrace) {
        let observer = Self::default();
        let trace = observer.trace.clone();
        (observer, trace)
    }

    fn observe(&mut self, step: &Step) {
        let (batch, output) = (&step.batch, &step.output);
        let rows = batch.rows.iter().zip(&output.rows).enumerate();
        for (i, (row, out)) in rows.filter(|(_, (row, _))| row.drafts.count > 0) {
            let (tokens, sampled) = (&batch.tokens[row.tokens.range()], &output.tokens[out.tokens.range()]);
            let (fed, drafts) = tokens.split_at(tokens.len() - row.drafts.count as usize);
            let parents = row.drafts.tree.map(|tree| &batch.parents[tree.range()]);
            let mut accepted = Vec::new();
            step.accepted(i, &mut accepted);
            let parent = |draft: usize| parents.map_or(draft, |parents| parents[draft] as usize);
            let candidates = self.proposed.remove(&row.request).unwrap_or_else(|| chain(drafts));
            let kept = kept(&candidates, drafts, parent);
            let at = accepted.last().map_or(0, |node| *node as usize);
            let round = DraftRound {
                context_len: row.cached,
                root: fed.last().copied().unwrap_or_default(),
                candidates,
                kept,
                accepted: accepted.iter().map(|node| drafts[*node as usize - 1]).collect(),
                bonus: sampled.get(at).copied().unwrap_or_default(),
            };
            self.trace.0.lock().unwrap_or_else(PoisonError::into_inner).push(round);
        }
        for proposal in &output.proposals {
            let candidates = output.candidates[proposal.candidates.range()].to_vec();
            self.proposed.insert(batch.rows[proposal.row as usize].request, candidates);
        }
    }
}

/// The candidates of a drafter on the host: the chain itself.
fn chain(drafts: &[Token]) -> Vec<DraftCandidate> {
    let one = |(token, at): (&Token, i32)| DraftCandidate {
        token: *token,
        parent: at - 1,
        level: at as u32 + 1,
        kept: true,
        ..DraftCandidate::default()
    };
    drafts.iter().zip(0..).map(one).collect()
}

/// The candidates that the target verified: for each draft the one with its token under its parent.
fn kept(candidates: &[DraftCandidate], drafts: &[Token], parent: impl Fn(usize) -> usize) -> Vec<u32> {
    let mut numbers: Vec<i32> = vec![-1];
    for (i, token) in drafts.iter().enumerate() {
        let parent = numbers[parent(i)];
        let is_it = |one: &DraftCandidate| one.parent == parent && one.token == *token;
        numbers.push(candidates.iter().position(is_it).map_or(-1, |at| at as i32));
    }
    numbers[1..].iter().filter_map(|number| u32::try_from(*number).ok()).collect()
}

impl Observer for DraftObserver {
    fn scheduled(&mut self, _: &Core, _: &Step) {}

    fn completed(&mut self, _: &Core, step: &Step, result: &Result<(), StepError>, _: Nanos) {
        if result.is_ok() {
            self.observe(step);
        }
    }
}

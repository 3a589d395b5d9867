//! How many drafts a step verifies, and for which rows.
//!
//! *Adaptive* width: the drafts of all rows compete. They are taken in falling order of the
//! probability that they are accepted with all their ancestors, as many as give the most expected
//! tokens per second:
//!
//! `(rows + Σ probability) / time(rows + drafts)`
//!
//! A draft is never likelier than its parent, so what is taken is a chain's beginning or a tree's
//! top. With one stream and cheap steps many are taken, with 64 streams or poor guesses none. *Fixed*
//! width verifies every draft that is proposed, as recorded cases want it.
//!
//! Every verification updates the acceptance estimates.

use crate::request::proposal::{Evidence, Proposal};
use crate::scheduler::requests::Requests;
use crate::speculation::acceptance::Acceptance;
use crate::speculation::step_times::{LEAST_GAIN, StepTimes};

/// How the number of drafts of a step is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftWidth {
    /// Where expected tokens per second are highest.
    Adaptive,
    /// All that are proposed.
    #[default]
    Fixed,
}

/// A draft that competes for a place in the step.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    entry: u32,
    draft: u32,
    probability: f32,
}

/// Chooses the drafts that a step verifies, by their measured acceptance.
#[derive(Debug, Default)]
pub(crate) struct WidthControl {
    acceptance: Acceptance,
    candidates: Vec<Candidate>,
    /// Scratch: probability of each node of one proposal.
    nodes: Vec<f32>,
    /// Highest draft probability of each proposal that the last `choose` dropped entirely.
    dropped: Vec<f32>,
    numbers: Vec<i32>,
}

/// How much of a request's record a verification replaces.
const RELIABILITY_WEIGHT: f32 = 0.1;

impl WidthControl {
    /// Updates the acceptance rates with a verified proposal, of which the nodes `accepted`, numbered
    /// from 1, were accepted. `reliability` is the request's own record.
    pub(crate) fn observe_drafts(&mut self, drafts: &Proposal, accepted: &[u32], reliability: &mut f32) {
        let mut expected = 0.0;
        self.probabilities(drafts, 1.0);
        for (i, evidence) in drafts.evidence.iter().enumerate() {
            let parent = drafts.parent(i) as u32;
            expected += self.nodes[i + 1];
            // A draft is tested only if all before it were right.
            if parent == 0 || accepted.contains(&parent) {
                self.acceptance.observe(*evidence, accepted.contains(&(i as u32 + 1)));
            }
        }
        if expected > 0.0 {
            let ratio = (accepted.len() as f32 / expected).min(2.0);
            *reliability += (ratio - *reliability) * RELIABILITY_WEIGHT;
        }
    }

    /// Writes into `nodes` the probability that each node is accepted, its ancestors included.
    fn probabilities(&mut self, drafts: &Proposal, reliability: f32) {
        self.nodes.clear();
        self.nodes.push(1.0);
        for i in 0..drafts.tokens.len() {
            let evidence = drafts.evidence.get(i).copied().unwrap_or(Evidence { class: 0, share: 0.5 });
            let own = (self.acceptance.estimate(evidence) * reliability.clamp(0.1, 1.1)).min(0.995);
            let parent = self.nodes[drafts.parent(i)];
            self.nodes.push(parent * own);
        }
    }

    /// Drops the drafts that the next step is faster without. Returns the highest draft probability
    /// of each proposal that was dropped entirely. Linear in the running sequences, and
    /// `n log n` in their drafts.
    pub(crate) fn choose(&mut self, requests: &mut Requests, times: &StepTimes) -> &[f32] {
        self.dropped.clear();
        if !requests.has_any_drafts() {
            return &self.dropped;
        }
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let mut rows = 0;
        for i in 0..requests.running().len() {
            let entry = requests.running()[i];
            let sequence = &requests[entry];
            rows += u32::from(!sequence.prefilling);
            let drafts = &sequence.cold.drafts;
            if sequence.in_flight > 0 || drafts.tokens.is_empty() {
                continue;
            }
            self.probabilities(drafts, sequence.cold.reliability);
            let nodes = self.nodes[1..].iter().zip(0..);
            candidates.extend(nodes.map(|(probability, draft)| Candidate {
                entry,
                draft,
                probability: *probability,
            }));
        }
        // A parent comes before its children of the same probability.
        candidates.sort_unstable_by(|a, b| {
            let order = b.probability.total_cmp(&a.probability);
            order.then(a.entry.cmp(&b.entry)).then(a.draft.cmp(&b.draft))
        });
        let taken = most_per_second(times, rows, &candidates);
        let (taken, dropped) = candidates.split_at_mut(taken);
        if !dropped.is_empty() {
            taken.sort_unstable_by_key(|one| (one.entry, one.draft));
            dropped.sort_unstable_by_key(|one| one.entry);
            for dropped in dropped.chunk_by(|a, b| a.entry == b.entry) {
                let entry = dropped[0].entry;
                let keeps = |draft: usize| {
                    let key = (entry, draft as u32);
                    taken.binary_search_by_key(&key, |one| (one.entry, one.draft)).is_ok()
                };
                requests[entry].cold.drafts.retain(keeps, &mut self.numbers);
                requests.sync_drafts(entry);
                if requests[entry].cold.drafts.tokens.is_empty() {
                    self.dropped.push(dropped.iter().map(|one| one.probability).fold(0.0, f32::max));
                }
            }
        }
        self.candidates = candidates;
        &self.dropped
    }
}

/// How many of the candidates, the likeliest first, give the most expected tokens per second.
fn most_per_second(times: &StepTimes, rows: u32, candidates: &[Candidate]) -> usize {
    // Without a measured time of the plain step, there is nothing to compare drafts with.
    let Some(plain) = times.predict(rows).filter(|_| times.is_known(rows)) else { return 0 };
    let (mut best, mut most) = (0, f64::from(rows) / plain * LEAST_GAIN);
    let room = times.explored().saturating_sub(rows) as usize;
    let mut tokens = f64::from(rows);
    for (n, candidate) in candidates.iter().enumerate().take(room) {
        tokens += f64::from(candidate.probability);
        let Some(time) = times.predict(rows + n as u32 + 1) else { continue };
        let speed = tokens / time.max(plain);
        if speed > most {
            (best, most) = (n + 1, speed);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(probabilities: &[f32]) -> Vec<Candidate> {
        let one =
            |(probability, draft): (&f32, u32)| Candidate { entry: 0, draft, probability: *probability };
        probabilities.iter().zip(0..).map(one).collect()
    }

    fn measured(time: impl Fn(u32) -> u64) -> StepTimes {
        let mut times = StepTimes::default();
        for tokens in 1..120 {
            (0..5).for_each(|_| times.observe(tokens, time(tokens)));
        }
        times
    }

    #[test]
    fn drafts_are_taken_while_they_pay() {
        // Free up to 8 tokens, then linear.
        let times = measured(|tokens| 1000 + u64::from(tokens.saturating_sub(8)) * 500);
        let sure: Vec<f32> = (1..=16).map(|i| 0.9f32.powi(i)).collect();
        assert_eq!(most_per_second(&times, 1, &candidates(&sure)), 7);
        assert_eq!(most_per_second(&times, 1, &candidates(&[0.02; 16])), 7, "what is free is taken");
        // A step costs what its tokens cost: only drafts that are surer than the average pay.
        let times = measured(|tokens| 200 + 800 * u64::from(tokens));
        assert_eq!(most_per_second(&times, 1, &candidates(&[0.5, 0.25])), 0);
        assert_eq!(most_per_second(&times, 64, &candidates(&[0.9; 20])), 0);
        assert_eq!(most_per_second(&times, 1, &candidates(&[0.99; 4])), 4);
    }

    #[test]
    fn nothing_is_drafted_before_plain_steps_are_measured() {
        let mut times = StepTimes::default();
        assert_eq!(most_per_second(&times, 1, &candidates(&[0.9; 4])), 0);
        times.observe(1, 1000);
        assert_eq!(most_per_second(&times, 1, &candidates(&[0.9; 4])), 2, "a little more than was measured");
    }

    #[test]
    fn wrong_drafts_lower_what_is_expected() {
        let mut control = WidthControl::default();
        let evidence = vec![Evidence::of_match(4, 0.9); 3];
        let drafts = Proposal { tokens: vec![1, 2, 3], evidence, ..Proposal::default() };
        let mut reliability = 1.0;
        control.probabilities(&drafts, reliability);
        let before = control.nodes[1];
        (0..30).for_each(|_| control.observe_drafts(&drafts, &[], &mut reliability));
        control.probabilities(&drafts, reliability);
        assert!(control.nodes[1] < before / 4.0 && reliability < 0.2, "{} {reliability}", control.nodes[1]);
    }
}

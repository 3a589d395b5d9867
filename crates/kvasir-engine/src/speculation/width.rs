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

use crate::request::proposal::{Evidence, Proposal};
use crate::request::sequence::Sequence;
use crate::request::timings::Nanos;
use crate::scheduler::requests::Requests;
use crate::speculation::acceptance::Acceptance;
use crate::speculation::step_times::StepTimes;
use kvasir_exec::{Batch, BatchRow, Output};

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

/// Chooses the drafts of each step, and learns from what became of them.
#[derive(Debug, Default)]
pub(crate) struct WidthControl {
    pub(crate) width: DraftWidth,
    acceptance: Acceptance,
    times: StepTimes,
    /// Levels that the executor's draft model may propose; 0 if it has none.
    pub(crate) model_depth: u32,
    /// Acceptance of a draft model's levels, where all before were accepted.
    levels: [Level; MOST_LEVELS],
    /// Time of one level of drafting, by the number of rows.
    drafting: StepTimes,
    /// Time that the draft model takes for a token of a prompt.
    prompt_ns: f64,
    /// Outputs of a request, as a decayed average.
    outputs: f64,
    /// Prompts that were not worth reading since one was read anyway.
    unread: u32,
    /// Steps since drafting stopped paying.
    idle: u32,
    /// Steps without a draft model so far, saturating, and steps with one since the last of them.
    plain_steps: u32,
    drafting_steps: u32,
    /// Levels that are proposed behind the step that is built.
    depth: u32,
    candidates: Vec<Candidate>,
    /// Scratch: probability of each node of one proposal.
    nodes: Vec<f32>,
    numbers: Vec<i32>,
}

/// Levels whose acceptance is kept apart.
const MOST_LEVELS: usize = 16;
/// Steps after which a draft model that does not pay is tried again.
const TRIED_EVERY: u32 = 64;

/// Steps without a draft model before the first with one: the first steps of an engine are slow, and
/// their average must not pass for the time of a plain step.
const PLAIN_FIRST: u32 = 8;
/// Steps with a draft model after which one runs without, so that the time of a plain step stays
/// current.
const PLAIN_EVERY: u32 = 32;

/// Acceptance of one level, as a decayed average.
#[derive(Clone, Copy, Debug)]
struct Level(f64);

impl Default for Level {
    fn default() -> Self {
        Self(0.7)
    }
}

/// Of so many prompts that seem not worth reading for the draft model, one is read, so that the
/// estimates stay current.
const PROMPT_READ_EVERY: u32 = 64;
/// Weight of a new observation in decayed averages.
const WEIGHT: f64 = 0.1;

/// How much of a request's record a verification replaces.
const RELIABILITY_WEIGHT: f32 = 0.1;
/// Gain in tokens per second below which drafts are not worth the risk of a wrong estimate.
const LEAST_GAIN: f64 = 1.01;

impl WidthControl {
    /// Learns the device times of a step, of the target and of a draft model behind it.
    pub(crate) fn observe_step(&mut self, batch: &Batch, output: &Output) {
        let levels = batch.rows.iter().map(|row| row.draft_depth).max().unwrap_or(0);
        let read = batch.rows.iter().filter(|row| row.kind.is_prefill() && row.feeds_draft);
        let read: u32 = read.map(|row| row.tokens.len).sum();
        if batch.rows.iter().all(|row| !row.kind.is_prefill()) {
            self.times.observe(batch.tokens.len() as u32, output.device_ns);
            if levels > 0 && !output.proposals.is_empty() {
                self.drafting.observe(output.proposals.len() as u32, output.draft_ns / Nanos::from(levels));
            }
        } else if read > 0 {
            let drafting = self.drafting.predict(output.proposals.len() as u32).unwrap_or(0.0);
            let grown = f64::from(levels) * drafting;
            let each = (output.draft_ns as f64 - grown).max(0.0) / f64::from(read);
            let before = if self.prompt_ns == 0.0 { each } else { self.prompt_ns };
            self.prompt_ns = before + (each.min(2.0 * before) - before) * WEIGHT;
        }
    }

    /// Learns how many outputs a request had.
    pub(crate) fn observe_end(&mut self, outputs: u32) {
        let before = if self.outputs == 0.0 { f64::from(outputs) } else { self.outputs };
        self.outputs = before + (f64::from(outputs) - before) * WEIGHT;
    }

    /// Whether the draft model shall read a prompt of `prompt` tokens beyond the cached ones, of a
    /// request with at most `outputs` outputs, one of `rows` that share the steps: whether the drafts are
    /// expected to save more time than that takes.
    fn reads_prompt(&mut self, prompt: u32, outputs: u32, rows: u32) -> bool {
        if self.width == DraftWidth::Fixed || self.outputs == 0.0 {
            return true;
        }
        let Some((_, gain)) = self.fastest_depth(rows, rows) else { return true };
        let saved = gain * self.outputs.min(f64::from(outputs)) / f64::from(rows);
        if saved > f64::from(prompt) * self.prompt_ns {
            return true;
        }
        self.unread = (self.unread + 1) % PROMPT_READ_EVERY;
        self.unread == 0
    }

    /// Whether the draft model reads a sequence of which `cached` tokens are not run again. Decided with
    /// its first step, while `load` requests run or wait for a place.
    pub(crate) fn follows(&mut self, sequence: &mut Sequence, load: u32) -> bool {
        let reads = sequence.cold.draft_reads.unwrap_or_else(|| {
            let prompt = sequence.len() - sequence.claimed;
            let drafts = sequence.cold.params.max_drafts != Some(0);
            drafts && self.reads_prompt(prompt, sequence.outputs_left(), load)
        });
        sequence.cold.draft_reads = Some(reads);
        reads
    }

    /// Chooses what the draft model does in a step after which `rows` sequences decode, of which it
    /// follows `followed`.
    pub(crate) fn begin_step(&mut self, rows: u32, followed: u32, prefill: bool) {
        self.depth = self.depth(rows, followed, prefill);
    }

    /// Writes into a row of the step what the draft model shall do with it. While drafting does not
    /// pay, it runs no decode rows.
    pub(crate) fn ask(&self, sequence: &Sequence, row: &mut BatchRow) {
        let most = sequence.cold.params.max_drafts.unwrap_or(u32::MAX);
        let reads = sequence.cold.draft_reads == Some(true);
        row.feeds_draft = reads && (row.kind.is_prefill() || self.depth > 0 || self.idle == 0);
        row.draft_depth = if row.feeds_draft && row.samples() { self.depth.min(most) } else { 0 };
    }

    /// Learns from a verified proposal of `depth` levels of which the nodes `accepted`, numbered from
    /// 1, were accepted. `reliability` is the request's own record.
    pub(crate) fn observe_drafts(
        &mut self,
        drafts: &Proposal,
        depth: usize,
        accepted: &[u32],
        reliability: &mut f32,
    ) {
        if self.model_depth > 0 {
            let tested = accepted.len() + usize::from(accepted.len() < depth);
            for (level, Level(rate)) in self.levels.iter_mut().enumerate().take(tested) {
                *rate += (f64::from(u8::from(level < accepted.len())) - *rate) * 0.02;
            }
        }
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

    /// Levels that the draft model shall propose for the next step, of `rows` rows of which `followed`
    /// can have drafts.
    /// Steps that also `prefill` are no plain steps, with or without drafts.
    fn depth(&mut self, rows: u32, followed: u32, prefill: bool) -> u32 {
        if self.width == DraftWidth::Fixed || self.model_depth == 0 {
            return self.model_depth;
        }
        if prefill {
            return if self.plain_steps < PLAIN_FIRST { 0 } else { self.best_depth(rows, followed) };
        }
        if self.plain_steps < PLAIN_FIRST || self.drafting_steps >= PLAIN_EVERY {
            (self.plain_steps, self.drafting_steps) = (self.plain_steps.saturating_add(1), 0);
            return 0;
        }
        let best = self.best_depth(rows, followed);
        self.drafting_steps = if best > 0 { self.drafting_steps + 1 } else { 0 };
        self.idle = if best > 0 { 0 } else { self.idle + 1 };
        if self.idle >= TRIED_EVERY {
            self.idle = 0;
            return 1;
        }
        best
    }

    fn best_depth(&self, rows: u32, followed: u32) -> u32 {
        self.fastest_depth(rows, followed).map_or(0, |(depth, _)| depth)
    }

    /// The depth with the most expected tokens per second, and the time that a step of `rows` rows, of
    /// which `followed` have drafts, then gains per token of a row. `None` if the plain step was not
    /// measured.
    fn fastest_depth(&self, rows: u32, followed: u32) -> Option<(u32, f64)> {
        let plain = self.times.predict(rows).filter(|_| self.times.is_known(rows))?;
        let (mut best, mut least) = ((0, 0.0), plain / LEAST_GAIN);
        if followed == 0 {
            return Some(best);
        }
        let level = self.drafting.predict(followed).unwrap_or(0.0);
        let share = f64::from(followed) / f64::from(rows);
        let (mut reached, mut tokens) = (1.0, 1.0);
        for depth in 1..=self.model_depth {
            reached *= self.levels[(depth as usize - 1).min(MOST_LEVELS - 1)].0;
            tokens += share * reached;
            let step = self.times.predict(rows + followed * depth).unwrap_or(plain).max(plain);
            let each = (step + f64::from(depth) * level) / tokens;
            if each < least {
                (best, least) = ((depth, plain - each), each);
            }
        }
        Some(best)
    }

    /// Drops the drafts that the next step is faster without. Linear in the running sequences, and
    /// `n log n` in their drafts.
    pub(crate) fn choose(&mut self, requests: &mut Requests) {
        if self.width == DraftWidth::Fixed || !requests.has_any_drafts() {
            return;
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
        let taken = self.most_per_second(rows, &candidates);
        let (taken, dropped) = candidates.split_at_mut(taken);
        if !dropped.is_empty() {
            taken.sort_unstable_by_key(|one| (one.entry, one.draft));
            dropped.sort_unstable_by_key(|one| one.entry);
            for entry in dropped.chunk_by(|a, b| a.entry == b.entry).map(|chunk| chunk[0].entry) {
                let keeps = |draft: usize| {
                    let key = (entry, draft as u32);
                    taken.binary_search_by_key(&key, |one| (one.entry, one.draft)).is_ok()
                };
                requests[entry].cold.drafts.retain(keeps, &mut self.numbers);
                requests.sync_drafts(entry);
            }
        }
        self.candidates = candidates;
    }

    /// How many of the candidates, the likeliest first, give the most expected tokens per second.
    fn most_per_second(&self, rows: u32, candidates: &[Candidate]) -> usize {
        // Without a measured time of the plain step, there is nothing to compare drafts with.
        let Some(plain) = self.times.predict(rows).filter(|_| self.times.is_known(rows)) else { return 0 };
        let (mut best, mut most) = (0, f64::from(rows) / plain * LEAST_GAIN);
        let room = self.times.explored().saturating_sub(rows) as usize;
        let mut tokens = f64::from(rows);
        for (n, candidate) in candidates.iter().enumerate().take(room) {
            tokens += f64::from(candidate.probability);
            let Some(time) = self.times.predict(rows + n as u32 + 1) else { continue };
            let speed = tokens / time.max(plain);
            if speed > most {
                (best, most) = (n + 1, speed);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_exec::{DraftProposal, RowKind};
    use kvasir_kv::Span;

    fn candidates(probabilities: &[f32]) -> Vec<Candidate> {
        let one =
            |(probability, draft): (&f32, u32)| Candidate { entry: 0, draft, probability: *probability };
        probabilities.iter().zip(0..).map(one).collect()
    }

    fn measured(time: impl Fn(u32) -> u64) -> WidthControl {
        let mut control = WidthControl { width: DraftWidth::Adaptive, ..WidthControl::default() };
        for tokens in 1..120 {
            (0..5).for_each(|_| control.times.observe(tokens, time(tokens)));
        }
        control
    }

    #[test]
    fn drafts_are_taken_while_they_pay() {
        // Free up to 8 tokens, then linear.
        let control = measured(|tokens| 1000 + u64::from(tokens.saturating_sub(8)) * 500);
        let sure: Vec<f32> = (1..=16).map(|i| 0.9f32.powi(i)).collect();
        assert_eq!(control.most_per_second(1, &candidates(&sure)), 7);
        assert_eq!(control.most_per_second(1, &candidates(&[0.02; 16])), 7, "what is free is taken");
        // A step costs what its tokens cost: only drafts that are surer than the average pay.
        let control = measured(|tokens| 200 + 800 * u64::from(tokens));
        assert_eq!(control.most_per_second(1, &candidates(&[0.5, 0.25])), 0);
        assert_eq!(control.most_per_second(64, &candidates(&[0.9; 20])), 0);
        assert_eq!(control.most_per_second(1, &candidates(&[0.99; 4])), 4);
    }

    #[test]
    fn nothing_is_drafted_before_plain_steps_are_measured() {
        let mut control = WidthControl::default();
        assert_eq!(control.most_per_second(1, &candidates(&[0.9; 4])), 0);
        control.times.observe(1, 1000);
        assert_eq!(control.most_per_second(1, &candidates(&[0.9; 4])), 2, "a little more than was measured");
    }

    #[test]
    fn a_draft_model_pauses_so_that_plain_steps_stay_measured() {
        let mut control = measured(|_| 1000);
        control.model_depth = 4;
        let depths: Vec<_> = (0..100).map(|_| control.depth(1, 1, false)).collect();
        assert_eq!(depths[..8], [0; 8], "the first steps are slow");
        assert_eq!(depths[8..40], [4; 32]);
        assert_eq!(depths[40..42], [0, 4]);
        assert_eq!(depths.iter().filter(|depth| **depth == 0).count(), 10);
    }

    #[test]
    fn steps_with_prefill_are_neither_counted_nor_learned_from() {
        let mut control = measured(|_| 1000);
        control.model_depth = 4;
        assert!((0..100).all(|_| control.depth(1, 1, true) == 0), "no plain step has run");
        (0..8).for_each(|_| assert_eq!(control.depth(1, 1, false), 0));
        assert!((0..100).all(|_| control.depth(1, 1, true) == 4), "a plain step is not wasted on them");
        let row = |kind, draft_depth| BatchRow { kind, draft_depth, ..BatchRow::default() };
        let mut batch =
            Batch { rows: vec![row(RowKind::MultiDecode, 2)], tokens: vec![0], ..Batch::default() };
        let proposals = vec![DraftProposal::default()];
        let output = |draft_ns| Output {
            device_ns: 1000,
            draft_ns,
            proposals: proposals.clone(),
            ..Output::default()
        };
        control.observe_step(&batch, &output(400));
        assert_eq!(control.drafting.predict(1), Some(200.0));
        batch.rows.push(row(RowKind::Prefill, 0));
        (0..20).for_each(|_| control.observe_step(&batch, &output(90_000)));
        assert_eq!(control.drafting.predict(1), Some(200.0), "the draft model also read a prompt");
    }

    #[test]
    fn prompts_are_read_if_the_outputs_gain_more_than_that_takes() {
        let mut control = measured(|_| 1000);
        (control.model_depth, control.plain_steps, control.levels[0]) = (1, PLAIN_FIRST, Level(1.0));
        assert!(control.reads_prompt(1 << 20, 1, 1), "nothing is known yet");
        // A draft saves half of a step, so 100 outputs save 50,000 ns.
        control.observe_end(100);
        let row = BatchRow {
            kind: RowKind::Prefill,
            feeds_draft: true,
            tokens: Span::new(0, 10),
            ..BatchRow::default()
        };
        let batch = Batch { rows: vec![row], tokens: vec![0; 10], ..Batch::default() };
        control.observe_step(&batch, &Output { draft_ns: 1000, ..Output::default() });
        assert!(control.reads_prompt(499, 100, 1) && !control.reads_prompt(501, 100, 1));
        assert!(
            control.reads_prompt(49, 10, 1) && !control.reads_prompt(51, 10, 1),
            "few outputs are allowed"
        );
        assert!(control.reads_prompt(49, 100, 10) && !control.reads_prompt(51, 100, 10), "ten share a step");
        let read = (0..640).filter(|_| control.reads_prompt(5000, 100, 1)).count();
        assert_eq!(read, 10, "some are read anyway");
        control.levels[0] = Level(0.0);
        assert!(!control.reads_prompt(1, 100, 1), "drafts are rejected");
        control.width = DraftWidth::Fixed;
        assert!(control.reads_prompt(1 << 20, 1, 1));
    }

    #[test]
    fn the_cost_of_drafting_is_that_of_the_rows() {
        let mut control = measured(|_| 1000);
        (control.model_depth, control.plain_steps) = (1, PLAIN_FIRST);
        (0..20).for_each(|_| control.drafting.observe(1, 100));
        (0..20).for_each(|_| control.drafting.observe(16, 3000));
        assert_eq!((control.depth(16, 1, false), control.depth(16, 0, false)), (0, 0), "few rows gain");
        assert_eq!((control.depth(1, 1, false), control.depth(16, 16, false)), (1, 0));
    }

    #[test]
    fn deep_levels_learn_rejections() {
        let mut control = WidthControl { model_depth: 12, ..WidthControl::default() };
        let evidence = (1..=12).map(|depth| Evidence::of_model(depth, 0.9)).collect();
        let drafts = Proposal { tokens: vec![1; 12], evidence, ..Proposal::default() };
        (0..400).for_each(|_| control.observe_drafts(&drafts, 12, &[1, 2, 3, 4, 5, 6, 7, 8], &mut 1.0));
        assert!(control.levels[7].0 > 0.95 && control.levels[8].0 < 0.05);
    }

    #[test]
    fn wrong_drafts_lower_what_is_expected() {
        let mut control = WidthControl::default();
        let evidence = vec![Evidence::of_match(4, 0.9); 3];
        let drafts = Proposal { tokens: vec![1, 2, 3], evidence, ..Proposal::default() };
        let mut reliability = 1.0;
        control.probabilities(&drafts, reliability);
        let before = control.nodes[1];
        (0..30).for_each(|_| control.observe_drafts(&drafts, 3, &[], &mut reliability));
        control.probabilities(&drafts, reliability);
        assert!(control.nodes[1] < before / 4.0 && reliability < 0.2, "{} {reliability}", control.nodes[1]);
    }
}

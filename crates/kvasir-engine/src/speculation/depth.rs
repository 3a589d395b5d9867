//! Draft depth: which sequences the executor's draft model reads, and how many levels it proposes.
//!
//! A draft model must run a sequence's prompt before it can draft. It *follows* the sequences whose
//! expected outputs gain more time than that takes; this is decided once, with the first step of a
//! sequence. Behind each step it proposes as many levels for the sequences that it follows as give
//! the most expected tokens per second:
//!
//! `(rows + followed · Σ acceptance) / (time(rows + followed · depth) + depth · drafting(followed))`
//!
//! All of it is measured. While drafting does not pay, nothing is run, but for rare trials.

use crate::request::sequence::Sequence;
use crate::request::timings::Nanos;
use crate::speculation::step_times::{LEAST_GAIN, StepTimes};
use kvasir_exec::{Batch, BatchRow, Output};

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
/// Every n-th prompt that seems not worth reading is read all the same, to keep the estimates current.
const PROMPT_READ_EVERY: u32 = 64;
/// Weight of a new observation in the averages of times and outputs.
const WEIGHT: f64 = 0.1;
/// Weight of a verification in the acceptance of a level.
const LEVEL_WEIGHT: f64 = 0.02;

/// Acceptance of one level, as a decayed average.
#[derive(Clone, Copy, Debug)]
struct Level(f64);

impl Default for Level {
    fn default() -> Self {
        Self(0.7)
    }
}

/// Controls the draft depth from measured acceptance rates and step times.
#[derive(Debug, Default)]
pub(crate) struct DepthControl {
    /// Levels that it may propose; 0 if there is no draft model.
    pub(crate) max_depth: u32,
    /// Levels that it proposes behind the step that is built.
    chosen: u32,
    /// Acceptance of its levels, where all before were accepted.
    levels: [Level; MOST_LEVELS],
    /// Time of one level of drafting, by the number of rows.
    drafting: StepTimes,
    /// Time that it takes for a token of a prompt.
    prompt_ns: f64,
    /// Outputs of a request, as a decayed average.
    outputs: f64,
    /// Prompts that were not worth reading since one was read anyway.
    unread: u32,
    /// Steps since drafting stopped paying.
    idle: u32,
    /// Steps without drafting so far, saturating, and steps with it since the last of them.
    plain_steps: u32,
    drafting_steps: u32,
}

impl DepthControl {
    pub(crate) fn has_model(&self) -> bool {
        self.max_depth > 0
    }

    /// Updates the drafting times with those of a step.
    pub(crate) fn observe_step(&mut self, batch: &Batch, output: &Output) {
        let rows = output.proposals.len() as u32;
        let levels = batch.rows.iter().map(|row| row.draft_depth).max().unwrap_or(0);
        let prompts = batch.rows.iter().filter(|row| row.kind.is_prefill());
        let read: u32 = prompts.clone().filter(|row| row.feeds_draft).map(|row| row.tokens.len).sum();
        if read > 0 {
            let grown = f64::from(levels) * self.drafting.predict(rows).unwrap_or(0.0);
            let each = (output.draft_ns as f64 - grown).max(0.0) / f64::from(read);
            let before = if self.prompt_ns == 0.0 { each } else { self.prompt_ns };
            self.prompt_ns = before + (each.min(2.0 * before) - before) * WEIGHT;
        } else if levels > 0 && rows > 0 && prompts.count() == 0 {
            self.drafting.observe(rows, output.draft_ns / Nanos::from(levels));
        }
    }

    /// Updates the average number of output tokens per request.
    pub(crate) fn observe_completion(&mut self, outputs: u32) {
        let before = if self.outputs == 0.0 { f64::from(outputs) } else { self.outputs };
        self.outputs = before + (f64::from(outputs) - before) * WEIGHT;
    }

    /// Updates the acceptance rates: of `depth` levels the first `accepted` were accepted.
    pub(crate) fn observe_drafts(&mut self, depth: usize, accepted: usize) {
        let tested = accepted + usize::from(accepted < depth);
        for (level, Level(rate)) in self.levels.iter_mut().enumerate().take(tested) {
            *rate += (f64::from(u8::from(level < accepted)) - *rate) * LEVEL_WEIGHT;
        }
    }

    /// Updates the acceptance rates with a proposal that no step verifies, because the `probability` of
    /// its first draft is too low. Without this, rates would stay high and drafting would not stop.
    pub(crate) fn observe_dropped(&mut self, probability: f64) {
        let Level(rate) = &mut self.levels[0];
        *rate += (probability - *rate) * LEVEL_WEIGHT;
    }

    /// Whether it follows a sequence, which is about to run its first step while `load` requests run
    /// or wait for a place. `times` are those of the target's steps; none at fixed width, where it
    /// follows all.
    pub(crate) fn follows(&mut self, times: Option<&StepTimes>, sequence: &mut Sequence, load: u32) -> bool {
        let follows = sequence.cold.followed.unwrap_or_else(|| {
            let (prompt, outputs) = (sequence.len() - sequence.claimed, sequence.outputs_left());
            let drafts = sequence.cold.params.draft_limit() != Some(0);
            drafts && times.is_none_or(|times| self.reads(times, prompt, outputs, load))
        });
        sequence.cold.followed = Some(follows);
        follows
    }

    /// Whether to read a prompt of `prompt` tokens beyond the cached ones, of a request with at most
    /// `outputs` outputs, one of `load` that share the steps.
    fn reads(&mut self, times: &StepTimes, prompt: u32, outputs: u32, load: u32) -> bool {
        if self.outputs == 0.0 {
            return true;
        }
        let Some((_, gain)) = self.fastest(times, load, load) else { return true };
        let saved = gain * self.outputs.min(f64::from(outputs)) / f64::from(load);
        if saved > f64::from(prompt) * self.prompt_ns {
            return true;
        }
        self.unread = (self.unread + 1) % PROMPT_READ_EVERY;
        self.unread == 0
    }

    /// Chooses the levels that are proposed for the next step, of `rows` rows of which it follows
    /// `followed`. `times` as in [`follows`](Self::follows). Steps that also `prefill` are no plain
    /// steps, with or without drafts.
    pub(crate) fn choose(&mut self, times: Option<&StepTimes>, rows: u32, followed: u32, prefill: bool) {
        self.chosen = match times {
            None => self.max_depth,
            Some(_) if self.plain_steps < PLAIN_FIRST && prefill => 0,
            Some(times) if prefill => self.best(times, rows, followed),
            Some(_) if self.plain_steps < PLAIN_FIRST || self.drafting_steps >= PLAIN_EVERY => {
                (self.plain_steps, self.drafting_steps) = (self.plain_steps.saturating_add(1), 0);
                0
            }
            Some(times) => {
                let best = self.best(times, rows, followed);
                self.drafting_steps = if best > 0 { self.drafting_steps + 1 } else { 0 };
                self.idle = if best > 0 { 0 } else { (self.idle + 1) % TRIED_EVERY };
                if best == 0 && self.idle == 0 { 1 } else { best }
            }
        };
    }

    /// Sets `draft_depth` and `feeds_draft` of one batch row. While drafting does not pay, the draft
    /// model runs no decode rows.
    pub(crate) fn plan_draft_row(&self, sequence: &Sequence, row: &mut BatchRow) {
        let most = sequence.cold.params.draft_limit().unwrap_or(u32::MAX);
        let follows = sequence.cold.followed == Some(true);
        row.feeds_draft = follows && (row.kind.is_prefill() || self.chosen > 0 || self.idle == 0);
        row.draft_depth = if row.feeds_draft && row.samples() { self.chosen.min(most) } else { 0 };
    }

    fn best(&self, times: &StepTimes, rows: u32, followed: u32) -> u32 {
        self.fastest(times, rows, followed).map_or(0, |(depth, _)| depth)
    }

    /// The depth with the most expected tokens per second, and the time that a step of `rows` rows, of
    /// which `followed` have drafts, then gains per token of a row. `None` if the plain step was not
    /// measured.
    fn fastest(&self, times: &StepTimes, rows: u32, followed: u32) -> Option<(u32, f64)> {
        let plain = times.predict(rows).filter(|_| times.is_known(rows))?;
        let (mut best, mut least) = ((0, 0.0), plain / LEAST_GAIN);
        if followed == 0 {
            return Some(best);
        }
        let level = self.drafting.predict(followed).unwrap_or(0.0);
        let share = f64::from(followed) / f64::from(rows);
        let (mut reached, mut tokens) = (1.0, 1.0);
        for depth in 1..=self.max_depth {
            reached *= self.levels[(depth as usize - 1).min(MOST_LEVELS - 1)].0;
            tokens += share * reached;
            let step = times.predict(rows + followed * depth).unwrap_or(plain).max(plain);
            let each = (step + f64::from(depth) * level) / tokens;
            if each < least {
                (best, least) = ((depth, plain - each), each);
            }
        }
        Some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_exec::{DraftProposal, RowKind};
    use kvasir_kv::Span;

    /// Every step takes this long, whatever it feeds.
    fn flat() -> StepTimes {
        let mut times = StepTimes::default();
        (1..120).for_each(|tokens| (0..5).for_each(|_| times.observe(tokens, 1000)));
        times
    }

    fn of_depth(max_depth: u32) -> DepthControl {
        DepthControl { max_depth, ..DepthControl::default() }
    }

    fn depth(control: &mut DepthControl, rows: u32, followed: u32, prefill: bool) -> u32 {
        control.choose(Some(&flat()), rows, followed, prefill);
        control.chosen
    }

    #[test]
    fn drafting_pauses_so_that_plain_steps_stay_measured() {
        let mut control = of_depth(4);
        let depths: Vec<_> = (0..100).map(|_| depth(&mut control, 1, 1, false)).collect();
        assert_eq!(depths[..8], [0; 8], "the first steps are slow");
        assert_eq!(depths[8..40], [4; 32]);
        assert_eq!(depths[40..42], [0, 4]);
        assert_eq!(depths.iter().filter(|depth| **depth == 0).count(), 10);
        control.choose(None, 1, 1, false);
        assert_eq!(control.chosen, 4, "at fixed width always");
    }

    #[test]
    fn drafting_stops_if_no_draft_is_verified() {
        let mut control = DepthControl { plain_steps: PLAIN_FIRST, ..of_depth(4) };
        let batch = |rows: u32| {
            let row = BatchRow { kind: RowKind::Decode, draft_depth: 1, ..BatchRow::default() };
            Batch { rows: vec![row; rows as usize], ..Batch::default() }
        };
        let proposals = vec![DraftProposal { row: 0, candidates: Span::default() }];
        let output = Output { draft_ns: 200, proposals, ..Output::default() };
        control.observe_step(&batch(1), &output);
        assert!(depth(&mut control, 1, 1, false) > 0);
        (0..300).for_each(|_| control.observe_dropped(0.05));
        assert_eq!(depth(&mut control, 1, 1, false), 0);
    }

    #[test]
    fn what_does_not_pay_is_tried_now_and_then() {
        let mut control = DepthControl { plain_steps: PLAIN_FIRST, ..of_depth(4) };
        control.levels = [Level(0.0); MOST_LEVELS];
        let depths: Vec<_> = (0..640).map(|_| depth(&mut control, 1, 1, false)).collect();
        assert_eq!(depths.iter().sum::<u32>(), 10);
    }

    #[test]
    fn steps_with_prefill_are_neither_counted_nor_learned_from() {
        let mut control = of_depth(4);
        assert!((0..100).all(|_| depth(&mut control, 1, 1, true) == 0), "no plain step has run");
        (0..8).for_each(|_| assert_eq!(depth(&mut control, 1, 1, false), 0));
        assert!((0..100).all(|_| depth(&mut control, 1, 1, true) == 4), "a plain step is not wasted on them");
        let row = |kind, draft_depth| BatchRow { kind, draft_depth, ..BatchRow::default() };
        let mut batch = Batch { rows: vec![row(RowKind::MultiDecode, 2)], ..Batch::default() };
        let proposals = vec![DraftProposal::default()];
        let output = |draft_ns| Output { draft_ns, proposals: proposals.clone(), ..Output::default() };
        control.observe_step(&batch, &output(400));
        assert_eq!(control.drafting.predict(1), Some(200.0));
        control.observe_step(&batch, &Output { draft_ns: 1, ..Output::default() });
        assert_eq!(control.drafting.predict(1), Some(200.0), "nothing was drafted");
        batch.rows.push(row(RowKind::Prefill, 0));
        (0..20).for_each(|_| control.observe_step(&batch, &output(90_000)));
        assert_eq!(control.drafting.predict(1), Some(200.0), "it may also have read a prompt");
    }

    #[test]
    fn prompts_are_read_if_the_outputs_gain_more_than_that_takes() {
        let (mut control, times) = (of_depth(1), flat());
        control.levels[0] = Level(1.0);
        assert!(control.reads(&times, 1 << 20, 1, 1), "nothing is known yet");
        // A draft saves half of a step, so 100 outputs save 50,000 ns.
        control.observe_completion(100);
        let kind = RowKind::Prefill;
        let row = BatchRow { kind, feeds_draft: true, tokens: Span::new(0, 10), ..BatchRow::default() };
        let batch = Batch { rows: vec![row], ..Batch::default() };
        control.observe_step(&batch, &Output { draft_ns: 1000, ..Output::default() });
        let mut reads = |prompt, outputs, load| control.reads(&times, prompt, outputs, load);
        assert!(reads(499, 100, 1) && !reads(501, 100, 1));
        assert!(reads(49, 10, 1) && !reads(51, 10, 1), "few outputs are allowed");
        assert!(reads(49, 100, 10) && !reads(51, 100, 10), "ten share a step");
        assert_eq!((0..640).filter(|_| reads(5000, 100, 1)).count(), 10, "some are read anyway");
        control.levels[0] = Level(0.0);
        assert!(!control.reads(&times, 1, 100, 1), "drafts are rejected");
    }

    #[test]
    fn the_cost_of_drafting_is_that_of_the_rows() {
        let mut control = DepthControl { plain_steps: PLAIN_FIRST, ..of_depth(1) };
        (0..20).for_each(|_| control.drafting.observe(1, 100));
        (0..20).for_each(|_| control.drafting.observe(16, 3000));
        let depths =
            [(16, 1), (16, 0), (1, 1), (16, 16)].map(|(rows, n)| depth(&mut control, rows, n, false));
        assert_eq!(depths, [0, 0, 1, 0], "few rows gain little, and many cost much");
    }

    #[test]
    fn deep_levels_learn_rejections() {
        let mut control = of_depth(12);
        (0..400).for_each(|_| control.observe_drafts(12, 8));
        assert!(control.levels[7].0 > 0.95 && control.levels[8].0 < 0.05);
    }
}

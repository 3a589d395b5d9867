//! Tests of the recurrent ops:
//!
//! - The portable kernels match a reference recurrence in f64 within rounding.
//! - Every instruction set and number of threads gives the bits of the portable kernels.
//! - Any division of sequences into steps, with drafts, replays, skipped queries and saves, gives
//!   the bits of one step.

mod case;
mod reference;

use crate::isa::features::Isa;
use crate::isa::features::tests::isas;
use crate::memory::state_pool::StatePool;
use crate::recurrent::inputs::StateInputs;
use crate::recurrent::tests::case::{Case, CaseStep};
use crate::threads::pool::ThreadPool;
use kvasir_kv::{PoolId, Slot, Span, StateConfig, StateRow, StateSave};
use kvasir_testkit::random::Random;
use std::ops::Range;

const CONFIG: StateConfig = StateConfig { live: 3, checkpoints: 9, tail_rows: 5, interval: 0 };

/// Random token values, from which operands are generated.
fn random_tokens(random: &mut Random, count: usize) -> Vec<u64> {
    (0..count).map(|_| random.bits()).collect()
}

/// Outputs of whole sequences, all in one step from the initial state.
fn one_step_outputs(case: &Case, isa: Isa, threads: &ThreadPool, sequences: &[&[u64]]) -> Vec<f32> {
    let pool = case.pool(CONFIG);
    let mut inputs = StateInputs::default();
    let mut tokens = Vec::new();
    for (slot, sequence) in (0..).zip(sequences) {
        let queries = Span::new(tokens.len(), sequence.len());
        tokens.extend_from_slice(sequence);
        let row = StateRow { to: slot, tail: slot, commit: sequence.len() as u32, ..StateRow::default() };
        inputs.push(queries, Some(&row), &[]);
    }
    case.run(&CaseStep { isa, threads, pool: &pool, inputs: &inputs, tokens: &tokens })
}

#[test]
fn all_instruction_sets_match_the_portable_kernels_bit_for_bit() {
    let (one, three) = (ThreadPool::new(1), ThreadPool::new(3));
    for seed in 0..24 {
        let random = &mut Random::new(seed);
        for case in Case::all_kinds(random) {
            let counts = [random.between(1, 40), random.between(1, 3), random.between(1, 20)];
            let sequences = counts.map(|count| random_tokens(random, count as usize));
            let sequences = sequences.each_ref().map(Vec::as_slice);
            let portable = one_step_outputs(&case, Isa::PORTABLE, &one, &sequences);
            let reference: Vec<f64> = sequences.iter().flat_map(|s| case.reference_outputs(s)).collect();
            assert_eq!(portable.len(), reference.len());
            for (at, (found, expected)) in portable.iter().zip(&reference).enumerate() {
                let error = (f64::from(*found) - expected).abs();
                let bound = 2e-5 * expected.abs().max(1.0);
                assert!(error <= bound, "{case:?} at {at}: {found}, expected {expected}");
            }
            for isa in isas() {
                for threads in [&one, &three] {
                    let found = one_step_outputs(&case, isa, threads, &sequences);
                    assert!(found == portable, "{case:?} on {isa}, {} threads", threads.len());
                }
            }
        }
    }
}

/// A sequence that is run in several steps.
struct Sequence {
    tokens: Vec<u64>,
    /// Outputs of all tokens in one step.
    expected: Vec<f32>,
    /// Number of tokens that the state in `slot` covers.
    covered: usize,
    slot: Option<Slot>,
    /// Number of accepted draft tokens, whose inputs are in the tail.
    accepted: usize,
}

/// A checkpoint of a sequence.
struct SavedState {
    /// Index of the sequence.
    sequence: usize,
    covered: usize,
    slot: Slot,
}

/// Sequences of one case that run step by step, and the slots of their pool.
struct Steps<'a> {
    case: &'a Case,
    isa: Isa,
    threads: &'a ThreadPool,
    pool: StatePool,
    sequences: Vec<Sequence>,
    free: Vec<Slot>,
    saved: Vec<SavedState>,
}

#[test]
fn any_division_into_steps_has_the_bits_of_one_step() {
    let threads = ThreadPool::new(2);
    for seed in 0..60 {
        let random = &mut Random::new(seed + 1000);
        for case in Case::all_kinds(random) {
            let mut steps = Steps::new(&case, random.pick(&isas()), &threads, random);
            while steps.sequences.iter().any(|sequence| !sequence.is_at_end()) {
                steps.run(random);
                if random.one_in(6) {
                    steps.continue_from_a_saved_state(random);
                }
            }
        }
    }
}

impl Sequence {
    fn is_at_end(&self) -> bool {
        self.covered + self.accepted == self.tokens.len()
    }
}

impl<'a> Steps<'a> {
    fn new(case: &'a Case, isa: Isa, threads: &'a ThreadPool, random: &mut Random) -> Self {
        let pool = case.pool(CONFIG);
        let mut sequence = || {
            let count = random.between(5, 60) as usize;
            let tokens = random_tokens(random, count);
            let expected = one_step_outputs(case, isa, threads, &[&tokens]);
            Sequence { tokens, expected, covered: 0, slot: None, accepted: 0 }
        };
        let sequences = vec![sequence(), sequence()];
        Self { case, isa, threads, pool, sequences, free: (0..CONFIG.slots()).collect(), saved: Vec::new() }
    }

    /// Makes a sequence continue from one of its checkpoints, if there are any.
    fn continue_from_a_saved_state(&mut self, random: &mut Random) {
        if self.saved.is_empty() {
            return;
        }
        let at = random.below(self.saved.len() as u64) as usize;
        let SavedState { sequence, covered, slot } = self.saved.swap_remove(at);
        let sequence = &mut self.sequences[sequence];
        self.free.extend(sequence.slot);
        (sequence.covered, sequence.slot, sequence.accepted) = (covered, Some(slot), 0);
    }

    /// Runs some tokens of each sequence in one step, and compares their outputs.
    fn run(&mut self, random: &mut Random) {
        let Self { case, isa, threads, pool, sequences, free, saved } = self;
        let (mut inputs, mut tokens) = (StateInputs::default(), Vec::new());
        // First token in the step, sequence, and range of its tokens.
        let mut checks: Vec<(usize, usize, Range<usize>)> = Vec::new();
        // Freed after the step, which may read or write them.
        let mut evicted = Vec::new();
        for (number, sequence) in sequences.iter_mut().enumerate().filter(|(_, s)| !s.is_at_end()) {
            let known = sequence.covered + sequence.accepted;
            let end = sequence.tokens.len().min(known + random.between(1, 12) as usize);
            let drafts = random.between(0, CONFIG.tail_rows) as usize;
            let (skip, replay) = (random.between(0, 3) as usize, sequence.accepted);
            let accepted = (random.between(0, drafts as u32) as usize).min(sequence.tokens.len() - end);
            let commit = replay + end - known;
            // Skipped queries, known tokens, drafts to accept, drafts to reject.
            let first = tokens.len();
            tokens.extend(random_tokens(random, skip));
            tokens.extend_from_slice(&sequence.tokens[known..end + accepted]);
            tokens.extend(random_tokens(random, drafts - accepted));
            checks.push((first + skip, number, known..end + accepted));
            // Either the state is updated in place, or the old one becomes a checkpoint.
            let keep = sequence.slot.is_none() || (random.one_in(3) && free.len() > 1);
            let from = sequence.slot.map(|slot| (PoolId(0), slot));
            let to = if keep { free.pop() } else { sequence.slot };
            let Some(to) = to else { return };
            if let (true, Some(slot)) = (keep, sequence.slot) {
                saved.push(SavedState { sequence: number, covered: sequence.covered, slot });
            }
            let mut saves = Vec::new();
            for after in 1..=commit {
                if random.one_in(7) && free.len() > 2 {
                    let Some(slot) = free.pop() else { break };
                    saves.push(StateSave { after: after as u32, slot });
                    saved.push(SavedState { sequence: number, covered: sequence.covered + after, slot });
                }
            }
            while free.len() + evicted.len() < 4 && !saved.is_empty() {
                evicted.push(saved.remove(0).slot);
            }
            let row = StateRow {
                from,
                to,
                tail: number as Slot,
                replay: replay as u32,
                skip: skip as u32,
                commit: commit as u32,
                saves: Span::new(0, saves.len()),
            };
            inputs.push(Span::new(first, tokens.len() - first), Some(&row), &saves);
            (sequence.covered, sequence.slot, sequence.accepted) =
                (sequence.covered + commit, Some(to), accepted);
        }
        let (isa, threads, pool) = (*isa, *threads, &*pool);
        let outputs = case.run(&CaseStep { isa, threads, pool, inputs: &inputs, tokens: &tokens });
        free.extend(evicted);
        let width = case.output_width();
        for (first, number, range) in checks {
            let found = &outputs[first * width..(first + range.len()) * width];
            let expected = &sequences[number].expected[range.start * width..range.end * width];
            assert!(found == expected, "{case:?} on {isa}: tokens {range:?}");
        }
    }
}

//! Tests of the recurrent ops: every instruction set and number of threads gives the bits of the
//! portable kernels, which follow the recurrence in f64; and any division of sequences into steps,
//! with drafts, replays, skipped queries and saves, gives the bits of one step.

mod case;
mod reference;

use crate::isa::features::Isa;
use crate::isa::features::tests::isas;
use crate::recurrent::inputs::StateInputs;
use crate::recurrent::tests::case::{Case, CaseStep};
use crate::threads::pool::ThreadPool;
use kvasir_kv::{PoolId, Slot, Span, StateConfig, StateRow, StateSave};
use kvasir_testkit::random::Random;

const CONFIG: StateConfig = StateConfig { live: 3, checkpoints: 9, tail_rows: 5, interval: 0 };

/// Tokens of a sequence: any numbers, from which operands are generated.
fn tokens(random: &mut Random, count: usize) -> Vec<u64> {
    (0..count).map(|_| random.bits()).collect()
}

/// Outputs of whole sequences, each in one step from an empty state.
fn whole(case: &Case, isa: Isa, threads: &ThreadPool, sequences: &[&[u64]]) -> Vec<f32> {
    let pool = case.pool(CONFIG);
    let mut rows = StateInputs::default();
    let mut all = Vec::new();
    for (slot, sequence) in (0..).zip(sequences) {
        let queries = Span::new(all.len(), sequence.len());
        all.extend_from_slice(sequence);
        let row = StateRow { to: slot, tail: slot, commit: sequence.len() as u32, ..StateRow::default() };
        rows.push(queries, Some(&row), &[]);
    }
    case.run(&CaseStep { isa, threads, pool: &pool, rows: &rows, tokens: &all })
}

#[test]
fn all_instruction_sets_have_the_bits_of_the_portable_kernels() {
    let (one, three) = (ThreadPool::new(1), ThreadPool::new(3));
    for seed in 0..24 {
        let random = &mut Random::new(seed);
        for case in Case::all_kinds(random) {
            let counts = [random.between(1, 40), random.between(1, 3), random.between(1, 20)];
            let sequences = counts.map(|count| tokens(random, count as usize));
            let sequences = sequences.each_ref().map(Vec::as_slice);
            let wanted = whole(&case, Isa::PORTABLE, &one, &sequences);
            let exact: Vec<f64> = sequences.iter().flat_map(|s| case.in_f64(s)).collect();
            assert_eq!(wanted.len(), exact.len());
            for (at, (found, exact)) in wanted.iter().zip(&exact).enumerate() {
                let error = (f64::from(*found) - exact).abs();
                assert!(error <= 2e-5 * exact.abs().max(1.0), "{case:?} at {at}: {found}, exact {exact}");
            }
            for isa in isas() {
                for threads in [&one, &three] {
                    let found = whole(&case, isa, threads, &sequences);
                    assert!(found == wanted, "{case:?} on {isa}, {} threads", threads.len());
                }
            }
        }
    }
}

/// A sequence that is fed step by step.
struct Fed {
    tokens: Vec<u64>,
    wanted: Vec<f32>,
    /// Tokens that its state slot covers, and the slot.
    covered: usize,
    slot: Option<Slot>,
    /// Accepted draft tokens, which are in its tail.
    accepted: usize,
}

#[test]
fn any_steps_have_the_bits_of_whole_sequences() {
    let threads = ThreadPool::new(2);
    for seed in 0..60 {
        let random = &mut Random::new(seed + 1000);
        for case in Case::all_kinds(random) {
            let isa = random.pick(&isas());
            let pool = case.pool(CONFIG);
            let mut free: Vec<Slot> = (0..CONFIG.slots()).collect();
            let mut sequences: Vec<Fed> = (0..2).map(|_| Fed::new(&case, isa, &threads, random)).collect();
            let mut saved: Vec<(usize, usize, Slot)> = Vec::new();
            while sequences.iter().any(|s| !s.is_at_end()) {
                step(&case, (isa, &threads), &pool, &mut sequences, (&mut free, &mut saved), random);
                // A sequence continues from a state that was saved earlier.
                if random.one_in(6) && !saved.is_empty() {
                    let (sequence, covered, slot) =
                        saved.swap_remove(random.below(saved.len() as u64) as usize);
                    let sequence = &mut sequences[sequence];
                    free.extend(sequence.slot);
                    (sequence.covered, sequence.slot, sequence.accepted) = (covered, Some(slot), 0);
                }
            }
        }
    }
}

impl Fed {
    fn new(case: &Case, isa: Isa, threads: &ThreadPool, random: &mut Random) -> Self {
        let count = random.between(5, 60) as usize;
        let tokens = tokens(random, count);
        let wanted = whole(case, isa, threads, &[&tokens]);
        Self { tokens, wanted, covered: 0, slot: None, accepted: 0 }
    }

    fn is_at_end(&self) -> bool {
        self.covered + self.accepted == self.tokens.len()
    }
}

/// Feeds some tokens of each sequence in one step, and compares their outputs.
fn step(
    case: &Case,
    (isa, threads): (Isa, &ThreadPool),
    pool: &crate::memory::state_pool::StatePool,
    sequences: &mut [Fed],
    (free, saved): (&mut Vec<Slot>, &mut Vec<(usize, usize, Slot)>),
    random: &mut Random,
) {
    let (mut rows, mut all, mut checks) = (StateInputs::default(), Vec::new(), Vec::new());
    for (number, sequence) in sequences.iter_mut().enumerate().filter(|(_, s)| !s.is_at_end()) {
        let known = sequence.covered + sequence.accepted;
        let end = sequence.tokens.len().min(known + random.between(1, 12) as usize);
        let drafts = random.between(0, CONFIG.tail_rows) as usize;
        let (skip, replay) = (random.between(0, 3) as usize, sequence.accepted);
        let accepted = (random.between(0, drafts as u32) as usize).min(sequence.tokens.len() - end);
        let commit = replay + end - known;
        // Skipped queries, known tokens, accepted drafts, drafts of other tokens.
        let first = all.len();
        all.extend(tokens(random, skip));
        all.extend_from_slice(&sequence.tokens[known..end + accepted]);
        all.extend(tokens(random, drafts - accepted));
        checks.push((first + skip, number, known..end + accepted));
        // In place, or with the old state kept.
        let keep = sequence.slot.is_none() || (random.one_in(3) && free.len() > 1);
        let from = sequence.slot.map(|slot| (PoolId(0), slot));
        let to = if keep { free.pop() } else { sequence.slot };
        let Some(to) = to else { return };
        if let (true, Some(slot)) = (keep, sequence.slot) {
            saved.push((number, sequence.covered, slot));
        }
        let mut saves = Vec::new();
        for after in 1..=commit {
            if random.one_in(7) && free.len() > 2 {
                let Some(slot) = free.pop() else { break };
                saves.push(StateSave { after: after as u32, slot });
                saved.push((number, sequence.covered + after, slot));
            }
        }
        while free.len() < 4 && !saved.is_empty() {
            let (.., slot) = saved.remove(0);
            // Freed after the step, because it may be read or written in it.
            checks.push((usize::MAX, slot as usize, 0..0));
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
        rows.push(Span::new(first, all.len() - first), Some(&row), &saves);
        (sequence.covered, sequence.slot, sequence.accepted) =
            (sequence.covered + commit, Some(to), accepted);
    }
    let found = case.run(&CaseStep { isa, threads, pool, rows: &rows, tokens: &all });
    let width = case.output_width();
    for (first, number, range) in checks {
        if first == usize::MAX {
            free.push(number as Slot);
            continue;
        }
        let found = &found[first * width..(first + range.len()) * width];
        let wanted = &sequences[number].wanted[range.start * width..range.end * width];
        assert!(found == wanted, "{case:?} on {isa}: tokens {range:?}");
    }
}

//! Recurrent models compute bit-identical logits however a sequence is divided into steps: with the
//! states of every cache kind, and with random state sections.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::steps::{reference_logits, run, step};
use common::{STATES, cache, limits, load};
use kvasir_exec::StepError;
use kvasir_kv::{
    Cache, CacheKind, Lookup, Paged, PoolId, SeqId, Slot, Span, StateRow, StateSave, StepId, Token,
    blocks::BlockConfig,
};
use kvasir_plain::{Limits, PlainExecutor, PlainModel};
use kvasir_testkit::Random;
use kvasir_testkit::steps::{RowInput, check_last_rows, prompt, row_input};

/// One model per recurrence, and one with both a recurrence and a mixture of experts.
const CASES: [&str; 5] = ["qwen3_5", "lfm2", "falcon_h1", "nemotron_h_moe", "qwen4_exp"];

fn model(case: &str) -> PlainModel {
    load(&kvasir_testkit::paths::model(case))
}

/// Compares the logits of the last tokens with those of the whole sequence in one step.
fn check_logits(model: &PlainModel, tokens: &[Token], rows: &[Vec<f32>], context: &str) {
    check_last_rows(rows, &reference_logits(model, tokens), context);
}

#[test]
fn any_division_into_steps_gives_identical_logits_on_every_cache() {
    for (case, &kind) in CASES.iter().flat_map(|case| CacheKind::ALL.iter().map(move |kind| (case, kind))) {
        let (model, mut random) = (model(case), Random::new(kind as u64));
        let mut executor = PlainExecutor::new(&model, limits());
        let mut cache = cache(kind, &model);
        let count = if kind.holds_one_sequence() { 1 } else { 3 };
        let seqs: Vec<SeqId> = (0..count).map(|_| cache.open().unwrap()).collect();
        let mut tokens: Vec<Vec<Token>> = vec![Vec::new(); count];
        for id in 1..=12 {
            let mut inputs = Vec::new();
            for (seq, tokens) in seqs.iter().zip(&tokens) {
                let fed = random.between(1, 9);
                let fed: Vec<Token> = (0..fed).map(|_| random.between(0, 499)).collect();
                let max_drafts = if tokens.is_empty() { fed.len() as u32 - 1 } else { fed.len() as u32 };
                let drafts = random.between(0, max_drafts.min(STATES.tail_rows));
                inputs.push(RowInput { drafts, ..row_input(*seq, &fed) });
            }
            let mut rows = run(&mut executor, &mut *cache, id, &inputs).into_iter();
            for ((seq, tokens), input) in seqs.iter().zip(&mut tokens).zip(&inputs) {
                tokens.extend(&input.tokens);
                let own: Vec<_> = rows.by_ref().take(input.tokens.len()).collect();
                check_logits(&model, tokens, &own, &format!("{case} {kind} step {id}"));
                let rejected = random.between(0, input.drafts);
                tokens.truncate(tokens.len() - rejected as usize);
                if rejected > 0 {
                    cache.rewind().unwrap().rewind_to(*seq, tokens.len() as u32).unwrap();
                }
            }
            cache.check().unwrap();
        }
    }
}

#[test]
fn a_prefix_hit_continues_from_a_checkpoint() {
    for (case, kind) in CASES.iter().flat_map(|case| [(case, CacheKind::Paged), (case, CacheKind::Radix)]) {
        let model = model(case);
        let mut executor = PlainExecutor::new(&model, limits());
        let mut cache = cache(kind, &model);
        let first = prompt(45, 3);
        let seq = cache.open().unwrap();
        run(&mut executor, &mut *cache, 1, &[row_input(seq, &first)]);
        cache.prefix().unwrap().publish(seq, &first, 45).unwrap();
        cache.close(seq).unwrap();
        let second = [&first[..39], &prompt(10, 4)].concat();
        let seq = cache.open().unwrap();
        let prefix = cache.prefix().unwrap();
        let hit = prefix.attach(seq, &second, 0, u32::MAX, Lookup::default()).unwrap();
        assert_eq!(hit.tokens, 32, "{case} {kind}");
        let rows = run(&mut executor, &mut *cache, 2, &[row_input(seq, &second[32..])]);
        check_logits(&model, &second, &rows, &format!("{case} {kind}"));
    }
}

/// A sequence with random state rows.
#[derive(Clone)]
struct RandomSequence {
    seq: SeqId,
    tokens: Vec<Token>,
    /// Slot of its newest state; `None` for the initial state.
    state: Option<Slot>,
    /// Number of accepted drafts that are in the tail but not in the state.
    replay: u32,
    tail: Slot,
    /// Checkpoints: length and slot, by ascending length.
    checkpoints: Vec<(usize, Slot)>,
}

/// Generates steps with random state rows, over a cache without states.
struct RandomSteps {
    random: Random,
    cache: Paged,
    sequences: Vec<RandomSequence>,
    free: Vec<Slot>,
}

impl RandomSteps {
    fn new(seed: u64) -> Self {
        let config = BlockConfig { block_size: 8, blocks: 60, dummy: true, ..BlockConfig::default() };
        let mut cache = Paged::new(config).unwrap();
        let seq = cache.open().unwrap();
        let (tokens, checkpoints) = (Vec::new(), Vec::new());
        let first = RandomSequence { seq, tokens, state: None, replay: 0, tail: 0, checkpoints };
        let free = (0..STATES.slots()).collect();
        Self { random: Random::new(seed), cache, sequences: vec![first], free }
    }

    /// Frees the state slots that no sequence refers to.
    fn free_unused_slots(&mut self) {
        let is_used = |slot: &Slot| {
            self.sequences.iter().any(|sequence| {
                sequence.state == Some(*slot) || sequence.checkpoints.iter().any(|(_, saved)| saved == slot)
            })
        };
        self.free = (0..STATES.slots()).filter(|slot| !is_used(slot)).collect();
    }

    /// Rewinds a sequence to a checkpoint, forks it, or does nothing.
    fn rewind_or_fork(&mut self) {
        let at = self.random.below(self.sequences.len() as u64) as usize;
        let RandomSequence { seq, replay, .. } = self.sequences[at];
        if self.random.one_in(4) && self.sequences[at].checkpoints.len() > 1 {
            let sequence = &mut self.sequences[at];
            let keep = self.random.between(0, sequence.checkpoints.len() as u32 - 1) as usize;
            sequence.checkpoints.truncate(keep);
            let last = sequence.checkpoints.last().copied();
            let len = last.map_or(0, |(len, _)| len);
            sequence.tokens.truncate(len);
            (sequence.state, sequence.replay) = (last.map(|(_, slot)| slot), 0);
            self.cache.rewind().unwrap().rewind_to(seq, len as u32).unwrap();
        } else if self.random.one_in(4) && self.sequences.len() < 3 && replay == 0 {
            if self.sequences[at].tokens.is_empty() {
                return;
            }
            let fork = self.cache.sequences().unwrap().fork(seq, 1).unwrap()[0];
            let tail = self.sequences.len() as Slot;
            self.sequences.push(RandomSequence { seq: fork, tail, ..self.sequences[at].clone() });
        }
        self.free_unused_slots();
    }

    /// Returns random input of a step for a sequence.
    fn row_input(&mut self, at: usize) -> RowInput {
        let (random, sequence) = (&mut self.random, &self.sequences[at]);
        let len = sequence.tokens.len();
        let redirected = random.between(0, 3.min(len as u32));
        let fed = random.between(1, 9);
        let max_drafts = fed - u32::from(sequence.state.is_none());
        let drafts = random.between(0, max_drafts.min(STATES.tail_rows));
        let mut tokens = sequence.tokens[len - redirected as usize..].to_vec();
        tokens.extend((0..fed).map(|_| random.between(0, 499)));
        RowInput { redirected, drafts, ..row_input(sequence.seq, &tokens) }
    }

    /// Returns a random state row for the input, and appends its saves to `saves`.
    fn state_row(&mut self, at: usize, input: &RowInput, saves: &mut Vec<StateSave>) -> StateRow {
        let is_shared = |slot: Slot| {
            let is_other = |other: usize| other != at && self.sequences[other].state == Some(slot);
            (0..self.sequences.len()).any(is_other)
                || self
                    .sequences
                    .iter()
                    .any(|sequence| sequence.checkpoints.iter().any(|(_, saved)| *saved == slot))
        };
        let RandomSequence { state, replay, tail, .. } = self.sequences[at];
        let commit = replay + input.tokens.len() as u32 - input.redirected - input.drafts;
        let in_place = state.filter(|slot| !is_shared(*slot) && self.random.chance(70));
        let to = match in_place {
            Some(slot) => slot,
            None => self.free.pop().unwrap(),
        };
        let first = saves.len();
        for after in 1..=commit {
            // Leaves slots for the other rows.
            if self.random.one_in(8) && self.free.len() > 6 {
                saves.push(StateSave { after, slot: self.free.pop().unwrap() });
            }
        }
        let from = state.map(|slot| (PoolId(0), slot));
        let saves = Span::new(first, saves.len() - first);
        StateRow { from, to, tail, replay, skip: input.redirected, commit, saves }
    }

    /// Updates a sequence after a step that accepted the first `accepted` of its drafts.
    fn accept(&mut self, at: usize, input: &RowInput, row: &StateRow, saves: &[StateSave], accepted: u32) {
        let sequence = &mut self.sequences[at];
        let covered = sequence.tokens.len() - row.replay as usize;
        let kept = input.tokens.len() - (input.drafts - accepted) as usize;
        sequence.tokens.extend(&input.tokens[input.redirected as usize..kept]);
        sequence.replay = accepted;
        if row.commit > 0 {
            sequence.state = Some(row.to);
        }
        sequence.checkpoints.extend(saves.iter().map(|save| (covered + save.after as usize, save.slot)));
        if accepted < input.drafts {
            let len = sequence.tokens.len() as u32;
            self.cache.rewind().unwrap().rewind_to(sequence.seq, len).unwrap();
        }
        self.free_unused_slots();
    }
}

#[test]
fn random_state_rows_give_identical_logits() {
    for (seed, case) in (0..12).zip(CASES.iter().cycle()) {
        let (model, mut random_steps) = (model(case), RandomSteps::new(seed));
        let mut executor = PlainExecutor::new(&model, limits());
        for id in 1..=15 {
            random_steps.rewind_or_fork();
            let inputs: Vec<RowInput> =
                (0..random_steps.sequences.len()).map(|at| random_steps.row_input(at)).collect();
            let mut step = step(&mut random_steps.cache, id, &inputs);
            let states = &mut step.plan.states;
            for (at, input) in inputs.iter().enumerate() {
                let row = random_steps.state_row(at, input, &mut states.saves);
                states.rows.push(row);
            }
            states.bound = STATES.slots();
            let logits = executor.pass(&step, None, &[]).unwrap().logits;
            random_steps.cache.retire(StepId(id)).unwrap();
            let mut logits = logits.chunks(model.program().vocab).map(<[f32]>::to_vec);
            for (at, input) in inputs.iter().enumerate() {
                let own: Vec<_> = logits.by_ref().take(input.tokens.len()).collect();
                let (redirected, states) = (input.redirected as usize, &step.plan.states);
                let all = [&random_steps.sequences[at].tokens[..], &input.tokens[redirected..]].concat();
                check_logits(&model, &all, &own[redirected..], &format!("{case} seed {seed} step {id}"));
                let (row, accepted) = (states.rows[at], random_steps.random.between(0, input.drafts));
                random_steps.accept(at, input, &row, &states.saves[row.saves.range()], accepted);
            }
        }
    }
}

#[test]
fn the_executor_rejects_an_invalid_state_section_and_stays_usable() {
    let model = model("qwen3_5");
    let mut executor = PlainExecutor::new(&model, limits());
    let mut cache = cache(CacheKind::Cells, &model);
    let seqs = [cache.open().unwrap(), cache.open().unwrap()];
    let inputs = [row_input(seqs[0], &prompt(9, 1)), row_input(seqs[1], &prompt(5, 2))];
    let mut fails = |id: u64, change: &dyn Fn(&mut kvasir_exec::Step), what: &str| {
        let mut wrong = step(&mut *cache, id, &inputs);
        cache.cancel(StepId(id)).unwrap();
        change(&mut wrong);
        let error = executor.pass(&wrong, None, &[]).unwrap_err();
        assert!(matches!(&error, StepError::Failed(why) if why.contains(what)), "{error}");
    };
    fails(1, &|step| step.plan.states.rows[1].to = step.plan.states.rows[0].to, "twice");
    fails(2, &|step| step.plan.states.rows[0].to = STATES.slots(), "the pool has 16 slots");
    fails(3, &|step| step.plan.states.reset(), "no state row");
    fails(4, &|step| step.plan.states.rows[0].commit = 8, "commits 8 of 9 queries");
    let rows = run(&mut executor, &mut *cache, 5, &inputs);
    check_logits(&model, &inputs[0].tokens, &rows[..9], "after invalid steps");
    let mut stateless = PlainExecutor::new(&model, Limits { states: None, ..limits() });
    let error = stateless.pass(&step(&mut *cache, 6, &inputs), None, &[]).unwrap_err().to_string();
    assert!(error.contains("no pool of recurrent states"), "{error}");
}

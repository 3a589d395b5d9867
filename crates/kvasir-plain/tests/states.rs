//! Recurrent models give the same bits however a sequence is divided into steps: with states of
//! every cache, and with state sections drawn at random.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::parts::{Part, alone, part, prompt, run, step};
use common::{STATES, cache, limits, load};
use kvasir_exec::StepError;
use kvasir_kv::{
    Cache, CacheKind, Lookup, Paged, PoolId, SeqId, Slot, Span, StateRow, StateSave, StepId, Token,
    blocks::BlockConfig,
};
use kvasir_plain::{Limits, PlainExecutor, PlainModel};
use kvasir_testkit::Random;

/// One case per recurrence, and one with both a recurrence and a mixture of experts.
const CASES: [&str; 4] = ["qwen3_5", "lfm2", "falcon_h1", "nemotron_h_moe"];

fn model(case: &str) -> PlainModel {
    load(&kvasir_testkit::paths::model(case))
}

/// Checks rows of logits against those of the whole sequence in one step.
fn check(model: &PlainModel, tokens: &[Token], rows: &[Vec<f32>], about: &str) {
    let expected = alone(model, tokens);
    let first = tokens.len() - rows.len();
    for (at, row) in rows.iter().enumerate() {
        assert!(*row == expected[first + at], "{about}: position {}", first + at);
    }
}

#[test]
fn every_cache_and_division_gives_the_bits_of_one_step() {
    for (case, &kind) in CASES.iter().flat_map(|case| CacheKind::ALL.iter().map(move |kind| (case, kind))) {
        let (model, mut random) = (model(case), Random::new(kind as u64));
        let mut executor = PlainExecutor::new(&model, limits());
        let mut cache = cache(kind, &model);
        let count = if kind.holds_one_sequence() { 1 } else { 3 };
        let seqs: Vec<SeqId> = (0..count).map(|_| cache.open().unwrap()).collect();
        let mut tokens: Vec<Vec<Token>> = vec![Vec::new(); count];
        for id in 1..=12 {
            let mut parts = Vec::new();
            for (seq, tokens) in seqs.iter().zip(&tokens) {
                let fed = random.between(1, 9);
                let fed: Vec<Token> = (0..fed).map(|_| random.between(0, 499)).collect();
                let most = if tokens.is_empty() { fed.len() as u32 - 1 } else { fed.len() as u32 };
                let drafts = random.between(0, most.min(STATES.tail_rows));
                parts.push(Part { drafts, ..part(*seq, &fed) });
            }
            let mut rows = run(&mut executor, &mut *cache, id, &parts).into_iter();
            for ((seq, tokens), part) in seqs.iter().zip(&mut tokens).zip(&parts) {
                tokens.extend(&part.tokens);
                let own: Vec<_> = rows.by_ref().take(part.tokens.len()).collect();
                check(&model, tokens, &own, &format!("{case} {kind} step {id}"));
                let rejected = random.between(0, part.drafts);
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
        run(&mut executor, &mut *cache, 1, &[part(seq, &first)]);
        cache.prefix().unwrap().publish(seq, &first, 45).unwrap();
        cache.close(seq).unwrap();
        let second = [&first[..39], &prompt(10, 4)].concat();
        let seq = cache.open().unwrap();
        let prefix = cache.prefix().unwrap();
        let hit = prefix.attach(seq, &second, 0, u32::MAX, Lookup::default()).unwrap();
        assert_eq!(hit.tokens, 32, "{case} {kind}");
        let rows = run(&mut executor, &mut *cache, 2, &[part(seq, &second[32..])]);
        check(&model, &second, &rows, &format!("{case} {kind}"));
    }
}

/// A sequence whose state rows are drawn at random.
#[derive(Clone)]
struct Drawn {
    seq: SeqId,
    tokens: Vec<Token>,
    /// Slot of its newest state; `None` for the initial state.
    state: Option<Slot>,
    /// Accepted drafts that are in the tail and not in the state.
    replay: u32,
    tail: Slot,
    /// Lengths that have a state in a slot, in rising order.
    saved: Vec<(usize, Slot)>,
}

/// Sequences with random state rows over a cache that knows no states.
struct Drawing {
    random: Random,
    cache: Paged,
    sequences: Vec<Drawn>,
    free: Vec<Slot>,
}

impl Drawing {
    fn new(seed: u64) -> Self {
        let config = BlockConfig { block_size: 8, blocks: 60, dummy: true, ..BlockConfig::default() };
        let mut cache = Paged::new(config).unwrap();
        let seq = cache.open().unwrap();
        let first = Drawn { seq, tokens: Vec::new(), state: None, replay: 0, tail: 0, saved: Vec::new() };
        let free = (0..STATES.slots()).collect();
        Self { random: Random::new(seed), cache, sequences: vec![first], free }
    }

    /// Frees the slots that no sequence names any more.
    fn collect_slots(&mut self) {
        let named = |slot: &Slot| {
            self.sequences.iter().any(|sequence| {
                sequence.state == Some(*slot) || sequence.saved.iter().any(|(_, saved)| saved == slot)
            })
        };
        self.free = (0..STATES.slots()).filter(|slot| !named(slot)).collect();
    }

    /// Rewinds a sequence to a saved state, or forks it.
    fn rewind_or_fork(&mut self) {
        let at = self.random.below(self.sequences.len() as u64) as usize;
        let Drawn { seq, replay, .. } = self.sequences[at];
        if self.random.one_in(4) && self.sequences[at].saved.len() > 1 {
            let sequence = &mut self.sequences[at];
            let keep = self.random.between(0, sequence.saved.len() as u32 - 1) as usize;
            sequence.saved.truncate(keep);
            let last = sequence.saved.last().copied();
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
            self.sequences.push(Drawn { seq: fork, tail, ..self.sequences[at].clone() });
        }
        self.collect_slots();
    }

    /// Draws a row of a step for a sequence.
    fn part(&mut self, at: usize) -> Part {
        let (random, sequence) = (&mut self.random, &self.sequences[at]);
        let len = sequence.tokens.len();
        let redirected = random.between(0, 3.min(len as u32));
        let fed = random.between(1, 9);
        let most = fed - u32::from(sequence.state.is_none());
        let drafts = random.between(0, most.min(STATES.tail_rows));
        let mut tokens = sequence.tokens[len - redirected as usize..].to_vec();
        tokens.extend((0..fed).map(|_| random.between(0, 499)));
        Part { redirected, drafts, ..part(sequence.seq, &tokens) }
    }

    /// Draws the state row of a part, and its saves.
    fn state_row(&mut self, at: usize, part: &Part, saves: &mut Vec<StateSave>) -> StateRow {
        let shared = |slot: Slot| {
            let is_other = |other: usize| other != at && self.sequences[other].state == Some(slot);
            (0..self.sequences.len()).any(is_other)
                || self
                    .sequences
                    .iter()
                    .any(|sequence| sequence.saved.iter().any(|(_, saved)| *saved == slot))
        };
        let Drawn { state, replay, tail, .. } = self.sequences[at];
        let commit = replay + part.tokens.len() as u32 - part.redirected - part.drafts;
        let in_place = state.filter(|slot| !shared(*slot) && self.random.chance(70));
        let to = match in_place {
            Some(slot) => slot,
            None => self.free.pop().unwrap(),
        };
        let first = saves.len();
        for after in 1..=commit {
            // Slots for the other rows remain.
            if self.random.one_in(8) && self.free.len() > 6 {
                saves.push(StateSave { after, slot: self.free.pop().unwrap() });
            }
        }
        let from = state.map(|slot| (PoolId(0), slot));
        let saves = Span::new(first, saves.len() - first);
        StateRow { from, to, tail, replay, skip: part.redirected, commit, saves }
    }

    /// Takes the result of a row: `accepted` of its drafts.
    fn accept(&mut self, at: usize, part: &Part, row: &StateRow, saves: &[StateSave], accepted: u32) {
        let sequence = &mut self.sequences[at];
        let covered = sequence.tokens.len() - row.replay as usize;
        let kept = part.tokens.len() - (part.drafts - accepted) as usize;
        sequence.tokens.extend(&part.tokens[part.redirected as usize..kept]);
        sequence.replay = accepted;
        if row.commit > 0 {
            sequence.state = Some(row.to);
        }
        sequence.saved.extend(saves.iter().map(|save| (covered + save.after as usize, save.slot)));
        if accepted < part.drafts {
            let len = sequence.tokens.len() as u32;
            self.cache.rewind().unwrap().rewind_to(sequence.seq, len).unwrap();
        }
        self.collect_slots();
    }
}

#[test]
fn drawn_state_rows_give_the_bits_of_one_step() {
    for (seed, case) in (0..12).zip(CASES.iter().cycle()) {
        let (model, mut drawing) = (model(case), Drawing::new(seed));
        let mut executor = PlainExecutor::new(&model, limits());
        for id in 1..=15 {
            drawing.rewind_or_fork();
            let parts: Vec<Part> = (0..drawing.sequences.len()).map(|at| drawing.part(at)).collect();
            let mut step = step(&mut drawing.cache, id, &parts);
            let states = &mut step.plan.states;
            for (at, part) in parts.iter().enumerate() {
                let row = drawing.state_row(at, part, &mut states.saves);
                states.rows.push(row);
            }
            states.bound = STATES.slots();
            let logits = executor.pass(&step, None, &[]).unwrap().logits;
            drawing.cache.retire(StepId(id)).unwrap();
            let mut logits = logits.chunks(model.program().vocab).map(<[f32]>::to_vec);
            for (at, part) in parts.iter().enumerate() {
                let own: Vec<_> = logits.by_ref().take(part.tokens.len()).collect();
                let (redirected, states) = (part.redirected as usize, &step.plan.states);
                let all = [&drawing.sequences[at].tokens[..], &part.tokens[redirected..]].concat();
                check(&model, &all, &own[redirected..], &format!("{case} seed {seed} step {id}"));
                let (row, accepted) = (states.rows[at], drawing.random.between(0, part.drafts));
                drawing.accept(at, part, &row, &states.saves[row.saves.range()], accepted);
            }
        }
    }
}

#[test]
fn a_wrong_state_section_is_refused_and_the_next_step_runs() {
    let model = model("qwen3_5");
    let mut executor = PlainExecutor::new(&model, limits());
    let mut cache = cache(CacheKind::Cells, &model);
    let seqs = [cache.open().unwrap(), cache.open().unwrap()];
    let parts = [part(seqs[0], &prompt(9, 1)), part(seqs[1], &prompt(5, 2))];
    let mut fails = |id: u64, change: &dyn Fn(&mut kvasir_exec::Step), what: &str| {
        let mut wrong = step(&mut *cache, id, &parts);
        cache.cancel(StepId(id)).unwrap();
        change(&mut wrong);
        let error = executor.pass(&wrong, None, &[]).unwrap_err();
        assert!(matches!(&error, StepError::Failed(why) if why.contains(what)), "{error}");
    };
    fails(1, &|step| step.plan.states.rows[1].to = step.plan.states.rows[0].to, "twice");
    fails(2, &|step| step.plan.states.rows[0].to = STATES.slots(), "of a pool of 16");
    fails(3, &|step| step.plan.states.reset(), "no state row");
    fails(4, &|step| step.plan.states.rows[0].commit = 8, "commits 8 of 9 queries");
    let rows = run(&mut executor, &mut *cache, 5, &parts);
    check(&model, &parts[0].tokens, &rows[..9], "after refusals");
    let mut stateless = PlainExecutor::new(&model, Limits { states: None, ..limits() });
    let error = stateless.pass(&step(&mut *cache, 6, &parts), None, &[]).unwrap_err().to_string();
    assert!(error.contains("no pool of recurrent states"), "{error}");
}

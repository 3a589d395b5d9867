//! Model-based test of `contiguous`, `tree` and `cells`: random operations with several steps in
//! flight, against the oracle.
//!
//! Checks refusals, generations, lengths, pool usage and, on a device with a tag per slot, what
//! each query reads.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;
mod oracle;

use common::{meaning, plan_of};
use kvasir_kv::{Cache, CacheError, CacheKind, Cells, ClaimRow, Contiguous, Plan, SeqId, StepId, TreeCache};
use oracle::{device::Device, model::Model};
use proptest::prelude::*;

type Op = (u8, u32, u32, u32, Vec<i32>);

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let parents = proptest::collection::vec(-1i32..6, 0..5);
    proptest::collection::vec((0u8..38, 0u32..1000, 0u32..1000, 0u32..1000, parents), 1..80)
}

struct Run {
    cache: Box<dyn Cache>,
    model: Model,
    device: Device,
    /// Every id ever issued.
    ids: Vec<SeqId>,
    next_step: u64,
    /// The newest claim, until it is submitted.
    unsubmitted: Option<u64>,
}

impl Run {
    fn new(cache: Box<dyn Cache>, max_sequences: usize, window: Option<u32>) -> Self {
        let model = Model::new(cache.shape().kind, cache.shape().capacity, max_sequences, window);
        let device = Device::new(cache.shape().capacity);
        Self { cache, model, device, ids: Vec::new(), next_step: 1, unsubmitted: None }
    }

    fn id(&self, pick: u32) -> SeqId {
        let live: Vec<_> = self.model.seqs.keys().copied().collect();
        if pick.is_multiple_of(16) || live.is_empty() {
            // Sometimes a stale or foreign id.
            self.ids.get(pick as usize / 16).copied().unwrap_or(SeqId::new(7, 9))
        } else {
            live[pick as usize / 16 % live.len()]
        }
    }

    /// Runs one operation on both and compares refusals; a refusal must not raise the generation.
    fn both(
        &mut self,
        what: &str,
        real: impl FnOnce(&mut dyn Cache) -> Result<(), CacheError>,
        model: impl FnOnce(&mut Model) -> Result<(), ()>,
    ) -> bool {
        let generation = self.cache.generation();
        let expected = model(&mut self.model);
        let got = real(&mut *self.cache);
        assert_eq!(got.is_ok(), expected.is_ok(), "{what}: {got:?}");
        let changed = self.cache.generation() != generation;
        // A copy of an empty range keeps the generation.
        assert!(changed == got.is_ok() || (what == "copy" && !changed), "{what}: generation");
        got.is_ok()
    }

    fn step(&mut self, (op, a, b, c, parents): &Op) {
        let (id, other, range) = (self.id(*a), self.id(*b), b % 24..(b % 24 + c % 24));
        let parents = &self.parents(id, parents, *c);
        let accepted = self.accepted(id, parents, *c);
        match op {
            0..=3 => self.open(),
            4 => drop(self.both("close", |x| x.close(id), |m| m.close(id))),
            5..=12 => self.claim(*a, *b, *c),
            13..=17 => self.submit(),
            18..=20 => self.retire(),
            21 => self.cancel(),
            22 => drop(self.both("rewind", |x| x.rewind()?.rewind_to(id, b % 24), |m| m.rewind(id, b % 24))),
            23 => self.sequence_verb(
                "remove",
                |x| x.sequences()?.remove(id, range.clone()),
                |m| m.remove(id, range.clone()),
            ),
            24..=25 => self.sequence_verb(
                "copy",
                |x| x.sequences()?.copy(id, other, range.clone()),
                |m| m.copy(id, other, range.clone()),
            ),
            26 => self.fork(id, c % 3),
            27 if c.is_multiple_of(3) => {
                self.sequence_verb("keep", |x| x.sequences()?.keep(id), |m| m.keep(id))
            }
            28 | 32..=33 => {
                self.tree_verb("propose", |x| x.tree()?.propose(id, parents), |m| m.propose(id, parents))
            }
            29 | 34..=36 => self.tree_verb(
                "commit",
                |x| x.tree()?.commit(id, &accepted).map(|_| ()),
                |m| m.commit(id, &accepted),
            ),
            30 => self.compact(),
            _ => {}
        }
        self.compare();
    }

    /// Mostly valid parents of a frontier.
    fn parents(&self, id: SeqId, parents: &[i32], c: u32) -> Vec<i32> {
        let first = self.model.seqs.get(&id).map_or(0, |seq| seq.nodes.len() as i32);
        let valid =
            |(node, &parent): (i32, &i32)| if c.is_multiple_of(8) { parent } else { parent.min(node - 1) };
        (first..).zip(parents).map(valid).collect()
    }

    /// Mostly a valid chain.
    fn accepted(&self, id: SeqId, parents: &[i32], c: u32) -> Vec<u32> {
        match self.model.seqs.get(&id).filter(|seq| !c.is_multiple_of(4) && !seq.nodes.is_empty()) {
            Some(seq) => {
                let above = |&node: &u32| u32::try_from(seq.nodes[node as usize].parent).ok();
                let mut chain: Vec<_> =
                    std::iter::successors(Some(c % seq.nodes.len() as u32), above).collect();
                chain.reverse();
                chain
            }
            None => parents.iter().filter_map(|&node| u32::try_from(node).ok()).collect(),
        }
    }

    fn open(&mut self) {
        let full = self.model.seqs.len() >= self.model.max_sequences;
        let got = self.cache.open();
        assert_eq!(got.is_err(), full, "open: {got:?}");
        if let Ok(id) = got {
            assert!(!self.ids.contains(&id), "{id:?} is issued again");
            self.ids.push(id);
            self.model.opened(id);
        }
    }

    fn claim(&mut self, a: u32, b: u32, c: u32) {
        if self.model.flights.len() >= 4 {
            return;
        }
        self.submit();
        let mut rows = Vec::new();
        for i in 0..1 + b % 3 {
            let seq = self.id(a + i * 16);
            let proposed = self.model.seqs.get(&seq).map_or(0, |seq| seq.proposed.len() as u32);
            let tokens = if proposed > 0 && !c.is_multiple_of(8) { proposed } else { (c + i) % 5 };
            rows.push(ClaimRow::new(seq, tokens));
        }
        let step = self.next_step;
        if self.both("claim", |x| x.claim(StepId(step), &rows), |m| m.claim(step, &rows)) {
            self.next_step += 1;
            self.unsubmitted = Some(step);
        }
    }

    fn submit(&mut self) {
        let Some(step) = self.unsubmitted else { return };
        let mut plan = Plan::default();
        let planned = self.cache.plan(StepId(step), &mut plan);
        match self.model.queries(step) {
            Some(queries) => {
                assert_eq!(planned, Ok(()), "plan");
                assert_eq!(self.cache.check_fresh(&plan), Ok(()));
                let again = plan_of(&mut *self.cache, step);
                assert_eq!(meaning(&plan), meaning(&again), "planning only reads");
                self.device.submit(&plan, queries);
                self.unsubmitted = None;
            }
            None => {
                assert!(planned.is_err(), "a claim that lost rows is not planned");
                self.cancel();
            }
        }
    }

    fn retire(&mut self) {
        let Some(step) = self.model.flights.front().map(|flight| flight.step) else { return };
        if self.unsubmitted == Some(step) {
            return;
        }
        self.device.run();
        let generation = self.cache.generation();
        self.cache.retire(StepId(step)).unwrap();
        self.cache.retire(StepId(step)).unwrap();
        assert_eq!(self.cache.generation(), generation, "retiring makes no plan stale");
        self.model.retire();
    }

    fn cancel(&mut self) {
        if let Some(step) = self.unsubmitted.take() {
            self.both(
                "cancel",
                |x| x.cancel(StepId(step)),
                |m| {
                    m.cancel();
                    Ok(())
                },
            );
        }
    }

    fn sequence_verb(
        &mut self,
        what: &str,
        real: impl FnOnce(&mut dyn Cache) -> Result<(), CacheError>,
        model: impl FnOnce(&mut Model) -> Result<(), ()>,
    ) {
        if self.model.kind == CacheKind::Cells {
            self.both(what, real, model);
        } else {
            assert!(matches!(real(&mut *self.cache), Err(CacheError::NoCapability { .. })));
        }
    }

    fn tree_verb(
        &mut self,
        what: &str,
        real: impl FnOnce(&mut dyn Cache) -> Result<(), CacheError>,
        model: impl FnOnce(&mut Model) -> Result<(), ()>,
    ) {
        if self.model.kind != CacheKind::Contiguous {
            self.both(what, real, model);
        } else {
            assert!(matches!(real(&mut *self.cache), Err(CacheError::NoCapability { .. })));
        }
    }

    fn fork(&mut self, id: SeqId, n: u32) {
        let Ok(verbs) = self.cache.sequences() else { return };
        let got = verbs.fork(id, n);
        let possible = self.model.seqs.contains_key(&id)
            && self.model.seqs.len() + n as usize <= self.model.max_sequences;
        assert_eq!(got.is_ok(), possible, "fork: {got:?}");
        if let Ok(forks) = got {
            self.ids.extend(&forks);
            self.model.fork(id, &forks);
        }
    }

    fn compact(&mut self) {
        if self.model.kind == CacheKind::Cells {
            let got = self.cache.compact();
            assert_eq!(got.is_err(), !self.model.flights.is_empty(), "compact: {got:?}");
        }
    }

    fn compare(&self) {
        assert_eq!(self.cache.check(), Ok(()));
        let (usage, free) = (self.cache.usage(), self.model.free());
        assert_eq!(usage.available(), free);
        assert_eq!(usage.free + usage.held + usage.leased, self.cache.shape().capacity);
        for id in &self.ids {
            match self.model.seqs.get(id) {
                Some(seq) => {
                    assert_eq!(self.cache.len(*id), Ok(seq.len()));
                    assert_eq!(self.cache.claimed_len(*id), Ok(seq.rows.len() as u32));
                    assert_eq!(self.cache.next_position(*id), Ok(seq.next()));
                }
                None => assert_eq!(self.cache.len(*id), Err(CacheError::UnknownSequence(*id))),
            }
        }
    }

    /// Retires and closes everything; the pool must be empty again.
    fn finish(mut self) {
        self.submit();
        while !self.model.flights.is_empty() {
            self.retire();
            self.compare();
        }
        for seq in self.model.seqs.keys().copied().collect::<Vec<_>>() {
            assert!(self.both("close", |x| x.close(seq), |m| m.close(seq)));
        }
        self.compare();
        assert_eq!(self.cache.usage().free, self.cache.shape().capacity);
    }
}

fn run(cache: Box<dyn Cache>, max_sequences: usize, window: Option<u32>, ops: &[Op]) {
    let mut run = Run::new(cache, max_sequences, window);
    ops.iter().for_each(|op| run.step(op));
    run.finish();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn contiguous(capacity in 1u32..40, ops in ops()) {
        run(Box::new(Contiguous::new(capacity)), 1, None, &ops);
    }

    #[test]
    fn tree(capacity in 1u32..40, ops in ops()) {
        run(Box::new(TreeCache::new(capacity)), 1, None, &ops);
    }

    #[test]
    fn cells(capacity in 1u32..90, ops in ops()) {
        run(Box::new(Cells::new(capacity, 6, None).unwrap()), 6, None, &ops);
    }

    #[test]
    fn cells_with_a_window(capacity in 1u32..90, window in 1u32..7, ops in ops()) {
        run(Box::new(Cells::new(capacity, 6, Some(window)).unwrap()), 6, Some(window), &ops);
    }
}

//! Unit-level properties of the `contiguous`, `tree` and `cells` caches: stale plans, rings, frozen
//! prefixes, plan classification, compaction.
//!
//! `random_operations.rs` tests the same caches against a model.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{meaning, plan_of};
use kvasir_kv::{
    Cache, CacheError, Cells, ClaimRow, Contiguous, GroupId, Inspect, Layout, Lowering, Mask, MemoryHints,
    Plan, PlanKind, PoolId, Rings, SeqId, SlotCopy, StepId, TreeCache,
};
use kvasir_testkit::Random;

/// One step from claim to retirement.
fn run(cache: &mut dyn Cache, step: u64, rows: &[ClaimRow]) -> Plan {
    cache.claim(StepId(step), rows).unwrap();
    let plan = plan_of(cache, step);
    cache.retire(StepId(step)).unwrap();
    plan
}

fn cells(capacity: u32) -> Cells {
    Cells::new(capacity, 300, None).unwrap()
}

type Verb = (&'static str, fn(&mut dyn Cache, SeqId, SeqId));

/// Makes a plan for `other`, with another step of it in flight or not; the operation must make it
/// stale.
fn goes_stale(make: impl Fn() -> Box<dyn Cache>, prepare: fn(&mut dyn Cache, SeqId, SeqId), verbs: &[Verb]) {
    for (name, verb) in verbs {
        for in_flight in [false, true] {
            let cache = &mut *make();
            let seq = cache.open().unwrap();
            // A single-sequence cache uses the same sequence for both.
            let other = cache.open().unwrap_or(seq);
            prepare(cache, seq, other);
            if in_flight {
                cache.claim(StepId(50), &[ClaimRow::new(other, 1)]).unwrap();
            }
            cache.claim(StepId(51), &[ClaimRow::new(other, 1)]).unwrap();
            let plan = plan_of(cache, 51);
            cache.check_fresh(&plan).unwrap();
            if in_flight {
                cache.retire(StepId(50)).unwrap();
                cache
                    .check_fresh(&plan)
                    .unwrap_or_else(|error| panic!("retiring makes no plan stale: {error}"));
            }
            verb(cache, seq, other);
            let current = cache.generation();
            let stale = Err(CacheError::StalePlan { plan: plan.generation, current });
            assert_eq!(cache.check_fresh(&plan), stale, "{name}, in flight: {in_flight}");
            cache.check().unwrap();
        }
    }
}

const ONE_SEQUENCE: &[Verb] = &[
    ("claim", |cache, seq, _| cache.claim(StepId(60), &[ClaimRow::new(seq, 1)]).unwrap()),
    ("cancel", |cache, _, _| cache.cancel(StepId(51)).unwrap()),
    ("rewind", |cache, seq, _| cache.rewind().unwrap().rewind_to(seq, 2).unwrap()),
    ("close", |cache, seq, _| cache.close(seq).unwrap()),
];

#[test]
fn every_change_of_contiguous_makes_plans_stale() {
    goes_stale(
        || Box::new(Contiguous::new(32)),
        |cache, seq, _| drop(run(cache, 1, &[ClaimRow::new(seq, 4)])),
        ONE_SEQUENCE,
    );
}

#[test]
fn every_change_of_tree_makes_plans_stale() {
    let make = || -> Box<dyn Cache> { Box::new(TreeCache::new(32)) };
    goes_stale(make, |cache, seq, _| drop(run(cache, 1, &[ClaimRow::new(seq, 4)])), ONE_SEQUENCE);
    // On the single sequence of a `tree` cache these come between two of its own steps.
    goes_stale(
        make,
        |cache, seq, _| drop(run(cache, 1, &[ClaimRow::new(seq, 4)])),
        &[
            ("propose", |cache, seq, _| cache.tree().unwrap().propose(seq, &[-1]).unwrap()),
            ("commit", |cache, seq, _| assert!(cache.tree().unwrap().commit(seq, &[]).is_ok())),
        ],
    );
}

#[test]
fn every_change_of_cells_makes_plans_stale() {
    let prepare: fn(&mut dyn Cache, SeqId, SeqId) = |cache, seq, other| {
        run(cache, 1, &[ClaimRow::new(other, 3), ClaimRow::new(seq, 4)]);
        cache.tree().unwrap().propose(seq, &[-1, 0]).unwrap();
        run(cache, 2, &[ClaimRow::new(seq, 2)]);
    };
    let make = || -> Box<dyn Cache> { Box::new(cells(64)) };
    goes_stale(
        make,
        prepare,
        &[
            ("claim", |cache, _, other| cache.claim(StepId(60), &[ClaimRow::new(other, 1)]).unwrap()),
            ("cancel", |cache, _, _| cache.cancel(StepId(51)).unwrap()),
            ("rewind", |cache, _, other| cache.rewind().unwrap().rewind_to(other, 2).unwrap()),
            ("close", |cache, seq, _| cache.close(seq).unwrap()),
            ("copy", |cache, seq, _| {
                let new = cache.open().unwrap();
                cache.sequences().unwrap().copy(seq, new, 1..3).unwrap();
            }),
            ("remove", |cache, _, other| cache.sequences().unwrap().remove(other, 0..1).unwrap()),
            ("keep", |cache, seq, _| cache.sequences().unwrap().keep(seq).unwrap()),
            ("fork", |cache, seq, _| drop(cache.sequences().unwrap().fork(seq, 1).unwrap())),
            ("propose", |cache, seq, _| cache.tree().unwrap().propose(seq, &[1]).unwrap()),
            ("commit", |cache, seq, _| assert!(cache.tree().unwrap().commit(seq, &[0]).is_ok())),
            ("compact", |cache, _, other| {
                cache.rewind().unwrap().rewind_to(other, 0).unwrap();
                assert_eq!(cache.compact(), Err(CacheError::InFlight), "never while a lease is out");
                cache.retire(StepId(51)).unwrap();
                let before = cache.generation();
                assert!(cache.compact().unwrap() > 0);
                assert!(cache.generation() > before);
            }),
        ],
    );
}

#[test]
fn writes_append_at_the_length() {
    let mut cache = Contiguous::new(8);
    let seq = cache.open().unwrap();
    run(&mut cache, 1, &[ClaimRow::new(seq, 3)]);
    let rewind = cache.rewind().unwrap().rewind_to(seq, 4);
    assert_eq!(rewind, Err(CacheError::RewindOutOfRange { to: 4, lowest: 0, length: 3 }));
    assert_eq!(
        cache.claim(StepId(2), &[ClaimRow::new(seq, 6)]),
        Err(CacheError::Full { group: GroupId::FULL, needed: 6, available: 5 })
    );
    assert_eq!(cache.claim(StepId(2), &[ClaimRow::new(seq, 0)]), Err(CacheError::BadClaim));
    assert_eq!(cache.open(), Err(CacheError::TooManySequences));
}

#[test]
fn slots_closed_during_a_step_are_leased_until_it_ends() {
    let mut cache = Contiguous::new(8);
    let old = cache.open().unwrap();
    cache.claim(StepId(1), &[ClaimRow::new(old, 3)]).unwrap();
    cache.close(old).unwrap();
    let new = cache.open().unwrap();
    assert_eq!(cache.usage().leased, 8);
    assert_eq!(
        cache.claim(StepId(2), &[ClaimRow::new(new, 1)]),
        Err(CacheError::Full { group: GroupId::FULL, needed: 1, available: 0 })
    );
    cache.retire(StepId(1)).unwrap();
    assert_eq!((cache.len(new), cache.usage().free), (Ok(0), 8));
    run(&mut cache, 3, &[ClaimRow::new(new, 1)]);
}

#[test]
fn rings_bound_writes_and_rewinds() {
    let mut cache = Contiguous::with_rings(64, Rings::new(vec![4], 3).unwrap());
    let seq = cache.open().unwrap();
    let too_long = CacheError::WriteTooLong { tokens: 4, longest: 3 };
    assert_eq!(cache.claim(StepId(1), &[ClaimRow::new(seq, 4)]), Err(too_long));
    for step in 1..=3 {
        run(&mut cache, step, &[ClaimRow::new(seq, 3)]);
    }
    // Nine rows were written to a ring of six: positions below 3 are overwritten, and 6 is the
    // lowest length whose next token still finds the three before it.
    assert_eq!(cache.retained_from(), 3);
    let refused = cache.rewind().unwrap().rewind_to(seq, 5);
    assert_eq!(refused, Err(CacheError::RewindOutOfRange { to: 5, lowest: 6, length: 9 }));
    cache.rewind().unwrap().rewind_to(seq, 7).unwrap();
    let refused = cache.rewind().unwrap().rewind_to(seq, 5);
    assert_eq!(
        refused,
        Err(CacheError::RewindOutOfRange { to: 5, lowest: 6, length: 7 }),
        "what is lost stays lost"
    );
    // A canceled claim overwrote nothing.
    run(&mut cache, 4, &[ClaimRow::new(seq, 2)]);
    cache.claim(StepId(5), &[ClaimRow::new(seq, 3)]).unwrap();
    assert_eq!(cache.retained_from(), 6);
    cache.cancel(StepId(5)).unwrap();
    assert_eq!(cache.retained_from(), 3);
    cache.close(seq).unwrap();
    cache.open().unwrap();
    assert_eq!(cache.retained_from(), 0);
}

#[test]
fn a_fork_reads_the_shared_prefix_then_its_tail() {
    let mut trunk = Contiguous::new(8);
    let seq = trunk.open().unwrap();
    trunk.claim(StepId(1), &[ClaimRow::new(seq, 5)]).unwrap();
    let (mut trunk, error) = *trunk.freeze(PoolId(1)).unwrap_err();
    assert_eq!(error, CacheError::InFlight);
    trunk.retire(StepId(1)).unwrap();
    let prefix = trunk.freeze(PoolId(1)).unwrap();
    let watch = prefix.watch();
    let mut fork = prefix.fork(4).unwrap();
    let mut other = prefix.fork(4).unwrap();
    let (seq, second) = (fork.open().unwrap(), other.open().unwrap());
    assert_eq!((fork.len(seq), fork.usage().free), (Ok(5), 4));
    let plan = run(&mut fork, 1, &[ClaimRow::new(seq, 2)]);
    assert_eq!((&plan.positions[..], &plan.write_slots[..]), (&[5, 6][..], &[0, 1][..]));
    assert_eq!(plan.rows[0].mask, Mask::Causal);
    let read: Vec<_> = plan.entries(&plan.rows[0]).collect();
    let (own, shared) = (PoolId(0), PoolId(1));
    let five = (0..5).map(|p| (shared, p, p));
    assert_eq!(read, five.chain([(own, 0, 5), (own, 1, 6)]).collect::<Vec<_>>());
    assert_eq!(run(&mut other, 1, &[ClaimRow::new(second, 1)]).write_slots, [0], "forks are independent");
    let into = fork.rewind().unwrap().rewind_to(seq, 4);
    assert_eq!(
        into,
        Err(CacheError::RewindOutOfRange { to: 4, lowest: 5, length: 7 }),
        "never into the prefix"
    );

    let mut explicit = Plan::default();
    Lowering::default().lower(&plan, &mut explicit);
    assert_eq!(explicit.entries(&explicit.rows[0]).collect::<Vec<_>>(), read, "lowering keeps both segments");
    assert!(!explicit.sees(&explicit.rows[0], 0, 6) && explicit.sees(&explicit.rows[0], 1, 6));

    // A prefix on a prefix: the fork's tail is frozen on top.
    let above = fork.freeze(PoolId(2)).unwrap();
    let mut deep = above.fork(4).unwrap();
    let seq = deep.open().unwrap();
    let plan = run(&mut deep, 1, &[ClaimRow::new(seq, 1)]);
    let pools: Vec<_> =
        plan.segments.iter().map(|segment| (segment.pool, segment.first, segment.len)).collect();
    assert_eq!(pools, [(shared, 0, 5), (PoolId(2), 5, 2), (own, 7, 1)]);

    drop(prefix);
    drop(other);
    assert!(!watch.is_gone(), "a fork of a fork still reads it");
    drop(above);
    drop(deep);
    assert!(watch.is_gone());
}

/// The plan kind of one more decode token of `seq`.
fn classified(cache: &mut Cells, step: u64, seq: SeqId) -> PlanKind {
    let plan = run(cache, step, &[ClaimRow::new(seq, 1)]);
    plan.kind
}

#[test]
fn one_run_from_slot_zero_is_contiguous() {
    let mut cache = cells(64);
    let seq = cache.open().unwrap();
    let plan = run(&mut cache, 1, &[ClaimRow::new(seq, 9)]);
    assert_eq!((plan.kind, plan.rows[0].mask, plan.read_bound), (PlanKind::Contiguous, Mask::Causal, 9));
    assert_eq!(plan.segments[0].layout, Layout::Run { start: 0 });
    let plan = run(&mut cache, 2, &[ClaimRow::new(seq, 1)]);
    assert_eq!((plan.kind, plan.rows[0].mask, plan.table.len()), (PlanKind::Contiguous, Mask::None, 0));
    // With several steps in flight each reads up to its own end.
    cache.claim(StepId(3), &[ClaimRow::new(seq, 2)]).unwrap();
    cache.claim(StepId(4), &[ClaimRow::new(seq, 1)]).unwrap();
    let (third, fourth) = (plan_of(&mut cache, 3), plan_of(&mut cache, 4));
    assert_eq!((third.kind, third.rows[0].read_len), (PlanKind::Contiguous, 12));
    assert_eq!((fourth.kind, fourth.rows[0].read_len), (PlanKind::Contiguous, 13));
}

#[test]
fn other_reads_are_not_contiguous() {
    // Two sequences in one step.
    let mut cache = cells(64);
    let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
    assert_eq!(run(&mut cache, 1, &[ClaimRow::new(a, 3), ClaimRow::new(b, 3)]).kind, PlanKind::Ragged);
    // A single row, but no run from cell 0: b begins at cell 3, and b's cells split a's.
    assert_eq!(classified(&mut cache, 2, b), PlanKind::Ragged);
    assert_eq!(classified(&mut cache, 3, a), PlanKind::Ragged);
    // A hole in the positions.
    let mut cache = cells(64);
    let seq = cache.open().unwrap();
    run(&mut cache, 1, &[ClaimRow::new(seq, 8)]);
    cache.sequences().unwrap().remove(seq, 2..4).unwrap();
    assert_eq!(classified(&mut cache, 2, seq), PlanKind::Ragged);
    // The lowest cell is free again and takes the new token, so the run does not begin at cell 0.
    let mut cache = cells(64);
    let seq = cache.open().unwrap();
    run(&mut cache, 1, &[ClaimRow::new(seq, 8)]);
    cache.sequences().unwrap().remove(seq, 0..2).unwrap();
    let plan = run(&mut cache, 2, &[ClaimRow::new(seq, 1)]);
    assert_eq!((plan.kind, &plan.write_slots[..]), (PlanKind::Ragged, &[0][..]));
}

#[test]
fn a_window_inside_the_read_is_not_contiguous() {
    let mut cache = Cells::new(64, 4, Some(4)).unwrap();
    let seq = cache.open().unwrap();
    let first = run(&mut cache, 1, &[ClaimRow::new(seq, 4)]);
    assert_eq!(
        (first.kind, first.rows[0].mask),
        (PlanKind::Contiguous, Mask::Causal),
        "it does not cut in yet"
    );
    let single = run(&mut cache, 2, &[ClaimRow::new(seq, 1)]);
    assert_eq!(
        (single.kind, single.rows[0].mask, single.rows[0].read_len),
        (PlanKind::Ragged, Mask::None, 4)
    );
    let several = run(&mut cache, 3, &[ClaimRow::new(seq, 3)]);
    assert_eq!((several.kind, several.rows[0].read_len), (PlanKind::Explicit, 6));
}

#[test]
fn compaction_makes_the_next_plan_contiguous() {
    let mut cache = cells(64);
    let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
    for step in 1..=4 {
        run(&mut cache, step, &[ClaimRow::new(b, 2), ClaimRow::new(a, 2)]);
    }
    cache.close(b).unwrap();
    assert_eq!(cache.high_water(), 16);
    assert_eq!(cache.compact(), Ok(8));
    assert_eq!((cache.high_water(), cache.usage().free), (8, 56));
    cache.claim(StepId(5), &[ClaimRow::new(a, 1)]).unwrap();
    let plan = plan_of(&mut cache, 5);
    let expected = [(2, 0), (3, 1), (6, 2), (7, 3), (10, 4), (11, 5), (14, 6), (15, 7)];
    assert_eq!(plan.moves, expected.map(|(from, to)| SlotCopy { from, to }));
    assert_eq!(
        (plan.kind, plan.read_bound),
        (PlanKind::Contiguous, 16),
        "the moves' sources are below the bound"
    );
    cache.retire(StepId(5)).unwrap();
    assert_eq!(cache.compact(), Ok(0), "there is nothing left to do");
    assert_eq!(run(&mut cache, 6, &[ClaimRow::new(a, 1)]).moves, []);
}

#[test]
fn a_shared_trunk_is_read_as_one_run() {
    let mut cache = Cells::new(4096, 1000, None).unwrap();
    let trunk = cache.open().unwrap();
    run(&mut cache, 1, &[ClaimRow::new(trunk, 500)]);
    let forks = cache.sequences().unwrap().fork(trunk, 200).unwrap();
    assert_eq!(cache.usage().held, 500, "a fork copies nothing");
    let rows: Vec<_> = forks.iter().map(|&fork| ClaimRow::new(fork, 1)).collect();
    run(&mut cache, 2, &rows);
    let plan = run(&mut cache, 3, &rows);
    // Each tail has two tokens; the first fork's first token lies right behind the trunk and
    // extends the run.
    let tables = plan.segments.iter().filter(|segment| matches!(segment.layout, Layout::Table { .. }));
    assert_eq!(tables.map(|segment| segment.len).sum::<u32>(), 399, "only the tails are tables");
    for (i, row) in plan.rows.iter().enumerate() {
        let slots: Vec<_> = plan.entries(row).map(|(_, slot, _)| slot).collect();
        let expected: Vec<u32> = (0..500).chain([500 + i as u32, 700 + i as u32]).collect();
        assert_eq!(slots, expected);
    }
    cache.sequences().unwrap().keep(forks[7]).unwrap();
    assert_eq!(cache.usage().held, 502);
    assert_eq!(cache.len(trunk), Err(CacheError::UnknownSequence(trunk)));
    cache.check().unwrap();
}

/// Incremental slot tables: a plan in reused memory equals one in fresh memory, whatever happened
/// in between.
#[test]
fn cells_plans_do_not_depend_on_reused_memory() {
    let mut cache = Cells::new(600, 16, None).unwrap();
    let (mut used, mut live, mut random) = (Plan::default(), Vec::<SeqId>::new(), Random::new(9));
    let mut held = Vec::new();
    for step in (1..900).map(StepId) {
        let any = live.get(random.below(live.len().max(1) as u64) as usize).copied();
        match (random.below(40), any) {
            (0..10, _) | (_, None) if live.len() < 6 => live.push(cache.open().unwrap()),
            (10, Some(seq)) => {
                live.retain(|other| *other != seq);
                cache.close(seq).unwrap();
            }
            (11, Some(seq)) => cache.sequences().unwrap().remove(seq, 3..5).unwrap(),
            (12, Some(seq)) => {
                let next = cache.next_position(seq).unwrap();
                cache.rewind().unwrap().rewind_to(seq, next - next / 8).unwrap();
            }
            (13, Some(seq)) if live.len() < 6 && cache.len(seq).unwrap() > 0 => {
                live.extend(cache.sequences().unwrap().fork(seq, 1).unwrap());
            }
            (14, _) => drop(cache.compact().unwrap()),
            _ => {}
        }
        let tree = any.filter(|seq| random.below(8) == 0 && live.contains(seq));
        let tokens = if random.below(9) == 1 { 40 } else { 1 };
        let rows = live.iter().map(|&seq| ClaimRow::new(seq, if tree == Some(seq) { 2 } else { tokens }));
        let rows: Vec<_> = rows.collect();
        tree.into_iter().for_each(|seq| cache.tree().unwrap().propose(seq, &[-1, 0]).unwrap());
        if rows.is_empty() || cache.claim(step, &rows).is_err() {
            live.drain(..).for_each(|seq| cache.close(seq).unwrap());
            continue;
        }
        cache.plan(step, &mut used).unwrap();
        let fresh = plan_of(&mut cache, step.0);
        assert_eq!(meaning(&used), meaning(&fresh));
        // A table that a plan holds is not extended, so the next fresh plan is written in full.
        held.push((meaning(&fresh), fresh));
        cache.retire(step).unwrap();
        tree.into_iter().for_each(|seq| drop(cache.tree().unwrap().commit(seq, &[0]).unwrap().to_vec()));
        cache.check().unwrap();
    }
    held.iter().for_each(|(answered, plan)| assert_eq!(*answered, meaning(plan), "plans that are held stay"));
}

#[test]
fn keep_leaves_other_families_alone() {
    let mut cache = cells(64);
    let (ours, theirs) = (cache.open().unwrap(), cache.open().unwrap());
    run(&mut cache, 1, &[ClaimRow::new(ours, 3), ClaimRow::new(theirs, 3)]);
    let fork = cache.sequences().unwrap().fork(ours, 1).unwrap()[0];
    let foreign = cache.sequences().unwrap().copy(ours, theirs, 0..2);
    assert_eq!(foreign, Err(CacheError::CopyOverlaps));
    run(&mut cache, 2, &[ClaimRow::new(ours, 4)]);
    let foreign = cache.sequences().unwrap().copy(ours, theirs, 5..7);
    assert_eq!(foreign, Err(CacheError::NotInFamily));
    cache.sequences().unwrap().keep(fork).unwrap();
    assert_eq!(cache.len(ours), Err(CacheError::UnknownSequence(ours)));
    assert_eq!((cache.len(fork), cache.len(theirs)), (Ok(3), Ok(3)));
}

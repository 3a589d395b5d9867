//! The verbs of `paged` and `radix`, one rule per test.

#![allow(clippy::unwrap_used)]

use kvasir_kv::blocks::BlockConfig;
use kvasir_kv::{Cache, CacheError, ClaimRow, Paged, Plan, Radix, Room, RowMove, SeqId, StepId, Token};

const SMALL: BlockConfig =
    BlockConfig { block_size: 4, blocks: 8, max_sequences: 8, sharing: true, dummy: false };

/// The same test over both caches.
fn both(config: BlockConfig, test: impl Fn(&mut dyn Cache)) {
    test(&mut Paged::new(config).unwrap());
    test(&mut Radix::new(config).unwrap());
}

fn row(seq: SeqId, tokens: u32) -> ClaimRow {
    ClaimRow { seq, redirected: 0, tokens }
}

fn plan_of(cache: &dyn Cache, step: u64) -> Plan {
    let mut plan = Plan::default();
    cache.plan(StepId(step), &mut plan).unwrap();
    plan
}

/// Claims and retires `tokens` for one sequence.
fn run(cache: &mut dyn Cache, step: u64, seq: SeqId, tokens: u32) {
    cache.claim(StepId(step), &[row(seq, tokens)]).unwrap();
    cache.retire(StepId(step)).unwrap();
    cache.check().unwrap();
}

fn publish(cache: &mut dyn Cache, seq: SeqId, tokens: &[Token]) {
    cache.prefix().unwrap().publish(seq, tokens, tokens.len() as u32).unwrap();
    cache.check().unwrap();
}

fn room(free: u32, evictable: u32, held: u32, leased: u32) -> Room {
    Room { free, evictable, held, leased }
}

#[test]
fn a_step_writes_its_positions_and_reads_all_before_them() {
    both(SMALL, |cache| {
        let seq = cache.open().unwrap();
        run(cache, 1, seq, 3);
        cache.claim(StepId(2), &[row(seq, 3)]).unwrap();
        assert_eq!((cache.len(seq), cache.claimed_len(seq)), (Ok(3), Ok(6)));
        let plan = plan_of(cache, 2);
        assert_eq!(plan.positions, [3, 4, 5]);
        assert_eq!(plan.write_slots, [3, 4, 5]);
        let read: Vec<_> = plan.entries(&plan.rows[0]).map(|(_, slot, position)| (slot, position)).collect();
        assert_eq!(read, (0..6).map(|i| (i, i)).collect::<Vec<_>>());
        assert!(plan.read_bound >= 6);
        cache.retire(StepId(2)).unwrap();
        cache.retire(StepId(2)).unwrap();
        assert_eq!(cache.len(seq), Ok(6));
        assert_eq!(cache.room(), room(24, 0, 8, 0));
    });
}

#[test]
fn a_claim_takes_all_or_nothing() {
    both(SMALL, |cache| {
        let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
        run(cache, 1, a, 20);
        let (before, generation) = (cache.room(), cache.generation());
        let full = CacheError::Full { needed: 16, available: 12 };
        assert_eq!(cache.claim(StepId(2), &[row(a, 4), row(b, 9)]), Err(full));
        assert_eq!(cache.claim(StepId(2), &[row(a, 1), row(a, 1)]), Err(CacheError::BadClaim));
        assert_eq!(cache.claim(StepId(2), &[]), Err(CacheError::BadClaim));
        assert_eq!(cache.claim(StepId(2), &[row(b, 0)]), Err(CacheError::BadClaim));
        assert_eq!(cache.claim(StepId(1), &[row(b, 1)]), Err(CacheError::StepOutOfOrder(StepId(1))));
        assert_eq!((cache.room(), cache.generation()), (before, generation));
        assert!(cache.can_extend(b, 12) && !cache.can_extend(b, 13));
        cache.claim(StepId(2), &[row(a, 4), row(b, 8)]).unwrap();
        cache.check().unwrap();
    });
}

#[test]
fn a_lookup_is_attached_only_while_it_is_the_newest_and_nothing_has_changed() {
    type Verb = fn(&mut dyn Cache);
    let verbs: [(&str, Verb, u32); 6] = [
        ("nothing", |_| {}, 8),
        (
            "another lookup",
            |cache| assert_eq!(cache.prefix().unwrap().lookup(&[70, 71, 72, 73, 74], 0).tokens, 0),
            8,
        ),
        ("eviction", |cache| assert_eq!(cache.prefix().unwrap().evict(32), Ok(8)), 0),
        ("clearing", |cache| cache.clear().unwrap(), 0),
        (
            "a claim that takes what was found",
            |cache| {
                let seq = cache.open().unwrap();
                run(cache, 2, seq, 32);
                cache.close(seq).unwrap();
            },
            0,
        ),
        (
            "blocks taken ahead out of what was found",
            |cache| {
                let seq = cache.open().unwrap();
                assert_eq!(cache.take_ahead(seq, 32), Ok(32));
                cache.close(seq).unwrap();
            },
            0,
        ),
    ];
    for (what, verb, left) in verbs {
        both(SMALL, |cache| {
            let prompt: Vec<Token> = (0..9).collect();
            let a = cache.open().unwrap();
            run(cache, 1, a, 9);
            publish(cache, a, &prompt);
            cache.close(a).unwrap();
            let found = cache.prefix().unwrap().lookup(&prompt, 0);
            assert_eq!(found.tokens, 8);
            verb(cache);
            let b = cache.open().unwrap();
            let hit = cache.prefix().unwrap().attach(b, &prompt, 0, u32::MAX, found.lookup).unwrap();
            assert_eq!(hit.tokens, left, "{what}");
            cache.check().unwrap();
            let again = cache.prefix().unwrap().lookup(&prompt, 0);
            let other = cache.open().unwrap();
            let hit = cache.prefix().unwrap().attach(other, &prompt, 1, u32::MAX, again.lookup).unwrap();
            assert_eq!(hit.tokens, 0, "another tenant's");
        });
    }
}

#[test]
fn a_prompt_finds_what_an_earlier_one_left() {
    both(SMALL, |cache| {
        let prompt: Vec<Token> = (0..9).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 9);
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 8);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt[..8], 0).tokens, 4, "the last token is computed");
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 1).tokens, 0, "another tenant's");
        cache.close(a).unwrap();
        assert_eq!(cache.room(), room(24, 8, 0, 0));
        let hit = cache.prefix().unwrap().lookup(&prompt, 0);
        assert_eq!((hit.tokens, hit.idle), (8, 8));
        let b = cache.open().unwrap();
        cache.prefix().unwrap().attach(b, &prompt, 0, u32::MAX, hit.lookup).unwrap();
        assert_eq!(cache.room(), room(24, 0, 8, 0));
        assert_eq!((cache.len(b), cache.next_position(b)), (Ok(8), Ok(8)));
        cache.check().unwrap();
    });
}

#[test]
fn what_a_step_in_flight_names_is_leased_when_its_owner_closes() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 5);
        cache.claim(StepId(2), &[row(a, 1)]).unwrap();
        cache.close(a).unwrap();
        assert_eq!(cache.room(), room(24, 0, 0, 8));
        cache.check().unwrap();
        cache.retire(StepId(2)).unwrap();
        assert_eq!(cache.room(), room(32, 0, 0, 0));
        assert_eq!(cache.len(a), Err(CacheError::UnknownSequence(a)));
    });
}

#[test]
fn two_copies_of_one_prefix_become_one_in_a_radix_cache() {
    let mut cache = Radix::new(SMALL).unwrap();
    let prompt: Vec<Token> = (0..8).collect();
    let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
    cache.claim(StepId(1), &[row(a, 8), row(b, 8)]).unwrap();
    cache.retire(StepId(1)).unwrap();
    publish(&mut cache, a, &prompt);
    cache.claim(StepId(2), &[row(b, 1)]).unwrap();
    let generation = cache.generation();
    publish(&mut cache, b, &prompt);
    assert!(cache.generation() > generation);
    assert_eq!(cache.table(b).unwrap()[..2], cache.table(a).unwrap()[..2]);
    assert_eq!(cache.room(), room(12, 0, 12, 8), "the copies wait for the step that names them");
    cache.retire(StepId(2)).unwrap();
    assert_eq!(cache.room(), room(20, 0, 12, 0));
}

#[test]
fn blocks_taken_ahead_are_used_first_and_come_back() {
    both(SMALL, |cache| {
        let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
        assert_eq!(cache.take_ahead(a, 9), Ok(12));
        assert_eq!((cache.take_ahead(a, 0), cache.claimed_len(a)), (Ok(12), Ok(0)));
        assert_eq!(cache.room(), room(20, 0, 12, 0));
        cache.check().unwrap();
        run(cache, 1, b, 4);
        cache.claim(StepId(2), &[row(a, 5)]).unwrap();
        assert_eq!(plan_of(cache, 2).write_slots, [0, 1, 2, 3, 4], "the blocks before b's");
        assert_eq!(cache.take_ahead(a, 13), Ok(16));
        assert_eq!(cache.room().free, 12);
        let full = CacheError::Full { needed: 16, available: 12 };
        assert_eq!(cache.take_ahead(a, 32), Err(full));
        assert!(cache.can_extend(a, 23) && !cache.can_extend(a, 24));
        cache.cancel(StepId(2)).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.take_ahead(a, 0), Ok(16), "a cancelled claim's blocks are ahead again");
        assert_eq!(cache.room().held, 20);
        cache.claim(StepId(3), &[row(a, 5)]).unwrap();
        assert_eq!(plan_of(cache, 3).write_slots, [0, 1, 2, 3, 4], "in the order they had");
        cache.retire(StepId(3)).unwrap();
        cache.close(a).unwrap();
        cache.close(b).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.room().available(), 32);
    });
}

#[test]
fn a_fork_that_rewinds_leaves_the_moves_of_a_shared_block_alone() {
    both(SMALL, |cache| {
        let seq = cache.open().unwrap();
        run(cache, 1, seq, 2);
        cache.tree().unwrap().propose(seq, &[-1, -1, 1]).unwrap();
        run(cache, 2, seq, 3);
        let moves = cache.tree().unwrap().commit(seq, &[1, 2]).unwrap().to_vec();
        assert_eq!(moves, [RowMove { from: 3, to: 2 }, RowMove { from: 4, to: 3 }]);
        assert_eq!(
            cache.room(),
            room(24, 0, 4, 4),
            "the block that the moves read stays until they have run"
        );
        let fork = cache.sequences().unwrap().fork(seq, 1).unwrap()[0];
        cache.rewind().unwrap().rewind_to(fork, 3).unwrap();
        cache.check().unwrap();
        cache.claim(StepId(3), &[row(seq, 1)]).unwrap();
        assert_eq!(plan_of(cache, 3).moves, moves);
        cache.retire(StepId(3)).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.room(), room(24, 0, 8, 0));
    });
}

#[test]
fn moves_of_a_cancelled_step_whose_owner_left_are_dropped() {
    both(SMALL, |cache| {
        let seq = cache.open().unwrap();
        run(cache, 1, seq, 2);
        cache.tree().unwrap().propose(seq, &[-1, -1, 1]).unwrap();
        run(cache, 2, seq, 3);
        assert!(!cache.tree().unwrap().commit(seq, &[1, 2]).unwrap().is_empty());
        cache.claim(StepId(3), &[row(seq, 1)]).unwrap();
        cache.close(seq).unwrap();
        cache.cancel(StepId(3)).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.room(), room(32, 0, 0, 0));
    });
}

/// A cache keeps what stands in a plan's memory only as long as it is true: reused memory and fresh memory say the same.
#[test]
fn a_plan_in_used_memory_says_what_a_fresh_one_says() {
    both(BlockConfig { block_size: 2, blocks: 64, ..SMALL }, |cache| {
        let (mut used, mut step, mut state) = (Plan::default(), 0, 9u64);
        let mut live: Vec<SeqId> = Vec::new();
        for _ in 0..600 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let dice = |n: u64| (state >> 33) % n;
            let any = live.get(dice(live.len().max(1) as u64) as usize).copied();
            match (dice(10), any) {
                (0, _) | (_, None) if live.len() < 6 => live.push(cache.open().unwrap()),
                (1, Some(seq)) => {
                    live.retain(|other| *other != seq);
                    cache.close(seq).unwrap();
                }
                (2, Some(seq)) => {
                    let next = cache.next_position(seq).unwrap();
                    cache.rewind().unwrap().rewind_to(seq, next / 2).unwrap();
                }
                (3, Some(seq)) if live.len() < 6 => {
                    live.extend(cache.sequences().unwrap().fork(seq, 1).unwrap());
                }
                _ => {}
            }
            let tokens = if dice(5) == 0 { 5 } else { 1 };
            let rows: Vec<ClaimRow> = live.iter().map(|&seq| row(seq, tokens)).collect();
            step += 1;
            if rows.is_empty() || cache.claim(StepId(step), &rows).is_err() {
                live.drain(..).for_each(|seq| cache.close(seq).unwrap());
                continue;
            }
            cache.plan(StepId(step), &mut used).unwrap();
            let fresh = plan_of(cache, step);
            let said = |plan: &Plan| {
                let entries = plan.rows.iter().map(|row| plan.entries(row).collect::<Vec<_>>());
                (entries.collect::<Vec<_>>(), plan.write_slots.clone(), plan.kind, plan.moves.clone())
            };
            assert_eq!(said(&used), said(&fresh));
            assert!(used.table.len() <= 16 * 64, "what is out of use is given up");
            match dice(7) {
                0 => cache.cancel(StepId(step)).unwrap(),
                _ => cache.retire(StepId(step)).unwrap(),
            }
            cache.check().unwrap();
        }
    });
}

/// A verb, on a cache in which `a` has 8 published tokens, `b` has forked off it and has 3 more, and `c` has tree nodes.
type Verb = fn(&mut dyn Cache, [SeqId; 3]);

const STALE: &[(&str, Verb)] = &[
    ("claim", |cache, [a, _, _]| cache.claim(StepId(9), &[row(a, 1)]).unwrap()),
    ("cancel", |cache, _| cache.cancel(StepId(8)).unwrap()),
    ("close", |cache, [a, _, _]| cache.close(a).unwrap()),
    ("rewind", |cache, [_, b, _]| cache.rewind().unwrap().rewind_to(b, 9).unwrap()),
    ("remove", |cache, [a, _, _]| cache.sequences().unwrap().remove(a, 0..4).unwrap()),
    ("keep", |cache, [a, _, _]| cache.sequences().unwrap().keep(a).unwrap()),
    ("fork", |cache, [a, _, _]| drop(cache.sequences().unwrap().fork(a, 1).unwrap())),
    ("copy", |cache, [a, _, _]| {
        let fresh = cache.open().unwrap();
        cache.sequences().unwrap().copy(a, fresh, 0..4).unwrap();
    }),
    ("propose", |cache, [_, b, _]| cache.tree().unwrap().propose(b, &[-1]).unwrap()),
    ("commit", |cache, [_, _, c]| drop(cache.tree().unwrap().commit(c, &[0]).unwrap().to_vec())),
    ("evict", |cache, _| assert!(cache.prefix().unwrap().evict(1).unwrap() > 0)),
];

#[test]
fn every_verb_that_changes_what_a_plan_may_name_makes_it_stale() {
    for &(name, verb) in STALE {
        for in_flight in [false, true] {
            both(BlockConfig { blocks: 16, ..SMALL }, |cache| {
                let prompt: Vec<Token> = (0..9).collect();
                let idle = cache.open().unwrap();
                run(cache, 1, idle, 4);
                publish(cache, idle, &[70, 71, 72, 73]);
                cache.close(idle).unwrap();
                let [a, c, d] = [(); 3].map(|()| cache.open().unwrap());
                run(cache, 2, a, 8);
                publish(cache, a, &prompt[..8]);
                let b = cache.sequences().unwrap().fork(a, 1).unwrap()[0];
                run(cache, 3, b, 3);
                cache.tree().unwrap().propose(c, &[-1, 0]).unwrap();
                run(cache, 4, c, 2);
                if in_flight {
                    cache.claim(StepId(7), &[row(d, 2)]).unwrap();
                }
                cache.claim(StepId(8), &[row(d, 1)]).unwrap();
                let plan = plan_of(cache, 8);
                cache.check_fresh(&plan).unwrap();
                if in_flight {
                    cache.retire(StepId(7)).unwrap();
                    cache.check_fresh(&plan).expect("retiring makes no plan stale");
                }
                verb(cache, [a, b, c]);
                let current = cache.generation();
                let stale = Err(CacheError::StalePlan { plan: plan.generation, current });
                assert_eq!(cache.check_fresh(&plan), stale, "{name}, in flight: {in_flight}");
                cache.check().unwrap();
            });
        }
    }
}

#[test]
fn clearing_raises_the_generation_and_waits_for_steps_in_flight() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 4);
        publish(cache, a, &[1, 2, 3, 4]);
        cache.claim(StepId(2), &[row(a, 1)]).unwrap();
        assert_eq!(cache.clear(), Err(CacheError::InFlight));
        let plan = plan_of(cache, 2);
        cache.retire(StepId(2)).unwrap();
        cache.check_fresh(&plan).unwrap();
        cache.clear().unwrap();
        assert!(cache.check_fresh(&plan).is_err());
        assert_eq!(cache.room(), room(32, 0, 0, 0));
        assert_eq!(cache.prefix().unwrap().lookup(&[1, 2, 3, 4, 5], 0).tokens, 0);
        assert_ne!(cache.open().unwrap(), a);
    });
}

#[test]
fn a_row_that_was_cut_has_no_plan() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 4);
        cache.claim(StepId(2), &[row(a, 3)]).unwrap();
        cache.rewind().unwrap().rewind_to(a, 5).unwrap();
        assert_eq!(cache.plan(StepId(2), &mut Plan::default()), Err(CacheError::RowGone(a)));
        cache.cancel(StepId(2)).unwrap();
        assert_eq!((cache.len(a), cache.claimed_len(a)), (Ok(4), Ok(4)));
        cache.claim(StepId(3), &[row(a, 3)]).unwrap();
        cache.close(a).unwrap();
        assert_eq!(cache.plan(StepId(3), &mut Plan::default()), Err(CacheError::UnknownSequence(a)));
        cache.retire(StepId(3)).unwrap();
        assert_eq!(cache.room(), room(32, 0, 0, 0));
    });
}

#[test]
fn a_shared_last_block_is_copied_before_it_is_written() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 8);
        publish(cache, a, &[1, 2, 3, 4, 5, 6, 7, 8]);
        cache.rewind().unwrap().rewind_to(a, 6).unwrap();
        cache.claim(StepId(2), &[row(a, 1)]).unwrap();
        let plan = plan_of(cache, 2);
        assert_eq!(plan.moves, [RowMove { from: 4, to: 8 }, RowMove { from: 5, to: 9 }]);
        assert_eq!(plan.write_slots, [10]);
        cache.cancel(StepId(2)).unwrap();
        cache.check().unwrap();
        cache.claim(StepId(3), &[row(a, 1)]).unwrap();
        assert_eq!(plan_of(cache, 3).moves.len(), 2);
        cache.retire(StepId(3)).unwrap();
        cache.check().unwrap();
        let hit = cache.prefix().unwrap().lookup(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0);
        assert_eq!(hit.tokens, 8, "what was published is still there");
    });
}

/// A fork that was cut inside a shared block writes into a copy of it; when that step is cancelled the block is shared again, whatever
/// the step was.
#[test]
fn a_last_block_that_is_shared_again_is_copied_again() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 8);
        let fork = cache.sequences().unwrap().fork(a, 1).unwrap()[0];
        cache.rewind().unwrap().rewind_to(fork, 6).unwrap();
        for step in [2, 3] {
            if step == 2 {
                cache.tree().unwrap().propose(fork, &[-1]).unwrap();
            }
            cache.claim(StepId(step), &[row(fork, 1)]).unwrap();
            cache.cancel(StepId(step)).unwrap();
            cache.check().unwrap();
            if step == 2 {
                cache.tree().unwrap().commit(fork, &[]).unwrap();
            }
        }
        cache.claim(StepId(4), &[row(fork, 1)]).unwrap();
        cache.claim(StepId(5), &[row(a, 1)]).unwrap();
        let slots =
            plan_of(cache, 5).entries(&plan_of(cache, 5).rows[0]).map(|entry| entry.1).collect::<Vec<_>>();
        assert!(!slots.contains(&plan_of(cache, 4).write_slots[0]), "what it writes is its own");
    });
}

#[test]
fn a_sequence_that_had_a_hole_is_published_only_up_to_it() {
    both(SMALL, |cache| {
        let prompt: Vec<Token> = (0..12).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 12);
        cache.sequences().unwrap().remove(a, 4..6).unwrap();
        assert_eq!((cache.len(a), cache.next_position(a)), (Ok(10), Ok(12)));
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 4);
        let read: Vec<_> = {
            cache.claim(StepId(2), &[row(a, 1)]).unwrap();
            let plan = plan_of(cache, 2);
            plan.entries(&plan.rows[0]).map(|(_, _, position)| position).collect()
        };
        assert_eq!(read, [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12]);
        cache.retire(StepId(2)).unwrap();
        // From where it is whole again it may be published again.
        cache.rewind().unwrap().rewind_to(a, 4).unwrap();
        run(cache, 3, a, 8);
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 8);
    });
}

#[test]
fn redirected_writes_go_to_the_dummy_block() {
    both(BlockConfig { dummy: true, ..SMALL }, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 6);
        let again = |redirected, tokens| [ClaimRow { seq: a, redirected, tokens }];
        assert_eq!(cache.claim(StepId(2), &again(7, 1)), Err(CacheError::BadClaim));
        cache.claim(StepId(2), &again(3, 2)).unwrap();
        let plan = plan_of(cache, 2);
        assert_eq!(plan.positions, [3, 4, 5, 6, 7]);
        assert_eq!(plan.write_slots, [3, 0, 1, 10, 11], "block 0 is the dummy, blocks 1 and 2 are a's");
        assert_eq!((plan.rows[0].redirected, plan.rows[0].read_len), (3, 8));
        cache.retire(StepId(2)).unwrap();
        assert_eq!(cache.len(a), Ok(8));
        assert_eq!(cache.capacity(), 32);
    });
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 6);
        let claim = [ClaimRow { seq: a, redirected: 1, tokens: 1 }];
        assert_eq!(cache.claim(StepId(2), &claim), Err(CacheError::BadClaim), "it has no dummy block");
    });
}

#[test]
fn configurations_that_make_no_sense_are_refused_by_name() {
    let bad = |config: BlockConfig| {
        assert!(matches!(Paged::new(config), Err(CacheError::BadConfig(_))));
        assert!(matches!(Radix::new(config), Err(CacheError::BadConfig(_))));
    };
    bad(BlockConfig { block_size: 0, ..SMALL });
    bad(BlockConfig { block_size: 257, ..SMALL });
    bad(BlockConfig { blocks: 0, ..SMALL });
    bad(BlockConfig { blocks: u32::MAX, ..SMALL });
    bad(BlockConfig { blocks: u32::MAX / 4 + 1, ..SMALL });
}

#[test]
fn without_sharing_nothing_is_kept() {
    both(BlockConfig { sharing: false, ..SMALL }, |cache| {
        let prompt: Vec<Token> = (0..9).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 9);
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 0);
        cache.close(a).unwrap();
        assert_eq!(cache.room(), room(32, 0, 0, 0));
    });
}

#[test]
fn only_what_has_retired_is_published() {
    both(SMALL, |cache| {
        let prompt: Vec<Token> = (0..9).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 4);
        cache.claim(StepId(2), &[row(a, 5)]).unwrap();
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 4);
        cache.retire(StepId(2)).unwrap();
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 8);
    });
}

#[test]
fn a_block_is_published_only_when_the_moves_into_it_have_run() {
    both(SMALL, |cache| {
        let tokens: Vec<Token> = (0..5).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 2);
        cache.tree().unwrap().propose(a, &[-1, -1, 1]).unwrap();
        run(cache, 2, a, 3);
        cache.tree().unwrap().commit(a, &[1, 2]).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 0, "the moves wait");
        cache.claim(StepId(3), &[row(a, 1)]).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 0, "the moves are in flight");
        cache.retire(StepId(3)).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 4);
    });
}

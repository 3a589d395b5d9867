//! Plans of block caches: incremental block tables equal fresh ones; which operations make a plan
//! stale.

use crate::*;
use kvasir_testkit::Random;

/// Incremental block tables: a plan in reused memory equals one in fresh memory, whatever happened
/// in between.
#[test]
fn plans_do_not_depend_on_reused_memory() {
    both(BlockConfig { block_size: 2, blocks: 64, ..SMALL }, |cache| {
        let (mut used, mut step, mut random) = (Plan::default(), 0, Random::new(9));
        let (mut live, mut held) = (Vec::<SeqId>::new(), Vec::new());
        for _ in 0..600 {
            let any = live.get(random.below(live.len().max(1) as u64) as usize).copied();
            match (random.below(10), any) {
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
            let tokens = if random.below(5) == 0 { 5 } else { 1 };
            let rows: Vec<ClaimRow> = live.iter().map(|&seq| ClaimRow::new(seq, tokens)).collect();
            step += 1;
            if rows.is_empty() || cache.claim(StepId(step), &rows).is_err() {
                live.drain(..).for_each(|seq| cache.close(seq).unwrap());
                continue;
            }
            cache.plan(StepId(step), &mut used).unwrap();
            let fresh = plan_of(cache, step);
            assert_eq!(meaning(&used), meaning(&fresh));
            // A table that a plan holds is not extended, so the next fresh plan is written in full.
            held.push((meaning(&fresh), fresh));
            assert!(used.table.len() <= 16 * 64, "what is out of use is given up");
            match random.below(7) {
                0 => cache.cancel(StepId(step)).unwrap(),
                _ => cache.retire(StepId(step)).unwrap(),
            }
            cache.check().unwrap();
        }
        held.iter()
            .for_each(|(answered, plan)| assert_eq!(*answered, meaning(plan), "plans that are held stay"));
    });
}

#[test]
fn the_same_steps_of_two_caches_give_equal_plans() {
    both(SMALL, |cache| {
        let mut other =
            build(cache.shape().kind, &CacheConfig { block_size: 4, ..CacheConfig::new(32) }).unwrap();
        let [ours, theirs] = [cache, &mut *other].map(|cache| {
            let seq = cache.open().unwrap();
            [5, 1].map(|tokens| {
                let step = u64::from(cache.len(seq).unwrap()) + 1;
                cache.claim(StepId(step), &[ClaimRow::new(seq, tokens)]).unwrap();
                let plan = plan_of(cache, step);
                cache.retire(StepId(step)).unwrap();
                plan
            })
        });
        assert_eq!(ours, theirs);
        assert_ne!(ours[0], ours[1]);
    });
}

/// An operation on a cache in which `a` has 8 published tokens, `b` is a fork of it with 3 more,
/// and `c` has draft nodes.
type Verb = fn(&mut dyn Cache, [SeqId; 3]);

const STALE: &[(&str, Verb)] = &[
    ("claim", |cache, [a, _, _]| cache.claim(StepId(9), &[ClaimRow::new(a, 1)]).unwrap()),
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
fn every_relevant_change_makes_plans_stale() {
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
                    cache.claim(StepId(7), &[ClaimRow::new(d, 2)]).unwrap();
                }
                cache.claim(StepId(8), &[ClaimRow::new(d, 1)]).unwrap();
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
fn a_truncated_row_has_no_plan() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 4);
        cache.claim(StepId(2), &[ClaimRow::new(a, 3)]).unwrap();
        cache.rewind().unwrap().rewind_to(a, 5).unwrap();
        assert_eq!(cache.plan(StepId(2), &mut Plan::default()), Err(CacheError::RowGone(a)));
        cache.cancel(StepId(2)).unwrap();
        assert_eq!((cache.len(a), cache.claimed_len(a)), (Ok(4), Ok(4)));
        cache.claim(StepId(3), &[ClaimRow::new(a, 3)]).unwrap();
        cache.close(a).unwrap();
        assert_eq!(cache.plan(StepId(3), &mut Plan::default()), Err(CacheError::UnknownSequence(a)));
        cache.retire(StepId(3)).unwrap();
        assert_eq!(cache.usage(), usage(32, 0, 0, 0));
    });
}

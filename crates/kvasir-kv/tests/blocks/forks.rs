//! Blocks shared by several sequences: forks, slot copies of draft trees, copy-on-write of the last
//! block.

use crate::*;

#[test]
fn a_rewinding_fork_keeps_copies_of_a_shared_block() {
    both(SMALL, |cache| {
        let seq = cache.open().unwrap();
        run(cache, 1, seq, 2);
        cache.tree().unwrap().propose(seq, &[-1, -1, 1]).unwrap();
        run(cache, 2, seq, 3);
        let moves = cache.tree().unwrap().commit(seq, &[1, 2]).unwrap().to_vec();
        assert_eq!(moves, [SlotCopy { from: 3, to: 2 }, SlotCopy { from: 4, to: 3 }]);
        assert_eq!(
            cache.usage(),
            usage(24, 0, 4, 4),
            "the block that the moves read stays until they have run"
        );
        let fork = cache.sequences().unwrap().fork(seq, 1).unwrap()[0];
        cache.rewind().unwrap().rewind_to(fork, 3).unwrap();
        cache.check().unwrap();
        cache.claim(StepId(3), &[ClaimRow::new(seq, 1)]).unwrap();
        assert_eq!(plan_of(cache, 3).moves, moves);
        cache.retire(StepId(3)).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.usage(), usage(24, 0, 8, 0));
    });
}

#[test]
fn copies_of_a_canceled_step_without_owner_are_dropped() {
    both(SMALL, |cache| {
        let seq = cache.open().unwrap();
        run(cache, 1, seq, 2);
        cache.tree().unwrap().propose(seq, &[-1, -1, 1]).unwrap();
        run(cache, 2, seq, 3);
        assert!(!cache.tree().unwrap().commit(seq, &[1, 2]).unwrap().is_empty());
        cache.claim(StepId(3), &[ClaimRow::new(seq, 1)]).unwrap();
        cache.close(seq).unwrap();
        cache.cancel(StepId(3)).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.usage(), usage(32, 0, 0, 0));
    });
}

#[test]
fn a_shared_last_block_is_copied_on_write() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 8);
        publish(cache, a, &[1, 2, 3, 4, 5, 6, 7, 8]);
        cache.rewind().unwrap().rewind_to(a, 6).unwrap();
        cache.claim(StepId(2), &[ClaimRow::new(a, 1)]).unwrap();
        let plan = plan_of(cache, 2);
        assert_eq!(plan.moves, [SlotCopy { from: 4, to: 8 }, SlotCopy { from: 5, to: 9 }]);
        assert_eq!(plan.write_slots, [10]);
        cache.cancel(StepId(2)).unwrap();
        cache.check().unwrap();
        cache.claim(StepId(3), &[ClaimRow::new(a, 1)]).unwrap();
        assert_eq!(plan_of(cache, 3).moves.len(), 2);
        cache.retire(StepId(3)).unwrap();
        cache.check().unwrap();
        let hit = cache.prefix().unwrap().lookup(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0);
        assert_eq!(hit.tokens, 8, "what was published is still there");
    });
}

/// A fork truncated inside a shared block writes to a copy of it. When that step is canceled the
/// block is shared again, and must be copied again before the next write.
#[test]
fn a_last_block_shared_again_is_copied_again() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 8);
        let fork = cache.sequences().unwrap().fork(a, 1).unwrap()[0];
        cache.rewind().unwrap().rewind_to(fork, 6).unwrap();
        for step in [2, 3] {
            if step == 2 {
                cache.tree().unwrap().propose(fork, &[-1]).unwrap();
            }
            cache.claim(StepId(step), &[ClaimRow::new(fork, 1)]).unwrap();
            cache.cancel(StepId(step)).unwrap();
            cache.check().unwrap();
            if step == 2 {
                cache.tree().unwrap().commit(fork, &[]).unwrap();
            }
        }
        cache.claim(StepId(4), &[ClaimRow::new(fork, 1)]).unwrap();
        cache.claim(StepId(5), &[ClaimRow::new(a, 1)]).unwrap();
        let plan = plan_of(cache, 5);
        let slots = plan.entries(&plan.rows[0]).map(|entry| entry.1).collect::<Vec<_>>();
        assert!(!slots.contains(&plan_of(cache, 4).write_slots[0]), "what it writes is its own");
    });
}

//! Claims of block caches: allocation, all-or-nothing refusal, deferred release, preallocation,
//! redirected writes.

use crate::*;

#[test]
fn a_step_writes_its_positions_and_reads_earlier_ones() {
    both(SMALL, |cache| {
        let seq = cache.open().unwrap();
        run(cache, 1, seq, 3);
        cache.claim(StepId(2), &[ClaimRow::new(seq, 3)]).unwrap();
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
        assert_eq!(cache.usage(), usage(24, 0, 8, 0));
    });
}

#[test]
fn a_claim_takes_all_or_nothing() {
    both(SMALL, |cache| {
        let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
        run(cache, 1, a, 20);
        let (before, generation) = (cache.usage(), cache.generation());
        let full = CacheError::Full { group: GroupId::FULL, needed: 16, available: 12 };
        assert_eq!(cache.claim(StepId(2), &[ClaimRow::new(a, 4), ClaimRow::new(b, 9)]), Err(full));
        assert_eq!(
            cache.claim(StepId(2), &[ClaimRow::new(a, 1), ClaimRow::new(a, 1)]),
            Err(CacheError::BadClaim)
        );
        assert_eq!(cache.claim(StepId(2), &[]), Err(CacheError::BadClaim));
        assert_eq!(cache.claim(StepId(2), &[ClaimRow::new(b, 0)]), Err(CacheError::BadClaim));
        assert_eq!(
            cache.claim(StepId(1), &[ClaimRow::new(b, 1)]),
            Err(CacheError::StepOutOfOrder(StepId(1)))
        );
        assert_eq!((cache.usage(), cache.generation()), (before, generation));
        cache.claim(StepId(2), &[ClaimRow::new(a, 4), ClaimRow::new(b, 8)]).unwrap();
        cache.check().unwrap();
    });
}

#[test]
fn blocks_of_a_step_in_flight_are_leased_on_close() {
    both(SMALL, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 5);
        cache.claim(StepId(2), &[ClaimRow::new(a, 1)]).unwrap();
        cache.close(a).unwrap();
        assert_eq!(cache.usage(), usage(24, 0, 0, 8));
        cache.check().unwrap();
        cache.retire(StepId(2)).unwrap();
        assert_eq!(cache.usage(), usage(32, 0, 0, 0));
        assert_eq!(cache.len(a), Err(CacheError::UnknownSequence(a)));
    });
}

#[test]
fn preallocated_blocks_are_used_first_and_returned() {
    both(SMALL, |cache| {
        let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
        assert_eq!(cache.preallocate_slots(a, 9), Ok(12));
        assert_eq!((cache.preallocate_slots(a, 0), cache.claimed_len(a)), (Ok(12), Ok(0)));
        assert_eq!(cache.usage(), usage(20, 0, 12, 0));
        cache.check().unwrap();
        run(cache, 1, b, 4);
        cache.claim(StepId(2), &[ClaimRow::new(a, 5)]).unwrap();
        assert_eq!(plan_of(cache, 2).write_slots, [0, 1, 2, 3, 4], "the blocks before b's");
        assert_eq!(cache.preallocate_slots(a, 13), Ok(16));
        assert_eq!(cache.usage().free, 12);
        let full = CacheError::Full { group: GroupId::FULL, needed: 16, available: 12 };
        assert_eq!(cache.preallocate_slots(a, 32), Err(full));
        cache.cancel(StepId(2)).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.preallocate_slots(a, 0), Ok(16), "a canceled claim's blocks are ahead again");
        assert_eq!(cache.usage().held, 20);
        cache.claim(StepId(3), &[ClaimRow::new(a, 5)]).unwrap();
        assert_eq!(plan_of(cache, 3).write_slots, [0, 1, 2, 3, 4], "in the order they had");
        cache.retire(StepId(3)).unwrap();
        cache.close(a).unwrap();
        cache.close(b).unwrap();
        cache.check().unwrap();
        assert_eq!(cache.usage().available(), 32);
    });
}

#[test]
fn redirected_writes_go_to_the_dummy_block() {
    both(BlockConfig { dummy: true, ..SMALL }, |cache| {
        let a = cache.open().unwrap();
        run(cache, 1, a, 6);
        let again = |redirected, tokens| [ClaimRow { redirected, ..ClaimRow::new(a, tokens) }];
        assert_eq!(cache.claim(StepId(2), &again(7, 1)), Err(CacheError::BadClaim));
        cache.claim(StepId(2), &again(3, 2)).unwrap();
        let plan = plan_of(cache, 2);
        assert_eq!(plan.positions, [3, 4, 5, 6, 7]);
        assert_eq!(plan.write_slots, [3, 0, 1, 10, 11], "block 0 is the dummy, blocks 1 and 2 are a's");
        assert_eq!((plan.rows[0].redirected, plan.rows[0].read_len), (3, 8));
        cache.retire(StepId(2)).unwrap();
        assert_eq!(cache.len(a), Ok(8));
        assert_eq!((cache.shape().capacity, cache.shape().dummy_slot), (32, 0));
    });
    both(SMALL, |cache| {
        assert_eq!(cache.shape().dummy_slot, 32, "behind the capacity");
        let a = cache.open().unwrap();
        run(cache, 1, a, 6);
        let claim = [ClaimRow { redirected: 1, ..ClaimRow::new(a, 1) }];
        assert_eq!(cache.claim(StepId(2), &claim), Err(CacheError::BadClaim), "it has no dummy block");
    });
}

#[test]
fn invalid_configurations_are_refused_by_name() {
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

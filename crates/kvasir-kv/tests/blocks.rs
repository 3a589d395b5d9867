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
        cache.prefix().unwrap().attach(b, &prompt, 0, u32::MAX).unwrap();
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
        let kept = cache.take_ahead(a, 0).unwrap();
        assert_eq!(cache.room().held, kept + 4, "a cancelled claim's blocks went back");
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

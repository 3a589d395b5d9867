//! Prefix caching in block caches: lookup, attach, publish, deduplication, tenant isolation.

use crate::*;

#[test]
fn a_stale_lookup_is_not_attached() {
    type Verb = fn(&mut dyn Cache);
    let verbs: [(&str, Verb, u32); 5] = [
        ("nothing", |_| {}, 8),
        (
            "another lookup",
            |cache| assert_eq!(cache.prefix().unwrap().lookup(&[70, 71, 72, 73, 74], 0).tokens, 0),
            8,
        ),
        ("eviction", |cache| assert_eq!(cache.prefix().unwrap().evict(32), Ok(8)), 0),
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
                assert_eq!(cache.preallocate_slots(seq, 32), Ok(32));
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
fn a_prompt_hits_an_earlier_prefix() {
    both(SMALL, |cache| {
        let prompt: Vec<Token> = (0..9).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 9);
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 8);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt[..8], 0).tokens, 4, "the last token is computed");
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 1).tokens, 0, "another tenant's");
        cache.close(a).unwrap();
        assert_eq!(cache.usage(), usage(24, 8, 0, 0));
        let hit = cache.prefix().unwrap().lookup(&prompt, 0);
        assert_eq!((hit.tokens, hit.evictable[0]), (8, 8));
        let b = cache.open().unwrap();
        cache.prefix().unwrap().attach(b, &prompt, 0, u32::MAX, hit.lookup).unwrap();
        assert_eq!(cache.usage(), usage(24, 0, 8, 0));
        assert_eq!((cache.len(b), cache.next_position(b)), (Ok(8), Ok(8)));
        cache.check().unwrap();
    });
}

#[test]
fn a_radix_cache_merges_equal_prefixes() {
    let mut cache = Radix::new(SMALL).unwrap();
    let prompt: Vec<Token> = (0..8).collect();
    let (a, b) = (cache.open().unwrap(), cache.open().unwrap());
    cache.claim(StepId(1), &[ClaimRow::new(a, 8), ClaimRow::new(b, 8)]).unwrap();
    cache.retire(StepId(1)).unwrap();
    publish(&mut cache, a, &prompt);
    cache.claim(StepId(2), &[ClaimRow::new(b, 1)]).unwrap();
    let generation = cache.generation();
    publish(&mut cache, b, &prompt);
    assert!(cache.generation() > generation);
    assert_eq!(cache.table(b).unwrap()[..2], cache.table(a).unwrap()[..2]);
    assert_eq!(cache.usage(), usage(12, 0, 12, 8), "the copies wait for the step that names them");
    cache.retire(StepId(2)).unwrap();
    assert_eq!(cache.usage(), usage(20, 0, 12, 0));
}

#[test]
fn publishing_stops_at_a_hole() {
    both(SMALL, |cache| {
        let prompt: Vec<Token> = (0..12).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 12);
        cache.sequences().unwrap().remove(a, 4..6).unwrap();
        assert_eq!((cache.len(a), cache.next_position(a)), (Ok(10), Ok(12)));
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 4);
        let read: Vec<_> = {
            cache.claim(StepId(2), &[ClaimRow::new(a, 1)]).unwrap();
            let plan = plan_of(cache, 2);
            plan.entries(&plan.rows[0]).map(|(_, _, position)| position).collect()
        };
        assert_eq!(read, [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12]);
        cache.retire(StepId(2)).unwrap();
        // After truncation to the hole, new rows may be published again.
        cache.rewind().unwrap().rewind_to(a, 4).unwrap();
        run(cache, 3, a, 8);
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 8);
    });
}

#[test]
fn without_prefix_caching_nothing_is_retained() {
    both(BlockConfig { sharing: false, ..SMALL }, |cache| {
        let prompt: Vec<Token> = (0..9).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 9);
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 0);
        cache.close(a).unwrap();
        assert_eq!(cache.usage(), usage(32, 0, 0, 0));
    });
}

#[test]
fn only_retired_blocks_are_published() {
    both(SMALL, |cache| {
        let prompt: Vec<Token> = (0..9).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 4);
        cache.claim(StepId(2), &[ClaimRow::new(a, 5)]).unwrap();
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 4);
        cache.retire(StepId(2)).unwrap();
        publish(cache, a, &prompt);
        assert_eq!(cache.prefix().unwrap().lookup(&prompt, 0).tokens, 8);
    });
}

#[test]
fn a_block_is_published_after_copies_into_it() {
    both(SMALL, |cache| {
        let tokens: Vec<Token> = (0..5).collect();
        let a = cache.open().unwrap();
        run(cache, 1, a, 2);
        cache.tree().unwrap().propose(a, &[-1, -1, 1]).unwrap();
        run(cache, 2, a, 3);
        cache.tree().unwrap().commit(a, &[1, 2]).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 0, "the moves wait");
        cache.claim(StepId(3), &[ClaimRow::new(a, 1)]).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 0, "the moves are in flight");
        cache.retire(StepId(3)).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 4);
    });
}

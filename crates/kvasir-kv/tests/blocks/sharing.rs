//! Prefix caching in block caches: lookup, attach, publish, deduplication, tenant isolation.

use crate::*;

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
        assert_eq!(cache.usage(), usage(24, 8, 0, 0));
        let hit = cache.prefix().unwrap().lookup(&prompt, 0);
        assert_eq!((hit.tokens, hit.idle), (8, 8));
        let b = cache.open().unwrap();
        cache.prefix().unwrap().attach(b, &prompt, 0, u32::MAX, hit.lookup).unwrap();
        assert_eq!(cache.usage(), usage(24, 0, 8, 0));
        assert_eq!((cache.len(b), cache.next_position(b)), (Ok(8), Ok(8)));
        cache.check().unwrap();
    });
}

#[test]
fn two_copies_of_one_prefix_become_one_in_a_radix_cache() {
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
fn without_sharing_nothing_is_kept() {
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
fn only_what_has_retired_is_published() {
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
        cache.claim(StepId(3), &[ClaimRow::new(a, 1)]).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 0, "the moves are in flight");
        cache.retire(StepId(3)).unwrap();
        publish(cache, a, &tokens[..4]);
        assert_eq!(cache.prefix().unwrap().lookup(&tokens, 0).tokens, 4);
    });
}

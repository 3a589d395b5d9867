//! Overflow of the KV event log: the current contents replace its events, and a mirror then holds
//! exactly the prefixes that lookups can hit.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, KvEvent, Lookup, StepId, Token, block_hash, build, prefix_hashes,
};
use std::collections::HashSet;

const BLOCK: u32 = 16;

/// Computes and publishes a prompt of a tenant, and ends its sequence.
fn compute(cache: &mut dyn Cache, step: u64, tokens: &[Token], salt: u64) {
    let seq = cache.open().unwrap();
    let hit = cache.prefix().unwrap().attach(seq, tokens, salt, u32::MAX, Lookup::default()).unwrap();
    let rest = tokens.len() as u32 - hit.tokens;
    cache.claim(StepId(step), &[ClaimRow::new(seq, rest)]).unwrap();
    cache.retire(StepId(step)).unwrap();
    cache.prefix().unwrap().publish(seq, tokens, tokens.len() as u32).unwrap();
    cache.close(seq).unwrap();
}

/// Applies events to a mirror, and checks that each hash is that of its tokens and its parent or
/// salt.
fn apply(mirror: &mut HashSet<u64>, events: Vec<KvEvent>) {
    for event in events {
        match event {
            KvEvent::BlockStored { hashes, parent, tokens, block_size, salt } => {
                assert!(parent.is_none_or(|parent| mirror.contains(&parent)), "stored before its parent");
                assert!(parent.is_none() || salt == 0);
                let mut before = parent.or((salt != 0).then_some(salt));
                for (&hash, block) in hashes.iter().zip(tokens.chunks(block_size as usize)) {
                    assert_eq!(hash, block_hash(before, block));
                    before = Some(hash);
                }
                mirror.extend(hashes);
            }
            KvEvent::BlockRemoved { hashes } => hashes.iter().for_each(|hash| {
                mirror.remove(hash);
            }),
            KvEvent::CheckpointStored { .. } | KvEvent::CheckpointRemoved { .. } => {
                panic!("no recurrent states")
            }
            KvEvent::AllBlocksCleared => mirror.clear(),
        }
    }
}

fn take(cache: &mut dyn Cache) -> Vec<KvEvent> {
    let mut events = Vec::new();
    cache.prefix().unwrap().take_events(&mut events);
    events
}

#[test]
fn a_mirror_is_complete_after_an_overflow() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let config = CacheConfig { block_size: BLOCK, sharing: true, ..CacheConfig::new(1 << 21) };
        let mut cache = build(kind, &config).unwrap();
        let cache = &mut *cache;
        cache.prefix().unwrap().record_events().unwrap();
        let (mut mirror, mut prompts) = (HashSet::new(), Vec::new());
        let prompt = |n: Token| -> Vec<Token> {
            // Half of each prompt is shared with others.
            (0..40_000).map(|i| if i < 20_000 { n % 4 } else { n }).collect()
        };
        for n in 0..70 {
            let salt = u64::from(n % 2) * 77;
            compute(cache, u64::from(n) + 1, &prompt(n), salt);
            prompts.push((prompt(n), salt));
            if n == 3 {
                apply(&mut mirror, take(cache));
            }
        }
        let events = take(cache);
        assert!(events[0] == KvEvent::AllBlocksCleared, "{kind}: the log has not overflowed");
        apply(&mut mirror, events);
        // Later events are recorded again.
        compute(cache, 100, &prompt(99), 0);
        prompts.push((prompt(99), 0));
        apply(&mut mirror, take(cache));
        for (mut tokens, salt) in prompts {
            let hashes = prefix_hashes(&tokens, salt, BLOCK);
            let known = hashes.take_while(|hash| mirror.contains(hash)).count() as u32 * BLOCK;
            tokens.push(0);
            assert_eq!(cache.prefix().unwrap().lookup(&tokens, salt).tokens, known, "{kind}");
            assert_eq!(known, 40_000);
        }
    }
}

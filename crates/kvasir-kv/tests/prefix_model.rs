//! Prefix-cache hits against naive models: a set of published prefixes for `paged`, a flat list of
//! sequences for `radix`.

#![allow(clippy::unwrap_used)]

use kvasir_kv::blocks::{BlockCache, BlockConfig, Index};
use kvasir_kv::{Cache, ClaimRow, Inspect, Lookup, Paged, Prefix, Radix, StepId, Token};
use proptest::prelude::*;
use std::collections::HashSet;

/// One request: prompt, tenant, published length, slots to evict before it.
type Life = (Vec<Token>, u64, u32, Option<u32>);

fn lives() -> impl Strategy<Value = Vec<Life>> {
    let prompt = proptest::collection::vec(0u32..3, 1..40);
    proptest::collection::vec((prompt, 0u64..2, 0u32..48, proptest::option::weighted(0.1, 1u32..40)), 1..30)
}

/// Runs the requests one after the other. `keep` receives each published prefix; `longest` predicts
/// the hit of a prompt: exactly if nothing was evicted, else as an upper bound.
fn check<I: Index>(
    mut cache: BlockCache<I>,
    lives: &[Life],
    mut keep: impl FnMut(u64, &[Token]),
    longest: impl Fn(u64, &[Token]) -> u32,
) {
    let block = cache.shape().block_size;
    let mut evicted = false;
    for (step, (prompt, salt, computed, evict)) in lives.iter().enumerate() {
        if let Some(slots) = evict {
            evicted |= cache.evict(*slots).unwrap() > 0;
        }
        let expected = longest(*salt, &prompt[..prompt.len() - 1]);
        let seq = cache.open().unwrap();
        let hit = cache.attach(seq, prompt, *salt, u32::MAX, Lookup::default()).unwrap();
        if evicted {
            assert!(hit.tokens <= expected)
        } else {
            assert_eq!(hit.tokens, expected, "{prompt:?} of tenant {salt}")
        }
        let step = StepId(step as u64 + 1);
        let tokens = prompt.len() as u32 - hit.tokens;
        cache.claim(step, &[ClaimRow::new(seq, tokens)]).unwrap();
        cache.retire(step).unwrap();
        cache.publish(seq, prompt, *computed).unwrap();
        cache.check().unwrap();
        let published = (*computed).min(prompt.len() as u32).max(hit.tokens) / block * block;
        keep_prefixes(block, &prompt[..published as usize], |prefix| keep(*salt, prefix));
        cache.close(seq).unwrap();
        cache.check().unwrap();
    }
}

fn keep_prefixes(block: u32, tokens: &[Token], mut keep: impl FnMut(&[Token])) {
    (1..=tokens.len() / block as usize).for_each(|blocks| keep(&tokens[..blocks * block as usize]));
}

proptest! {
    #[test]
    fn hits_are_the_longest_cached_whole_blocks(lives in lives(), block_size in 1u32..6) {
        let config = BlockConfig { block_size, blocks: 4096, ..BlockConfig::default() };
        let prefixes = std::cell::RefCell::new(HashSet::<(u64, Vec<Token>)>::new());
        let longest = |salt: u64, prompt: &[Token]| {
            let blocks = (1..=prompt.len() / block_size as usize).map(|n| n * block_size as usize);
            let known = prefixes.borrow();
            blocks.take_while(|&len| known.contains(&(salt, prompt[..len].to_vec()))).last().unwrap_or(0) as u32
        };
        let keep = |salt: u64, prefix: &[Token]| prefixes.borrow_mut().extend([(salt, prefix.to_vec())]);
        check(Paged::new(config).unwrap(), &lives, keep, longest);

        let left = std::cell::RefCell::new(Vec::<(u64, Vec<Token>)>::new());
        let longest = |salt: u64, prompt: &[Token]| {
            let common = |other: &Vec<Token>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count() as u32;
            let known = left.borrow();
            let own = known.iter().filter(|(of, _)| *of == salt);
            own.map(|(_, other)| common(other) / block_size * block_size).max().unwrap_or(0)
        };
        let keep = |salt: u64, prefix: &[Token]| left.borrow_mut().push((salt, prefix.to_vec()));
        check(Radix::new(config).unwrap(), &lives, keep, longest);
    }
}

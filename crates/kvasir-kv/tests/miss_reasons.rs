//! Compares the reason of each short prefix-cache hit with a reference: the set of all prefixes
//! that were ever published, and lookups of the prefix under the salts of other tenants.

#![allow(clippy::unwrap_used)]

use kvasir_kv::blocks::{BlockCache, BlockConfig, Index};
use kvasir_kv::{
    Cache, CacheConfig, CacheEnd, CacheKind, ClaimRow, Lookup, Paged, Prefix, Radix, StateConfig, StepId,
    Token, build,
};
use kvasir_testkit::Random;
use std::collections::HashSet;

const SALTS: u64 = 3;

/// Computes a prompt, with a checkpoint at its end, and publishes its first `computed` tokens.
fn compute(cache: &mut dyn Cache, step: &mut u64, prompt: &[Token], salt: u64, computed: u32) {
    let seq = cache.open().unwrap();
    let hit = cache.prefix().unwrap().attach(seq, prompt, salt, u32::MAX, Lookup::default()).unwrap();
    cache.mark_checkpoints(seq, &[prompt.len() as u32]).unwrap();
    *step += 1;
    let fed = prompt.len() as u32 - hit.tokens;
    cache.claim(StepId(*step), &[ClaimRow::new(seq, fed)]).unwrap();
    cache.retire(StepId(*step)).unwrap();
    cache.prefix().unwrap().publish(seq, prompt, computed).unwrap();
    cache.close(seq).unwrap();
}

/// A cache that runs random requests, and all prefixes that it has published.
struct Simulation<I: Index> {
    cache: BlockCache<I>,
    block: usize,
    published: HashSet<(u64, Vec<Token>)>,
    step: u64,
    /// Number of hits by reason.
    seen: [u32; CacheEnd::ALL.len()],
}

impl<I: Index> Simulation<I> {
    /// Whether a lookup finds all of `prefix`.
    fn finds(&mut self, prefix: &[Token], salt: u64) -> bool {
        let prompt = [prefix, &[Token::MAX]].concat();
        self.cache.lookup(&prompt, salt).tokens as usize == prefix.len()
    }

    fn check(&mut self, prompt: &[Token], salt: u64) {
        let hit = self.cache.lookup(prompt, salt);
        assert_eq!(hit.matched, hit.tokens);
        let next = hit.tokens as usize + self.block;
        if next >= prompt.len() {
            assert_eq!(hit.cache_end, None, "{prompt:?} of tenant {salt} is cached as far as possible");
            return;
        }
        let next = &prompt[..next];
        let others: Vec<u64> = (0..SALTS).filter(|&other| other != salt && self.finds(next, other)).collect();
        let cache_end = hit.cache_end.unwrap();
        if self.published.contains(&(salt, next.to_vec())) {
            assert_eq!(cache_end, CacheEnd::Evicted, "{next:?} of tenant {salt}");
        } else if !others.is_empty() {
            assert_eq!(cache_end, CacheEnd::OtherKey, "{next:?} of tenant {salt}, cached for {others:?}");
            assert!(others.contains(&hit.other_salt));
        } else {
            assert_eq!(cache_end, CacheEnd::NeverComputed, "{next:?} of tenant {salt}");
        }
        self.seen[cache_end as usize] += 1;
    }

    fn run(mut self, seed: u64) -> [u32; CacheEnd::ALL.len()] {
        let mut random = Random::new(seed);
        for _ in 0..60 {
            let len = 1 + random.below(24) as usize;
            let prompt: Vec<Token> = (0..len).map(|_| random.below(2) as Token).collect();
            let salt = random.below(SALTS);
            self.check(&prompt, salt);
            if random.chance(15) {
                self.cache.evict(random.below(30) as u32).unwrap();
                self.check(&prompt, salt);
            }
            let hit = self.cache.lookup(&prompt, salt).tokens as usize;
            let computed = random.below(len as u64 + 1) as usize;
            compute(&mut self.cache, &mut self.step, &prompt, salt, computed as u32);
            let lengths = (1..=computed.max(hit) / self.block).map(|blocks| blocks * self.block);
            self.published.extend(lengths.map(|len| (salt, prompt[..len].to_vec())));
        }
        self.seen
    }
}

fn run_seeds<I: Index>(new: fn(BlockConfig) -> BlockCache<I>) {
    let mut seen = [0; CacheEnd::ALL.len()];
    for seed in 1..=300 {
        let block_size = 1 + (seed % 4) as u32;
        // The pool is small enough that claims evict, and large enough that the history covers all
        // evictions of a run.
        let config = BlockConfig { block_size, blocks: 600 / block_size, ..BlockConfig::default() };
        let run = std::panic::catch_unwind(|| {
            let (cache, block) = (new(config), block_size as usize);
            let (published, seen) = Default::default();
            Simulation { cache, block, published, step: 0, seen }.run(seed)
        });
        let counts = run.unwrap_or_else(|cause| {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(cause)
        });
        seen.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let each = [CacheEnd::Evicted, CacheEnd::OtherKey, CacheEnd::NeverComputed];
    assert!(each.iter().all(|&cache_end| seen[cache_end as usize] > 100), "{seen:?}");
}

#[test]
fn paged_short_hits_report_their_reason() {
    run_seeds(|config| Paged::new(config).unwrap());
}

#[test]
fn radix_short_hits_report_their_reason() {
    run_seeds(|config| Radix::new(config).unwrap());
}

/// A cache with recurrent states and `checkpoints` checkpoints.
fn hybrid(kind: CacheKind, checkpoints: u32) -> Box<dyn Cache> {
    let states = StateConfig { live: 2, checkpoints, tail_rows: 0, interval: 0 };
    build(kind, &CacheConfig { states: Some(states), ..CacheConfig::new(400) }).unwrap()
}

#[test]
fn hybrid_hits_distinguish_absent_from_evicted_checkpoints() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let prompt = |first: Token, len: usize| [vec![first; 32], vec![7; len - 32]].concat();
        let mut step = 0;
        let mut cache = hybrid(kind, 8);
        compute(&mut *cache, &mut step, &prompt(1, 96), 0, 96);
        // The second prompt diverges inside the first one, whose only checkpoint is at its end.
        let mut diverging = prompt(1, 65);
        diverging[63] = 8;
        let hit = cache.prefix().unwrap().lookup(&diverging, 0);
        assert_eq!((hit.tokens, hit.matched, hit.cache_end), (0, 48, Some(CacheEnd::NoCheckpoint)), "{kind}");
        compute(&mut *cache, &mut step, &diverging, 0, 65);
        let hit = cache.prefix().unwrap().lookup(&diverging, 0);
        assert_eq!((hit.tokens, hit.matched, hit.cache_end), (64, 64, None), "{kind}");
        // With one checkpoint slot, the checkpoint of the longer prompt evicts the older one.
        let mut cache = hybrid(kind, 1);
        compute(&mut *cache, &mut step, &prompt(1, 48), 0, 48);
        compute(&mut *cache, &mut step, &prompt(2, 320), 0, 320);
        let hit = cache.prefix().unwrap().lookup(&prompt(1, 49), 0);
        assert_eq!((hit.tokens, hit.matched, hit.cache_end), (0, 48, Some(CacheEnd::Evicted)), "{kind}");
    }
}

//! Random engine configurations: caches, limits and policies.

use crate::random::Random;
use kvasir_engine::{Chunked, Chunking, Limits, Mixing, Policy, PrefillFirst};
use kvasir_kv::{Cache, CacheConfig, CacheKind, build};

/// All kinds of caches.
pub const CACHE_KINDS: [CacheKind; 5] =
    [CacheKind::Contiguous, CacheKind::Cells, CacheKind::Tree, CacheKind::Paged, CacheKind::Radix];

/// A cache of this kind; if it is block-based, with a random block size.
pub fn cache(random: &mut Random, kind: CacheKind, slots: u32) -> Box<dyn Cache> {
    let block_size = if kind.is_block_based() { random.pick(&[1, 4, 16]) } else { 1 };
    build(kind, &CacheConfig { block_size, sharing: true, ..CacheConfig::new(slots) }).unwrap()
}

/// Random limits for a context of this length.
pub fn limits(random: &mut Random, context: u32) -> Limits {
    Limits {
        max_num_batched_tokens: random.pick(&[16, 64]),
        max_model_len: context,
        prefix_cache: random.chance(50),
        ..Limits::default()
    }
}

/// A random policy that works with every kind of cache.
pub fn policy(random: &mut Random) -> Box<dyn Policy> {
    match random.below(3) {
        0 => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
        1 => Box::new(Chunked::new(12, Mixing::On { target: None })),
        _ => Box::new(Chunked::new(9, Mixing::Off)),
    }
}

//! Operations of the `paged` and `radix` caches, one rule per test, each run on both.

#![allow(clippy::unwrap_used)]

mod claims;
#[path = "../common/mod.rs"]
mod common;
mod forks;
mod plans;
mod sharing;

use common::{meaning, plan_of};
use kvasir_kv::blocks::{BlockConfig, FreeOrder};
use kvasir_kv::{
    Cache, CacheConfig, CacheError, ClaimRow, GroupId, Paged, Plan, PoolUsage, Radix, SeqId, SlotCopy,
    StepId, Token, build,
};

const SMALL: BlockConfig = BlockConfig {
    block_size: 4,
    blocks: 8,
    max_sequences: 8,
    sharing: true,
    dummy: false,
    free_order: FreeOrder::Lowest,
};

/// Runs the test on both caches.
fn both(config: BlockConfig, test: impl Fn(&mut dyn Cache)) {
    test(&mut Paged::new(config).unwrap());
    test(&mut Radix::new(config).unwrap());
}

/// Claims and retires `tokens` for one sequence.
fn run(cache: &mut dyn Cache, step: u64, seq: SeqId, tokens: u32) {
    cache.claim(StepId(step), &[ClaimRow::new(seq, tokens)]).unwrap();
    cache.retire(StepId(step)).unwrap();
    cache.check().unwrap();
}

fn publish(cache: &mut dyn Cache, seq: SeqId, tokens: &[Token]) {
    cache.prefix().unwrap().publish(seq, tokens, tokens.len() as u32).unwrap();
    cache.check().unwrap();
}

fn usage(free: u32, evictable: u32, held: u32, leased: u32) -> PoolUsage {
    PoolUsage { free, evictable, held, leased }
}

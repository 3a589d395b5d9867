//! A steady decode step of a block cache makes no heap allocation (counting global allocator), even
//! if each step evicts checkpoints of recurrent states.

#![allow(clippy::unwrap_used)]

use kvasir_kv::blocks::{BlockCache, BlockConfig, Index};
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, Paged, Plan, Radix, SeqId, StateConfig, StepId, Token, build,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system allocator, with a count of allocations per thread.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded unchanged to the system allocator; the counter is a thread-local
// `Cell` and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is forwarded unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is forwarded unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Overlapped decode steps of 256 sequences: the next step is claimed before the last one retires.
/// The measured steps cross a block boundary but no capacity doubling of a table.
fn decode<I: Index>(mut cache: BlockCache<I>) {
    let seqs: Vec<SeqId> = (0..256).map(|_| cache.open().unwrap()).collect();
    let rows = |tokens| seqs.iter().map(|&seq| ClaimRow::new(seq, tokens)).collect::<Vec<_>>();
    cache.claim(StepId(1), &rows(970)).unwrap();
    cache.retire(StepId(1)).unwrap();
    let (rows, mut plan, mut step) = (rows(1), Plan::default(), 1);
    cache.claim(StepId(2), &rows).unwrap();
    let mut overlapped = |steps: u64| {
        for _ in 0..steps {
            step += 1;
            cache.claim(StepId(step + 1), &rows).unwrap();
            cache.plan(StepId(step + 1), &mut plan).unwrap();
            cache.check_fresh(&plan).unwrap();
            cache.retire(StepId(step)).unwrap();
        }
    };
    overlapped(8);
    let before = CALLS.get();
    overlapped(40);
    assert_eq!(CALLS.get() - before, 0, "calls of the allocator in 40 steps");
}

#[test]
fn a_steady_decode_step_does_not_allocate() {
    let config = BlockConfig { blocks: 1 << 15, ..BlockConfig::default() };
    decode(Paged::new(config).unwrap());
    decode(Radix::new(config).unwrap());
}

#[test]
fn steps_that_evict_checkpoints_do_not_allocate() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let states = StateConfig { live: 9, checkpoints: 400, tail_rows: 4, interval: 4 };
        let config = CacheConfig { block_size: 4, states: Some(states), ..CacheConfig::new(1 << 16) };
        let mut cache = build(kind, &config).unwrap();
        let mut step = 0;
        let mut run = |cache: &mut dyn Cache, rows: &[ClaimRow], plan: &mut Plan| {
            step += 1;
            cache.claim(StepId(step), rows).unwrap();
            cache.plan(StepId(step), plan).unwrap();
            cache.retire(StepId(step)).unwrap();
        };
        // Checkpoints of a published prompt fill the pool.
        let (prompt, mut plan) = ((0..1600).collect::<Vec<Token>>(), Plan::default());
        let first = cache.open().unwrap();
        run(&mut *cache, &[ClaimRow::new(first, 1600)], &mut plan);
        cache.prefix().unwrap().publish(first, &prompt, 1600).unwrap();
        cache.close(first).unwrap();
        let seqs: Vec<SeqId> = (0..8).map(|_| cache.open().unwrap()).collect();
        seqs.iter().for_each(|&seq| cache.reserve_memory(seq, 1000));
        cache.reserve_plan_memory(8000, 8);
        let rows: Vec<ClaimRow> = seqs.iter().map(|&seq| ClaimRow::new(seq, 1)).collect();
        (0..100).for_each(|_| run(&mut *cache, &rows, &mut plan));
        let before = CALLS.get();
        (0..28).for_each(|_| run(&mut *cache, &rows, &mut plan));
        assert_eq!(CALLS.get() - before, 0, "{kind}: calls of the allocator in 28 steps");
        let prefix = cache.prefix().unwrap();
        let mut hits = (4..1600).step_by(4).map(|len| prefix.lookup(&prompt[..len + 1], 0));
        assert!(hits.any(|hit| hit.tokens < hit.matched), "{kind}: no checkpoint was evicted");
        cache.check().unwrap();
    }
}

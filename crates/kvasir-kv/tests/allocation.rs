//! A steady decode step of a block cache makes no heap allocation (counting global allocator).

#![allow(clippy::unwrap_used)]

use kvasir_kv::blocks::{BlockCache, BlockConfig, Index};
use kvasir_kv::{Cache, ClaimRow, Paged, Plan, Radix, SeqId, StepId};
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

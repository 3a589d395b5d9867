//! A steady decode step makes no heap allocation, on the batching caches and under each policy,
//! with and without overlap. A counting global allocator checks it.
#![allow(clippy::unwrap_used, unsafe_code)] // the counting allocator

use kvasir_engine::*;
use kvasir_exec::{OutputRow, Step};
use kvasir_kv::Span;
use kvasir_kv::{Cache, Cells, ClaimRow, Paged, Radix, StepId, blocks::BlockConfig};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::VecDeque,
};

struct Counting;

thread_local! {
    /// Allocations of this thread only; the test harness has other threads.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // The thread-local may already be destroyed while a thread exits.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// SAFETY: every call is forwarded to the system allocator; counting touches none of the caller's
// memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller upholds the contract of `GlobalAlloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_one();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn answer(step: &mut Step) {
    for row in &step.batch.rows {
        let start = step.output.tokens.len();
        if row.samples() {
            step.output.tokens.push(10);
        }
        step.output.rows.push(OutputRow { tokens: Span::new(start, usize::from(row.samples())) });
    }
}

/// Fills the cache once, because some tables grow with its peak usage.
fn fill_once(cache: &mut dyn Cache) {
    let seq = cache.open().unwrap();
    let row = ClaimRow::new(seq, 15_000);
    cache.claim(StepId(0), &[row]).unwrap();
    cache.retire(StepId(0)).unwrap();
    cache.close(seq).unwrap();
}

/// Allocations of each of `steps` decode steps after a warm-up.
fn decode(mut cache: Box<dyn Cache>, policy: Box<dyn Policy>, overlap: usize, steps: u32) -> Vec<u64> {
    const ROWS: u64 = 32;
    fill_once(&mut *cache);
    let mut core = Core::new(Limits::default(), Order::Fcfs, policy, cache);
    for tag in 0..ROWS {
        let params = Params { max_tokens: 400, ..Params::default() };
        core.add(Request { tag, prompt: (0..40).map(|t| tag as u32 * 1000 + t).collect(), params }, 0)
            .unwrap();
    }
    let mut counts = Vec::with_capacity(steps as usize);
    let mut pending = VecDeque::with_capacity(4);
    while counts.len() < steps as usize {
        let before = TAKEN.get();
        let step = core.schedule(0).unwrap();
        core.take_binds().for_each(drop);
        let decodes = step.batch.tokens.len() as u64 == ROWS;
        pending.push_back(step);
        if pending.len() > overlap {
            let mut step = pending.pop_front().unwrap();
            answer(&mut step);
            core.postprocess(&step, &Ok(()), 0);
            core.recycle(step);
        }
        core.outbox().clear();
        if decodes {
            counts.push(TAKEN.get() - before);
        }
    }
    counts
}

#[test]
fn steady_decode_step_allocates_nothing() {
    let blocks = BlockConfig { block_size: 16, blocks: 2048, ..BlockConfig::default() };
    for overlap in [0, 1] {
        for kind in ["paged", "radix", "radix/1", "cells", "rectangular"] {
            let cache: Box<dyn Cache> = match kind {
                "paged" => Box::new(Paged::new(blocks).unwrap()),
                "radix" => Box::new(Radix::new(blocks).unwrap()),
                "radix/1" => {
                    Box::new(Radix::new(BlockConfig { block_size: 1, blocks: 1 << 15, ..blocks }).unwrap())
                }
                "rectangular" => Box::new(Paged::new(BlockConfig { dummy: true, ..blocks }).unwrap()),
                _ => Box::new(Cells::new(1 << 15, 64, None).unwrap()),
            };
            let policy: Box<dyn Policy> = match kind {
                "paged" => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
                "rectangular" => {
                    let config = RectangularConfig { interleave: false, ..RectangularConfig::default() };
                    Box::new(Rectangular::new(config))
                }
                _ => Box::new(Chunked::new(8192, Mixing::On { target: None })),
            };
            let counts = decode(cache, policy, overlap, 350);
            let steady = &counts[150..];
            let taken: u64 = steady.iter().sum();
            let where_: Vec<usize> = (0..steady.len()).filter(|i| steady[*i] > 0).collect();
            println!(
                "{kind}, overlap {overlap}: {taken} allocations in {} steps, at {where_:?}",
                steady.len()
            );
            assert_eq!(taken, 0, "{kind}, overlap {overlap}: allocations at steps {where_:?}");
        }
    }
}

#[test]
fn steady_drafting_allocates_nothing() {
    let drafters: [(&str, Box<dyn Drafter>); 2] =
        [("ngram", Box::new(NgramDrafter::new(3, 16))), ("suffix", Box::new(SuffixDrafter::new(16)))];
    for (name, mut drafter) in drafters {
        let mut core = Core::new(
            Limits::default(),
            Order::Fcfs,
            Box::new(Chunked::new(8192, Mixing::On { target: None })),
            Box::new(Cells::new(1 << 15, 64, None).unwrap()),
        );
        let params = Params { max_tokens: 400, ignore_eos: true, ..Params::default() };
        let prompt: Vec<u32> = (0..3000).map(|i| i * i % 97).collect();
        let id = core.add(Request { tag: 0, prompt, params }, 0).unwrap();
        let (mut proposal, mut drafted) = (Proposal::default(), 0);
        for turn in 0..300u32 {
            let mut step = core.schedule(0).unwrap();
            core.take_binds().for_each(drop);
            for row in &step.batch.rows {
                let span = Span::new(step.output.tokens.len(), usize::from(row.samples()));
                // Old text with something new now and then.
                let token = if turn % 50 == 0 { 1000 + turn } else { turn * turn % 97 };
                step.output.tokens.extend(row.samples().then_some(token));
                step.output.rows.push(OutputRow { tokens: span });
            }
            core.postprocess(&step, &Ok(()), 0);
            core.recycle(step);
            core.outbox().clear();
            let sequence = core.sequence(id).unwrap();
            proposal.clear();
            let before = TAKEN.get();
            drafter.begin_step();
            drafter.propose(sequence, &mut proposal);
            // The first call reads the history in, and the next ones find the size of a proposal.
            assert!(turn < 20 || TAKEN.get() == before, "{name}: an allocation at token {turn}");
            drafted += proposal.tokens.len();
        }
        assert!(drafted > 500, "{name}: {drafted}");
    }
}

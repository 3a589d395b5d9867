//! A steady decode step does not allocate on any thread of the backend. The same holds for a hybrid
//! model, for a model with window groups, and for steps that verify the drafts of a draft model.
//! After a long context, a step allocates nothing of the size of the KV cache. A global allocator
//! counts.
#![allow(clippy::unwrap_used, unsafe_code)] // the counting allocator

use kvasir_cpu::{CpuExecutor, CpuModel, Drafting, KvType, Limits, Precision, ThreadPool};
use kvasir_draft::{DraftModelKind, TreeShape};
use kvasir_exec::{Batch, BatchRow, Drafts, Executor, IN_FLIGHT, PoolRow, SequenceSpec, Step};
use kvasir_formats::Checkpoint;
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, Span, StateConfig, StepId, Token, WindowConfig, build,
};
use kvasir_program::{Model, Program};
use kvasir_sample::Sampling;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

/// Allocations of the process; this file has a single test, so they are its own.
static TAKEN: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is forwarded to the system's allocator; counting touches no memory of the
// caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Session {
    executor: CpuExecutor,
    cache: Box<dyn Cache>,
    step: Option<Box<Step>>,
    next: u64,
    /// Levels of drafts that each row wants.
    draft_depth: u32,
}

impl Session {
    fn run(&mut self, claim: &[ClaimRow], tokens: &[&[Token]], sampling: &[Sampling]) {
        let id = StepId(self.next);
        self.next += 1;
        self.cache.claim(id, claim).unwrap();
        let mut step = self.step.take().unwrap_or_default();
        step.batch.reset(id);
        self.cache.plan(id, &mut step.plan).unwrap();
        let Batch { tokens: all, rows, .. } = &mut step.batch;
        for (n, (claim, tokens)) in claim.iter().zip(tokens).enumerate() {
            let span = Span::new(all.len(), tokens.len());
            all.extend_from_slice(tokens);
            let pool_row = PoolRow(n as u32);
            let count = if tokens.len() == PART { 0 } else { tokens.len() as u32 - 1 };
            rows.push(BatchRow {
                seq: claim.seq,
                tokens: span,
                sample_from: tokens.len() as u32 - 1 - count,
                pool_row,
                drafts: Drafts { count, tree: None },
                feeds_draft: self.draft_depth > 0,
                draft_depth: self.draft_depth,
                sampling: sampling[n],
                ..BatchRow::default()
            });
        }
        let pending = self.executor.submit(step).unwrap();
        let (step, result) = self.executor.wait(pending);
        result.unwrap();
        self.step = Some(step);
        self.cache.retire(id).unwrap();
    }
}

/// Allocations of 90 decode steps after a warm-up.
struct Taken {
    /// Indices of the steps that allocated.
    steps: Vec<usize>,
    /// Growth of the peak resident set in bytes; 0 where the system does not report it.
    higher: u64,
    /// Bytes of the KV cache of all tokens.
    kept: u64,
}

/// Peak resident set of the process in bytes; 0 where the system does not report it.
fn highest() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Tokens per prefill chunk.
const PART: usize = 70;

/// Recurrent states for three sequences.
const STATES: StateConfig = StateConfig { live: 3, checkpoints: 6, tail_rows: 0, interval: 64 };

/// A paged cache of `blocks` blocks, with recurrent states and window groups if the model has such
/// layers.
fn cache(blocks: u32, states: Option<StateConfig>, windows: Vec<WindowConfig>) -> Box<dyn Cache> {
    build(CacheKind::Paged, &CacheConfig { states, windows, ..CacheConfig::new(blocks * 16) }).unwrap()
}

/// Configurations of the window groups of a program.
fn windows(program: &Program) -> Vec<WindowConfig> {
    let mut windows = program.windows();
    windows.sort_unstable();
    windows.dedup();
    windows.into_iter().map(|window| WindowConfig { window, capacity: 512, longest_draft: 0 }).collect()
}

/// Three sequences decode behind prompts of `parts` prefill chunks each.
fn steady(case: &str, threads: usize, parts: usize) -> Taken {
    let case = kvasir_testkit::paths::model(case);
    let checkpoint = Checkpoint::open(&case).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    let thread_pool = Arc::new(ThreadPool::new(threads));
    let model = CpuModel::load(&model.target, Arc::new(checkpoint), Precision::Auto, thread_pool).unwrap();
    let each = parts * PART + 330;
    let blocks = 3 * each.div_ceil(16) as u32;
    let limits = Limits { slots: blocks * 16, tokens: 256, rows: 3, kv: KvType::Bf16, ring: None };
    let states = model.program().is_recurrent().then_some(STATES);
    let cache = cache(blocks, states, windows(model.program()));
    let slots = (!cache.shape().windows.is_empty()).then(|| cache.shape().pool_slots());
    let executor = CpuExecutor::new(Arc::new(model), limits).unwrap().with_states(states).unwrap();
    let executor = executor.with_window_groups(slots).unwrap();
    let mut session = Session { executor, cache, step: None, next: 1, draft_depth: 0 };
    let sampling = [
        Sampling::default(),
        Sampling { temperature: 0.8, seed: 4, ..Sampling::default() },
        Sampling { temperature: 1.0, min_p: 0.05, ..Sampling::default() },
    ];
    let mut claim = Vec::new();
    for row in 0..3 {
        let final_len = each as u32;
        session.executor.bind(PoolRow(row), SequenceSpec { final_len, ..SequenceSpec::default() });
        let seq = session.cache.open().unwrap();
        session.cache.reserve_memory(seq, final_len);
        claim.push(ClaimRow::new(seq, PART as u32));
    }
    let prompt: Vec<Token> = (0..PART as Token).collect();
    for _ in 0..parts {
        session.run(&claim, &[&prompt[..]; 3], &sampling);
    }
    claim.iter_mut().for_each(|row| row.tokens = 1);
    let mut taken = Vec::with_capacity(150);
    let mut high = 0;
    for step in 0..150 {
        if step == 60 {
            high = highest();
        }
        let before = TAKEN.load(Ordering::Relaxed);
        session.run(&claim, &[&[IN_FLIGHT][..]; 3], &sampling);
        taken.push(TAKEN.load(Ordering::Relaxed) - before);
    }
    let higher = highest() - high;
    let late = &taken[60..];
    let steps = (0..late.len()).filter(|i| late[*i] > 0).collect();
    let kept = (3 * (parts * PART + 150) * session.executor.pool().token_bytes()) as u64;
    Taken { steps, higher, kept }
}

/// Drafts per row of the speculating sequences.
const DRAFTS: u32 = 3;

/// Steps of two sequences that verify drafts of a draft model, here the target's own weights, which
/// allocated after a warm-up; and the drafts that were accepted.
fn speculating() -> (Vec<usize>, usize) {
    let case = kvasir_testkit::paths::model("qwen3_bf16");
    let checkpoint = Arc::new(Checkpoint::open(&case).unwrap());
    let program = Model::build(&checkpoint.source()).unwrap().target;
    let threads = Arc::new(ThreadPool::new(1));
    let model = Arc::new(CpuModel::load(&program, checkpoint, Precision::Auto, threads).unwrap());
    let blocks = 160;
    let limits = Limits { slots: blocks * 16, tokens: 256, rows: 2, kv: KvType::Bf16, ring: None };
    let kind = DraftModelKind { target_vocab: program.vocab, ..DraftModelKind::default() };
    let shape = TreeShape::chain(DRAFTS);
    let drafting = Drafting::new(Arc::clone(&model), kind, shape, limits, (None, None)).unwrap();
    let executor = CpuExecutor::new(model, limits).unwrap().drafting(drafting);
    let cache = cache(blocks, None, Vec::new());
    let mut session = Session { executor, cache, step: None, next: 1, draft_depth: 0 };
    let sampling = [Sampling::default(), Sampling { temperature: 0.8, seed: 4, ..Sampling::default() }];
    let mut claim = Vec::new();
    for row in 0..2 {
        let final_len = 1200;
        session.executor.bind(PoolRow(row), SequenceSpec { final_len, ..SequenceSpec::default() });
        let seq = session.cache.open().unwrap();
        session.cache.reserve_memory(seq, final_len);
        claim.push(ClaimRow::new(seq, PART as u32));
    }
    let prompt: Vec<Token> = (0..PART as Token).collect();
    session.draft_depth = DRAFTS;
    session.run(&claim, &[&prompt[..]; 2], &sampling);
    let mut len = [PART as u32; 2];
    let mut tokens: [Vec<Token>; 2] = [Vec::with_capacity(8), Vec::with_capacity(8)];
    let (mut nodes, mut all) = (Vec::with_capacity(8), 0);
    let mut taken = Vec::with_capacity(200);
    for _ in 0..200 {
        let before = TAKEN.load(Ordering::Relaxed);
        for row in 0..2 {
            let step = session.step.as_ref().unwrap();
            nodes.clear();
            step.accepted(row, &mut nodes);
            all += nodes.len();
            let output = &step.output;
            let sampled = &output.tokens[output.rows[row].tokens.range()];
            let newest = sampled[nodes.len()];
            let proposal = output.proposals.iter().find(|proposal| proposal.row as usize == row);
            let candidates = &output.candidates[proposal.unwrap().candidates.range()];
            tokens[row].clear();
            tokens[row].push(newest);
            tokens[row].extend(candidates.iter().map(|candidate| candidate.token));
            if step.batch.rows[row].drafts.count > 0 {
                len[row] += 1 + nodes.len() as u32;
                session.cache.rewind().unwrap().rewind_to(claim[row].seq, len[row]).unwrap();
            }
            claim[row].tokens = tokens[row].len() as u32;
        }
        session.run(&claim, &[&tokens[0][..], &tokens[1][..]], &sampling);
        taken.push(TAKEN.load(Ordering::Relaxed) - before);
    }
    ((60..taken.len()).filter(|i| taken[*i] > 0).collect(), all)
}

/// Buffers that grow with the context double, so hardly a step allocates. Each thread has scratch
/// that grows when the thread first meets a larger work item; on a busy machine a worker may join
/// late, but it too grows once per size.
#[test]
fn a_steady_decode_step_allocates_nothing() {
    let (steps, accepted) = speculating();
    assert!(accepted > 400, "only {accepted} drafts accepted");
    assert!(steps.len() <= 8, "steps that took memory while drafting: {steps:?}");
    let alone = steady("qwen3_bf16", 1, 1);
    assert!(alone.steps.len() <= 2, "steps that took memory on one thread: {:?}", alone.steps);
    let two = steady("qwen3_bf16", 2, 1);
    assert!(two.steps.len() <= 30, "steps that took memory on two threads: {:?}", two.steps);
    // The tables of the cache grow with the number of state checkpoints.
    let hybrid = steady("qwen3_5", 1, 1);
    assert!(hybrid.steps.len() <= 8, "steps that took memory in a hybrid model: {:?}", hybrid.steps);
    // As the window slides, blocks of its group are released and allocated.
    let windows = steady("gemma3", 1, 1);
    assert!(windows.steps.len() <= 8, "steps that took memory with a window group: {:?}", windows.steps);
    // Behind 4,200 tokens each: a step that copied the pool, or one layer of it, would raise the
    // peak even if it freed it at once.
    let long = steady("qwen3_bf16", 2, 60);
    assert!(long.steps.len() <= 30, "steps that took memory behind a long context: {:?}", long.steps);
    assert!(long.kept > 8 << 20, "{} bytes are no long context", long.kept);
    assert!(long.higher < long.kept / 8, "{} bytes more where {} are kept", long.higher, long.kept);
}

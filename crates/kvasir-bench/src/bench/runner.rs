//! Executes one benchmark workload on the CPU executor: claim, plan, submit, wait, retire.
//!
//! One sequence runs on the contiguous KV cache, several on the radix (paged) cache. Prompts are
//! prefilled in chunks of at most `STEP` tokens; decode feeds one token per sequence and step.

use crate::bench::Work;
use crate::bench::segments::Segments;
use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits, MachineLimits};
use kvasir_exec::{Batch, BatchRow, Executor, IN_FLIGHT, PoolRow, RowKind, SequenceSpec, Step};
use kvasir_kv::{Cache, ClaimRow, Contiguous, Radix, SeqId, Span, StepId, Token, blocks::BlockConfig};
use std::sync::Arc;

/// Upper bound of tokens per step (prefill chunk size).
pub(crate) const STEP: u32 = 2048;
/// Block size of the paged KV cache, equal to the server's default.
const BLOCK: u32 = 16;

/// An executor with a KV pool and a cache sized for the workload.
pub(crate) struct Runner {
    executor: CpuExecutor,
    cache: Box<dyn Cache>,
    step: Option<Box<Step>>,
    next: u64,
    vocab: u32,
    /// Maximum tokens per step of this runner.
    longest: u32,
    token_bytes: usize,
}

impl Runner {
    pub(super) fn new(model: &Arc<CpuModel>, kv: KvType, work: Work) -> Result<Self, String> {
        let (slots, streams) = match work {
            Work::Prompt { tokens } => (tokens, 1),
            Work::Generation { tokens, depth } => (tokens + depth.max(1), 1),
            Work::Streams { streams, shared, prompt, tokens } => {
                // Each stream may leave its last block partly filled, and so may its copy of the
                // prefix's last block.
                let each = (prompt + tokens).next_multiple_of(BLOCK) + BLOCK;
                (shared.next_multiple_of(BLOCK) + streams * each, streams)
            }
        };
        let longest = match work {
            Work::Prompt { tokens } => tokens,
            Work::Generation { depth, .. } => depth.max(1),
            Work::Streams { streams, shared, prompt, .. } => shared.max(prompt * streams),
        };
        let longest = longest.clamp(streams, STEP);
        let limits = Limits { slots, tokens: longest, rows: streams, kv, ring: None };
        let executor = CpuExecutor::new(Arc::clone(model), limits).map_err(|e| e.to_string())?;
        let cache: Box<dyn Cache> = match streams {
            1 => Box::new(Contiguous::new(slots)),
            _ => {
                let blocks = slots / BLOCK;
                let config = BlockConfig {
                    blocks,
                    block_size: BLOCK,
                    max_sequences: streams,
                    ..BlockConfig::default()
                };
                Box::new(Radix::new(config).map_err(|e| e.to_string())?)
            }
        };
        let token_bytes = executor.pool().token_bytes();
        Ok(Self {
            executor,
            cache,
            step: Some(Box::default()),
            next: 1,
            vocab: model.program().vocab as u32,
            longest,
            token_bytes,
        })
    }

    /// KV cache bytes per token, over all layers.
    pub(super) fn token_bytes(&self) -> usize {
        self.token_bytes
    }

    /// Runs one repetition; the timed parts are recorded in `segments`.
    pub(super) fn once(
        &mut self,
        work: Work,
        segments: &mut Segments<impl Fn() -> MachineLimits>,
    ) -> Result<(), String> {
        self.cache.clear().map_err(|e| e.to_string())?;
        let (streams, shared, prompt, tokens) = match work {
            Work::Prompt { tokens } => (1, 0, tokens, 0),
            Work::Generation { depth, tokens } => (1, 0, depth.max(1), tokens),
            Work::Streams { streams, shared, prompt, tokens } => (streams, shared, prompt, tokens),
        };
        for row in 0..streams {
            self.executor.bind(PoolRow(row), SequenceSpec::default());
        }
        let mut open = vec![self.cache.open().map_err(|e| e.to_string())?];
        if shared > 0 {
            self.read(&open, 0, shared)?;
        }
        // Prefill is timed after a shared prefix (branches) or if nothing is decoded.
        let prompt_counts = shared > 0 || tokens == 0;
        if prompt_counts {
            segments.begin();
        }
        for _ in 1..streams {
            let seq = self.cache.open().map_err(|e| e.to_string())?;
            if shared > 0 {
                let sequences = self.cache.sequences().map_err(|e| e.to_string())?;
                sequences.copy(open[0], seq, 0..shared).map_err(|e| e.to_string())?;
            }
            open.push(seq);
        }
        self.read(&open, shared, prompt)?;
        if tokens == 0 {
            segments.end(1);
            return Ok(());
        }
        let rows: Vec<_> =
            (0..).zip(&open).map(|(row, seq)| (*seq, PoolRow(row), &[IN_FLIGHT][..], 0)).collect();
        if !prompt_counts {
            segments.begin();
        }
        let mut steps = 0;
        for left in (0..tokens).rev() {
            self.run(&rows)?;
            steps += 1;
            if left > 0 && segments.is_long() {
                segments.end(steps);
                segments.begin();
                steps = 0;
            }
        }
        segments.end(steps);
        Ok(())
    }

    /// Prefills `count` tokens of each sequence from position `first`, batching as many as a step
    /// takes.
    fn read(&mut self, open: &[SeqId], first: u32, count: u32) -> Result<(), String> {
        let vocab = self.vocab;
        let of = |row: usize, from: u32, to: u32| -> Vec<Token> {
            (from..to).map(|i| (i * 7919 + row as u32 * 31 + 11) % vocab).collect()
        };
        let together = (self.longest / count.max(1)).max(1) as usize;
        for (n, group) in open.chunks(together).enumerate() {
            let mut at = 0;
            while at < count {
                let n_tokens = self.longest.min(count - at);
                let from = if at + n_tokens == count { n_tokens - 1 } else { n_tokens };
                let rows = (n * together..).zip(group);
                let tokens: Vec<(SeqId, PoolRow, Vec<Token>)> = rows
                    .map(|(row, seq)| (*seq, PoolRow(row as u32), of(row, first + at, first + at + n_tokens)))
                    .collect();
                let rows: Vec<_> = tokens.iter().map(|(seq, row, t)| (*seq, *row, &t[..], from)).collect();
                self.run(&rows)?;
                at += n_tokens;
            }
        }
        Ok(())
    }

    /// Executes one step to completion: claim slots, plan, submit, wait, retire.
    fn run(&mut self, rows: &[(SeqId, PoolRow, &[Token], u32)]) -> Result<(), String> {
        let id = StepId(self.next);
        self.next += 1;
        let claim = |r: &(SeqId, PoolRow, &[Token], u32)| ClaimRow {
            seq: r.0,
            redirected: 0,
            tokens: r.2.len() as u32,
        };
        self.cache.claim(id, &rows.iter().map(claim).collect::<Vec<_>>()).map_err(|e| e.to_string())?;
        let mut step = self.step.take().unwrap_or_default();
        step.batch.reset(id);
        self.cache.plan(id, &mut step.plan).map_err(|e| e.to_string())?;
        let Batch { tokens: all, rows: into, .. } = &mut step.batch;
        for (seq, pool_row, tokens, from) in rows {
            let kind = if tokens.len() == 1 { RowKind::Decode } else { RowKind::Prefill };
            let tokens_at = Span::new(all.len(), tokens.len());
            into.push(BatchRow {
                seq: *seq,
                kind,
                tokens: tokens_at,
                sample_from: *from,
                pool_row: *pool_row,
                ..BatchRow::default()
            });
            all.extend_from_slice(tokens);
        }
        let pending = self.executor.submit(step).map_err(|refused| refused.error.to_string())?;
        let (step, result) = self.executor.wait(pending);
        self.step = Some(step);
        result.map_err(|e| e.to_string())?;
        self.cache.retire(id).map_err(|e| e.to_string())
    }
}

//! Drives the rectangular (static shape) scheduler with scripted outputs and records each step.

use crate::spyre::scenario::{EOS, output};
use kvasir_engine::rectangular::{ChunkRecord, SkippedPrefill};
use kvasir_engine::{
    Core, Limits, Order, Params, Rectangular, RectangularConfig, Request, RequestId, Status,
};
use kvasir_exec::{OutputRow, Step};
use kvasir_kv::blocks::BlockConfig;
use kvasir_kv::{BlockId, Paged, Span, Token};

/// One row of the last step.
#[derive(Clone, Debug)]
pub(crate) struct RanRow {
    pub(super) request: usize,
    pub(super) left_pad_blocks: u32,
    pub(super) context_len: u32,
    pub(super) hit_blocks: u32,
    /// Block table, in position order.
    pub(super) blocks: Vec<BlockId>,
    /// Block written by each of the row's tokens.
    pub(super) targets: Vec<BlockId>,
}

/// Observations of the last step.
#[derive(Clone, Debug, Default)]
pub(super) struct Ran {
    pub(super) tkv: u32,
    pub(super) volume: u64,
    pub(super) chunk: Option<ChunkRecord>,
    pub(super) rows: Vec<RanRow>,
    /// Requests that produced a token, in order.
    pub(super) outputs: Vec<usize>,
    pub(super) finished: Vec<usize>,
}

/// Core, policy and cache with scripted outputs. Requests are numbered by arrival.
pub(crate) struct Harness {
    core: Core,
    block_size: u32,
    ids: Vec<RequestId>,
    /// Output count after which a request emits EOS, if before its cap.
    stops: Vec<Option<u32>>,
    pub(super) ran: Ran,
    /// Whether rows and invariants are checked at each step; off for long workloads.
    pub(super) watch_rows: bool,
    now: u64,
}

impl Harness {
    pub(super) fn new(
        policy: RectangularConfig,
        limits: Limits,
        blocks: BlockConfig,
    ) -> Result<Self, String> {
        let cache = Paged::new(blocks).map_err(|error| error.to_string())?;
        let policy = Box::new(Rectangular::new(policy));
        Ok(Self {
            core: Core::new(limits, Order::Fcfs, policy, Box::new(cache)),
            block_size: blocks.block_size,
            ids: Vec::new(),
            stops: Vec::new(),
            ran: Ran::default(),
            watch_rows: true,
            now: 0,
        })
    }

    pub(super) fn add(
        &mut self,
        prompt: Vec<Token>,
        max_tokens: u32,
        stop: Option<u32>,
    ) -> Result<(), String> {
        let params = Params { max_tokens, eos: vec![EOS], ..Params::default() };
        let request = Request { tag: self.ids.len() as u64, prompt, params };
        let id = self.core.add(request, self.now).map_err(|refusal| refusal.to_string())?;
        self.ids.push(id);
        self.stops.push(stop);
        Ok(())
    }

    /// Runs one engine step. Fails if requests exist but nothing could be scheduled.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.now += 1;
        let step = self.core.schedule(self.now);
        self.ran = Ran::default();
        self.core.take_binds();
        let Some(mut step) = step else {
            return match self.core.counts() {
                (0, 0) => Ok(()),
                counts => Err(format!("nothing ran although {counts:?} wait and run")),
            };
        };
        let record = &self.core.record().rectangle;
        self.ran.tkv = record.tkv;
        self.ran.volume = record.volume();
        self.ran.chunk = record.chunk;
        if self.watch_rows {
            self.ran.rows = self.look_at_rows(&step)?;
        }
        self.answer(&mut step);
        self.core.postprocess(&step, &Ok(()), self.now);
        for event in self.core.events() {
            if event.tokens.len > 0 {
                self.ran.outputs.push(event.tag as usize);
            }
            if event.finish.is_some() {
                self.ran.finished.push(event.tag as usize);
            }
        }
        self.core.outbox().clear();
        self.core.recycle(step);
        if self.watch_rows { self.core.check_invariants() } else { Ok(()) }
    }

    fn look_at_rows(&self, step: &Step) -> Result<Vec<RanRow>, String> {
        let mut rows = Vec::new();
        for (row, planned) in step.batch.rows.iter().zip(&step.plan.rows) {
            let mut blocks = Vec::new();
            self.core.cache().blocks_of(row.seq, &mut blocks).map_err(|error| error.to_string())?;
            let slots = step.plan.write_slots.get(row.tokens.range()).unwrap_or(&[]);
            let request = self.number(RequestId(row.request));
            rows.push(RanRow {
                request,
                hit_blocks: self.hit_blocks(request),
                left_pad_blocks: planned.left_pad_blocks,
                context_len: row.context_len,
                blocks,
                targets: slots.iter().map(|slot| slot / self.block_size).collect(),
            });
        }
        Ok(rows)
    }

    /// Fills in the scripted output of every sampling row.
    fn answer(&self, step: &mut Step) {
        for row in &step.batch.rows {
            let start = step.output.tokens.len();
            if row.samples() {
                let which = self.number(RequestId(row.request));
                let had = self.outputs_of(which);
                let is_last = self.stops.get(which).copied().flatten() == Some(had + 1);
                step.output.tokens.push(if is_last { EOS } else { output(which, had) });
            }
            step.output.rows.push(OutputRow { tokens: Span::new(start, step.output.tokens.len() - start) });
        }
    }

    fn number(&self, id: RequestId) -> usize {
        self.core.sequence(id).map_or(usize::MAX, |sequence| sequence.tag() as usize)
    }

    /// Output tokens of a live request so far.
    pub(super) fn outputs_of(&self, which: usize) -> u32 {
        let id = self.ids.get(which);
        id.and_then(|id| self.core.sequence(*id)).map_or(0, |sequence| sequence.outputs().len() as u32)
    }

    /// Prefix cache hit of a live request, in blocks.
    pub(super) fn hit_blocks(&self, which: usize) -> u32 {
        let id = self.ids.get(which);
        id.and_then(|id| self.core.sequence(*id)).map_or(0, |sequence| sequence.hit() / self.block_size)
    }

    fn live(&self, ids: &[RequestId]) -> Vec<usize> {
        let runs = |id: &&RequestId| {
            self.core.sequence(**id).is_some_and(|sequence| sequence.status() == Status::Running)
        };
        ids.iter().filter(runs).map(|id| self.number(*id)).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.core.is_idle()
    }

    pub(super) fn waiting(&self) -> Vec<usize> {
        self.core.waiting().map(|sequence| sequence.tag() as usize).collect()
    }

    /// Running requests in the policy's order, without paused ones.
    pub(super) fn running(&self) -> Vec<usize> {
        self.live(&self.core.record().rectangle.running)
    }

    pub(super) fn paused(&self) -> Vec<usize> {
        self.live(&self.core.record().rectangle.paused)
    }

    /// Number of pause and resume events so far.
    pub(super) fn events(&self) -> (u64, u64) {
        let record = &self.core.record().rectangle;
        (record.pause_events, record.resume_events)
    }

    /// Prompt tokens that live requests skipped by prefix cache hits.
    pub(super) fn skipped(&self) -> Vec<(usize, u32)> {
        let here = |s: &&SkippedPrefill| !self.live(&[s.request]).is_empty();
        let skipped = self.core.record().rectangle.skipped.iter().filter(here);
        skipped.map(|s| (self.number(s.request), s.tokens)).collect()
    }

    /// Number of live requests whose skipped tokens are not yet counted as computed.
    pub(super) fn hits_to_come(&self) -> usize {
        let lacks = |&(which, tokens): &(usize, u32)| {
            let sequence = self.ids.get(which).and_then(|id| self.core.sequence(*id));
            sequence.is_some_and(|sequence| tokens > sequence.computed())
        };
        self.skipped().into_iter().filter(lacks).count()
    }

    /// Blocks reserved for running requests.
    pub(super) fn reserved(&self) -> u32 {
        self.core.running().map(|sequence| sequence.reserved()).sum::<u32>() / self.block_size
    }

    pub(super) fn block_size(&self) -> u32 {
        self.block_size
    }

    pub(super) fn free_blocks(&self) -> u32 {
        self.core.cache().usage().available() / self.block_size
    }

    /// Block tables of all running requests, including paused ones.
    pub(super) fn tables(&self) -> Vec<(usize, Vec<BlockId>)> {
        let table = |sequence: &kvasir_engine::Sequence| {
            let mut blocks = Vec::new();
            let _ = self.core.cache().blocks_of(sequence.cache_id()?, &mut blocks);
            Some((sequence.tag() as usize, blocks))
        };
        self.core.running().filter_map(table).collect()
    }

    /// Prefix cache hit that `prompt` would have now, in tokens.
    pub(super) fn lookup(&mut self, prompt: &[Token]) -> u32 {
        self.core.cache_mut().prefix().map_or(0, |prefix| prefix.lookup(prompt, 0).tokens)
    }
}

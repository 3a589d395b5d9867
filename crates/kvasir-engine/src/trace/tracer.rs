//! Step tracer: an `Observer` that turns each step into a `StepTrace` delta (arrivals, rows, block
//! tables, block usage, events) and writes it to a sink.
//!
//! Invariant: the deltas add up. At every step the blocks that requests own are the blocks reported
//! as held. A tracer that joins a running engine first writes the full state of every live request.
//! One that is limited to a client key writes that key's requests only: others are neither named
//! nor described, but the pool's usage and the numbers of waiting and running requests count them.
//! It writes `PrefixMatch::public_cache_end` as the reason of a short prefix hit.

use crate::core::Core;
use crate::engine::Observer;
use crate::request::event::Event;
use crate::request::ids::RequestId;
use crate::request::prefix_match::PrefixMatch;
use crate::request::timings::Nanos;
use crate::trace::step_trace::{StepTrace, TableChange};
use kvasir_exec::{RowKind, Step, StepError};
use kvasir_kv::{BlockId, BlockUse};
use std::{collections::HashMap, ops::Range};

/// Blocks compared per vectorized chunk.
const STRIDE: usize = 64;

/// Sink of finished step records.
pub trait TraceSink: Send {
    /// Takes the record of one step.
    fn write(&mut self, step: &StepTrace);
}

impl TraceSink for Box<dyn TraceSink> {
    fn write(&mut self, step: &StepTrace) {
        self.as_mut().write(step);
    }
}

/// What readers of the trace know of a live request, so that only deltas are written.
#[derive(Debug, Default)]
struct Known {
    number: u64,
    outputs: u32,
    /// K/V tokens and left padding blocks, as known to readers of the trace.
    computed: u32,
    left: u32,
    table: Vec<BlockId>,
}

/// An [`Observer`] that writes a [`StepTrace`] for every step in a window. A record is complete
/// when the next step is scheduled; `Tracer::finish` writes the last one.
pub struct Tracer<S> {
    sink: S,
    window: Range<u64>,
    /// The client key whose requests are written; `None` writes all.
    only: Option<u64>,
    scheduled: u64,
    /// Whether the state before the window has been written.
    has_base: bool,
    open: bool,
    record: StepTrace,
    live: HashMap<RequestId, Known>,
    /// Block usage as last written; blocks past the end are free.
    uses: Vec<BlockUse>,
    scratch: Vec<BlockUse>,
    has_map: bool,
    table: Vec<BlockId>,
    /// Requests that repeat their last decode shape, or emitted one token; run-length encoded when
    /// the record is written.
    again: Vec<u64>,
    spoke: Vec<u64>,
}

impl<S: TraceSink> Tracer<S> {
    /// Records the steps in `window`, numbered from 0 in scheduling order.
    pub fn new(sink: S, window: Range<u64>) -> Self {
        Self {
            sink,
            window,
            only: None,
            scheduled: 0,
            has_base: false,
            open: false,
            record: StepTrace::default(),
            live: HashMap::new(),
            uses: Vec::new(),
            scratch: Vec::new(),
            has_map: false,
            table: Vec::new(),
            again: Vec::new(),
            spoke: Vec::new(),
        }
    }

    /// Joins a running engine: the first record contains the full state of every live request.
    pub fn for_running_engine(sink: S) -> Self {
        Self { scheduled: 1, ..Self::new(sink, 1..u64::MAX) }
    }

    /// Limits the trace to the requests of one client key.
    pub fn only(self, key: u64) -> Self {
        Self { only: Some(key), ..self }
    }

    fn shows(&self, key: u64) -> bool {
        self.only.is_none_or(|only| only == key)
    }

    /// The sink.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// Writes the open record and returns the sink.
    pub fn finish(mut self) -> S {
        self.flush();
        self.sink
    }

    /// Writes the open record now; for an engine that may stay idle for long.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.open) {
            push_runs(&mut self.again, &mut self.record.again);
            push_runs(&mut self.spoke, &mut self.record.spoke);
            self.sink.write(&self.record);
        }
    }

    fn number(&self, request: RequestId) -> Option<u64> {
        self.live.get(&request).map(|known| known.number)
    }

    /// Writes the state of every request that was live before the window.
    fn begin(&mut self, core: &Core) {
        self.has_base = true;
        if self.scheduled == 0 {
            return;
        }
        for sequence in core.running().chain(core.waiting()) {
            if !self.shows(sequence.params().key) {
                continue;
            }
            let (number, outputs) = (sequence.number(), sequence.outputs_len());
            let known = Known { number, outputs, computed: sequence.claimed(), ..Known::default() };
            self.live.insert(sequence.id(), known);
            let max = sequence.params().max_tokens;
            self.record.arrived.push((number, sequence.prompt_len(), max, sequence.tag()));
            if outputs > 0 {
                self.record.outputs.push((number, outputs));
            }
            let is_new = core.record().admitted.iter().any(|admission| admission.request == sequence.id());
            if sequence.cache_id().is_some() && !is_new {
                self.record.admitted.push((number, sequence.hit()));
                self.record.computed.push((number, sequence.claimed()));
            }
        }
        self.record.arrived.sort_unstable();
    }

    fn decisions(&mut self, core: &Core) {
        let record = core.record();
        for arrival in &record.arrived {
            // A request refused on arrival has no sequence, and no key is known of it.
            let key = core.sequence(arrival.request).map(|sequence| sequence.params().key);
            if self.only.is_some() && !key.is_some_and(|key| self.shows(key)) {
                continue;
            }
            let known = Known { number: arrival.number, ..Known::default() };
            if self.live.insert(arrival.request, known).is_none() {
                let entry = (arrival.number, arrival.prompt, arrival.max_tokens, arrival.tag);
                self.record.arrived.push(entry);
            }
        }
        for admission in &record.admitted {
            let Some(known) = self.live.get_mut(&admission.request) else { continue };
            known.computed = admission.hit;
            self.record.admitted.push((known.number, admission.hit));
            let PrefixMatch { matched, cache_end, public_cache_end } = admission.prefix;
            let cache_end = if self.only.is_some() { public_cache_end } else { cache_end };
            self.record.short_hits.extend(cache_end.map(|cache_end| (known.number, matched, cache_end)));
        }
        for request in record.preempted.iter().chain(&record.shifted) {
            self.record.preempted.extend(self.number(*request));
            if let Some(known) = self.live.get_mut(request) {
                known.table.clear();
                known.computed = 0;
            }
        }
        for held in &record.deferred {
            self.record.held.extend(self.number(held.request).map(|number| (number, held.reason)));
        }
        for skipped in &record.rectangle.skipped {
            self.record.skipped.extend(self.number(skipped.request).map(|number| (number, skipped.tokens)));
        }
        let projected = record.rectangle.projected.and_then(|request| self.number(request));
        let projection = &record.rectangle.projection;
        // The other ends are those of other requests.
        let ends = if self.only.is_some() { Vec::new() } else { projection.ends.clone() };
        self.record.projection = projected.map(|number| (number, projection.own_end, ends));
        self.record.rest_waiting = record.rest_waiting;
        self.record.rest_running = record.rest_running;
        let usage = record.usage;
        self.record.room = (usage.free, usage.evictable, usage.held, usage.leased);
        self.record.reserved = record.reserved;
        self.record.tkv = record.rectangle.tkv;
        self.record.waiting = record.waiting;
        self.record.running = record.running;
        let costs = record.costs;
        self.record.costs =
            (costs.step_ns > 0).then_some((costs.step_ns, costs.row_ns, costs.token_ns, costs.depth_ns));
    }

    /// Writes the batch rows; plain repeated decodes go to the run-length list `again`.
    fn rows(&mut self, step: &Step) {
        for (row, planned) in step.batch.rows.iter().zip(&step.plan.rows) {
            let Some(known) = self.live.get_mut(&RequestId(row.request)) else { continue };
            let first = step.plan.positions.get(planned.queries.start as usize).copied().unwrap_or(0);
            let phase = u8::from(!row.kind.is_prefill());
            let (tokens, left, drafts) = (planned.queries.len, planned.left_pad_blocks, row.drafts.count);
            if drafts > 0 {
                let parents = row.drafts.tree.and_then(|tree| step.batch.parents.get(tree.range()));
                let parents = match parents {
                    Some(parents) => parents.iter().map(|parent| parent.unsigned_abs()).collect(),
                    None => (0..drafts).collect(),
                };
                self.record.drafts.push((known.number, parents));
            }
            if row.kind == RowKind::Decode && first == known.computed && left == known.left {
                self.again.push(known.number);
            } else {
                let redirected = planned.redirected;
                self.record.rows.push((known.number, phase, first, tokens, redirected, left, drafts));
            }
            known.computed = first + tokens - drafts;
            known.left = left;
        }
    }

    /// Writes which drafts the target has accepted. Rows whose request has ended meanwhile are skipped.
    fn accepted(&mut self, step: &Step) {
        for (i, row) in step.batch.rows.iter().enumerate().filter(|(_, row)| row.drafts.count > 0) {
            let Some(number) = self.number(RequestId(row.request)) else { continue };
            let mut nodes = Vec::new();
            step.accepted(i, &mut nodes);
            self.record.accepted.push((number, nodes));
        }
    }

    fn tables(&mut self, core: &Core) {
        for sequence in core.running() {
            let Some(known) = self.live.get_mut(&sequence.id()) else { continue };
            let Some(seq) = sequence.cache_id() else { continue };
            self.table.clear();
            if core.cache().blocks_of(seq, &mut self.table).is_err() {
                continue;
            }
            let keep = known.table.iter().zip(&self.table).take_while(|(old, new)| old == new).count();
            if keep < self.table.len() || keep < known.table.len() {
                let new = self.table.get(keep..).unwrap_or(&[]);
                let change = TableChange { request: known.number, keep: keep as u32, runs: runs(new) };
                self.record.tables.push(change);
                known.table.truncate(keep);
                known.table.extend_from_slice(new);
            }
        }
    }

    /// Writes changes of block usage; on the first call, the usage of every block.
    fn map(&mut self, core: &Core) {
        core.cache().visit_blocks(&mut self.scratch);
        let is_first = !std::mem::replace(&mut self.has_map, true);
        let blocks = core.cache().shape().capacity / core.cache().shape().block_size.max(1);
        let len = self.uses.len().max(self.scratch.len()).max(if is_first { blocks as usize } else { 0 });
        self.uses.resize(len, BlockUse::Free);
        self.scratch.resize(len, BlockUse::Free);
        for (i, (new, old)) in self.scratch.chunks(STRIDE).zip(self.uses.chunks(STRIDE)).enumerate() {
            // A fold without early exit auto-vectorizes.
            let differs = new.iter().zip(old).fold(false, |differs, (new, old)| differs | (new != old));
            if !differs && !is_first {
                continue;
            }
            for (at, (&used, before)) in (i * STRIDE..).zip(new.iter().zip(old)) {
                if !is_first && used == *before {
                    continue;
                }
                match self.record.map.last_mut() {
                    Some((first, count, of)) if (*first + *count, *of) == (at as u32, used as u8) => {
                        *count += 1;
                    }
                    _ => self.record.map.push((at as u32, 1, used as u8)),
                }
            }
        }
        std::mem::swap(&mut self.uses, &mut self.scratch);
        let used = self.uses.iter().rposition(|used| *used != BlockUse::Free).map_or(0, |last| last + 1);
        self.uses.truncate(used);
    }

    fn events(&mut self, events: &[Event]) {
        for event in events {
            let Some(known) = self.live.get_mut(&event.request) else { continue };
            // Undelivered events are seen again; count only new tokens.
            let total = event.first + event.tokens.len;
            if total > known.outputs {
                match total - known.outputs {
                    1 => self.spoke.push(known.number),
                    more => self.record.outputs.push((known.number, more)),
                }
                known.outputs = total;
            }
            if let Some(finish) = event.finish {
                self.record.ended.push((known.number, finish));
                self.live.remove(&event.request);
            }
        }
    }
}

impl<S: TraceSink> Observer for Tracer<S> {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        self.flush();
        let inside = self.window.contains(&self.scheduled);
        if inside {
            self.record = StepTrace {
                step: step.batch.step.0,
                at: core.record().at,
                kind: step.batch.kind,
                ..StepTrace::default()
            };
            self.open = true;
            if !self.has_base {
                self.begin(core);
            }
            self.decisions(core);
            // A request refused on arrival has only a final event.
            self.events(core.events());
            self.rows(step);
            self.tables(core);
            self.map(core);
        }
        self.scheduled += 1;
    }

    fn completed(&mut self, core: &Core, step: &Step, result: &Result<(), StepError>, _: Nanos) {
        if !self.open {
            return;
        }
        if result.is_ok() {
            self.accepted(step);
        }
        self.events(core.events());
        let number = step.batch.step.0;
        match result {
            Ok(()) => {
                self.record.retired.push((number, step.output.device_ns));
                let tokens = &step.output.num_tokens_across_dp;
                if !tokens.is_empty() {
                    self.record.num_tokens_across_dp.push((number, tokens.clone()));
                }
            }
            Err(why) => self.record.failed.push((number, why.to_string())),
        }
        // Blocks leased by this step alone are free now; record the state after it.
        let usage = core.cache().usage();
        self.record.room = (usage.free, usage.evictable, usage.held, usage.leased);
        self.tables(core);
        self.map(core);
    }
    /// Writes one record for the dummy step, which changes no request and no block.
    fn joined(&mut self, core: &Core, step: &Step, now: Nanos) {
        self.flush();
        if self.window.contains(&self.scheduled) {
            let (number, usage) = (step.batch.step.0, core.cache().usage());
            self.record = StepTrace {
                step: number,
                at: now,
                kind: step.batch.kind,
                retired: vec![(number, step.output.device_ns)],
                num_tokens_across_dp: vec![(number, step.output.num_tokens_across_dp.clone())],
                room: (usage.free, usage.evictable, usage.held, usage.leased),
                waiting: core.waiting().count() as u32,
                running: core.running().count() as u32,
                ..StepTrace::default()
            };
            self.open = true;
            if !self.has_base {
                self.begin(core);
                self.map(core);
            }
        }
        self.scheduled += 1;
    }
}

/// Drains `numbers` into `out` as runs. A request that emitted twice before the next step occurs
/// twice.
fn push_runs(numbers: &mut Vec<u64>, out: &mut Vec<(u64, u32)>) {
    numbers.sort_unstable();
    for number in numbers.drain(..) {
        match out.last_mut() {
            Some(run) if run.0 + u64::from(run.1) == number => run.1 += 1,
            _ => out.push((number, 1)),
        }
    }
}

/// Run-length encodes consecutive block ids as (first, count).
fn runs(blocks: &[u32]) -> Vec<(u32, u32)> {
    let mut out: Vec<(u32, u32)> = Vec::new();
    for &block in blocks {
        match out.last_mut() {
            Some(run) if run.0 + run.1 == block => run.1 += 1,
            _ => out.push((block, 1)),
        }
    }
    out
}

//! `--policy rectangular`: continuous batching for static-shape accelerators, where each step is
//! one padded prefill chunk or one rectangular decode batch.
//!
//! Per step:
//!
//! 1. If the prompt in progress may run its next chunk, or a waiting prompt may start, run that
//!    chunk alone.
//! 2. Otherwise decode all rows that fit `max_batch_tkv`. If they do not all fit, rows take turns
//!    (`rotate`) and the rest are paused.
//!
//! A prompt starts only if slots can be reserved for all it may write, so there is no preemption.
//! Before it joins the decode batch, `Projection` checks that rows times the largest tkv stays
//! within the limit in every later step; with `pausing` this test is skipped. With `interleave`, no
//! two prefill steps run in a row while a row decodes.
//!
//! **tkv** of a row is its padded position behind its last token. **volume** is rows times the
//! largest tkv.
//!
//! The files beside this one hold the arithmetic as pure functions: prefill padding to chunks,
//! decode batches padded to rectangles, and the admission tests. Guarded by `tests/rectangular.rs`.

pub(crate) mod admission;
pub(crate) mod config;
pub(crate) mod prefill;
pub(crate) mod rectangle;
pub(crate) mod rotation;
pub(crate) mod rules;

use crate::request::ids::RequestId;
use crate::scheduler::defer_reason::DeferReason;
use crate::scheduler::kv_manager::admission::AdmissionTerms;
use crate::scheduler::policy::Policy;
use crate::scheduler::policy::rectangular::admission::{DecodingRow, NewRow, length_allows};
use crate::scheduler::policy::rectangular::config::RectangularConfig;
use crate::scheduler::policy::rectangular::prefill::{HitPlan, PrefillShape};
use crate::scheduler::policy::rectangular::rectangle::Rectangle;
use crate::scheduler::policy::rectangular::rotation::{Candidate, select_rows};
use crate::scheduler::record::{ChunkRecord, SkippedPrefill};
use crate::scheduler::schedule::{Feed, RectangleFeed};
use crate::scheduler::view::SchedulerView;

/// An admitted request.
#[derive(Clone, Copy, Debug)]
struct Row {
    id: RequestId,
    entry: u32,
    shape: PrefillShape,
    /// Cache-hit tokens.
    hit: u32,
    /// No row was decoding when its prefill started.
    alone: bool,
    /// Consecutive steps it was paused.
    starved: u32,
}

impl Row {
    fn plan(&self) -> HitPlan {
        HitPlan::new(self.shape, self.hit)
    }
}

/// Most waiting requests tested per step when the rules allow skipping ahead; bounds the host time
/// of a step.
const LOOK_AHEAD: usize = 256;

/// Scheduling for accelerators that run fixed shapes only.
///
/// One prompt is prefilled at a time, in chunks. All other sequences decode together as a rectangle
/// of equally many blocks. A prompt in progress goes before a new one; with interleaving, every
/// prefill step is followed by a decode step while any row decodes. A prompt starts if the batch
/// has a row for it. Its last chunk runs if the decode batch has one and no later step can exceed
/// the limits. Slots for everything that a request may write are reserved at admission, so there is
/// no preemption. A blocked prefill never blocks decodes.
#[derive(Debug)]
pub struct Rectangular {
    config: RectangularConfig,
    /// Admitted requests that are not paused, in the order of the batch's rows.
    running: Vec<Row>,
    /// Paused requests: not their turn to decode.
    paused: Vec<Row>,
    /// tkv of the previous step.
    tkv: u32,
    /// Whether the previous step was a prefill.
    after_prefill: bool,
    pause_events: u64,
    resume_events: u64,
    /// Scratch memory.
    candidates: Vec<Candidate>,
    rows: Vec<Row>,
    decoding_rows: Vec<DecodingRow>,
    queue: Vec<u32>,
}

impl Rectangular {
    /// A rectangular policy. The cache needs a dummy block if it shares prefixes. `config` must
    /// have passed `RectangularConfig::check`.
    pub fn new(config: RectangularConfig) -> Self {
        Self {
            config,
            running: Vec::new(),
            paused: Vec::new(),
            tkv: 0,
            after_prefill: false,
            pause_events: 0,
            resume_events: 0,
            candidates: Vec::new(),
            rows: Vec::new(),
            decoding_rows: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// Whether a row has decode steps left beyond those in flight.
    fn is_live(view: &SchedulerView<'_>, row: &Row) -> bool {
        view.must_wait(row.entry) != Some(DeferReason::LastTokenInFlight)
    }

    fn decoding<'a>(&'a self, view: &'a SchedulerView<'_>) -> impl Iterator<Item = &'a Row> {
        let decodes = |row: &&Row| !view.sequence(row.entry).is_prefilling() && Self::is_live(view, row);
        self.running.iter().filter(decodes)
    }

    fn live(&self, view: &SchedulerView<'_>) -> usize {
        self.running.iter().filter(|row| Self::is_live(view, row)).count()
    }

    /// Index of the row in prefill.
    fn ongoing(&self, view: &SchedulerView<'_>) -> Option<usize> {
        if view.prefilling() == 0 {
            return None;
        }
        self.running.iter().position(|row| view.sequence(row.entry).is_prefilling())
    }

    /// The reason why no prefill may run now, if there is one.
    fn prefill_blocked(&self, view: &SchedulerView<'_>) -> Option<DeferReason> {
        if !self.paused.is_empty() {
            return Some(DeferReason::OthersPaused);
        }
        let decodes_first =
            self.config.interleave && self.after_prefill && self.decoding(view).next().is_some();
        decodes_first.then_some(DeferReason::Interleave)
    }

    /// Collects the decoding rows for `Rectangular::may_join`.
    fn list_decoding_rows(&mut self, view: &SchedulerView<'_>) {
        let mut decoding_rows = std::mem::take(&mut self.decoding_rows);
        decoding_rows.clear();
        decoding_rows.extend(self.decoding(view).map(|row| {
            let sequence = view.sequence(row.entry);
            DecodingRow { computed: sequence.claimed(), left: sequence.outputs_left() }
        }));
        self.decoding_rows = decoding_rows;
    }

    /// Admission test to the decode batch: a free row, and no later step that exceeds a limit.
    fn may_join(&mut self, view: &mut SchedulerView<'_>, entry: u32, prompt: u32) -> Result<(), DeferReason> {
        let RectangularConfig { max_batch, max_batch_tkv: limit, rules, pausing, .. } = self.config;
        let decoding_rows = || self.decoding_rows.iter().copied();
        if self.decoding_rows.len() >= max_batch as usize {
            return Err(DeferReason::DecodeBatch);
        }
        if self.decoding_rows.is_empty() {
            return Ok(());
        }
        let (block, length) = (view.block_size(), view.limits().max_model_len);
        let new = NewRow { prompt, left: view.sequence(entry).outputs_left().saturating_sub(1) };
        if rules.tests_length() && !length_allows(length, block, self.tkv, new, decoding_rows()) {
            return Err(DeferReason::ModelLength);
        }
        if pausing {
            return Ok(());
        }
        let id = view.sequence(entry).id();
        let record = view.rectangle();
        record.projected = Some(id);
        record.projection.project(block, self.tkv, new, decoding_rows());
        record.projection.within(limit).map_err(|projected| DeferReason::Volume { projected, limit })
    }

    /// Schedules a prefill chunk, of the prompt in progress or of a new one. False if none runs.
    fn prefill(&mut self, view: &mut SchedulerView<'_>) -> bool {
        match self.ongoing(view) {
            Some(at) => {
                view.defer_rest_waiting(DeferReason::OnePrefill);
                let deferred = self.resume(view, at).err();
                if let (Some(reason), Some(row)) = (deferred, self.running.get(at)) {
                    view.defer(row.entry, reason);
                }
                deferred.is_none()
            }
            None => self.start(view),
        }
    }

    /// Schedules the next chunk of the prompt in progress, row `at`.
    fn resume(&mut self, view: &mut SchedulerView<'_>, at: usize) -> Result<(), DeferReason> {
        if let Some(reason) = self.prefill_blocked(view) {
            return Err(reason);
        }
        let Some(&row) = self.running.get(at) else { return Err(DeferReason::OnePrefill) };
        let chunk = row.shape.chunk_after(view.sequence(row.entry).claimed());
        if self.config.interleave && row.shape.is_last(chunk) {
            self.list_decoding_rows(view);
            self.may_join(view, row.entry, row.shape.prompt())?;
        }
        self.run_chunk(view, at)
    }

    /// Starts the first prompt of the queue that may start; under strict order only the head is
    /// tested.
    fn start(&mut self, view: &mut SchedulerView<'_>) -> bool {
        if view.waiting() == 0 {
            return false;
        }
        let live = self.live(view);
        if live > 0 {
            let full = (live >= self.config.max_batch as usize).then_some(DeferReason::DecodeBatch);
            if let Some(reason) = self.prefill_blocked(view).or(full) {
                view.defer_rest_waiting(reason);
                return false;
            }
        }
        self.list_decoding_rows(view);
        let examined = if self.config.rules.skips_ahead() { LOOK_AHEAD } else { 1 };
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        queue.extend(view.waiting_in_order().take(examined));
        let mut started = false;
        for &entry in &queue {
            match self.start_one(view, entry, live == 0) {
                Ok(()) => {
                    view.defer_rest_waiting(DeferReason::OnePrefill);
                    started = true;
                    break;
                }
                Err(Refused { reason, blocks_queue }) => {
                    view.defer(entry, reason);
                    if blocks_queue {
                        break;
                    }
                }
            }
        }
        self.queue = queue;
        started
    }

    /// Admits one waiting prompt and schedules its first chunk, if slots and the admission tests
    /// allow.
    fn start_one(
        &mut self,
        view: &mut SchedulerView<'_>,
        entry: u32,
        nothing_runs: bool,
    ) -> Result<(), Refused> {
        let sequence = view.sequence(entry);
        let reserve_to = self.reserve_to(sequence, view.capacity());
        let shape = PrefillShape::new(sequence.len(), view.block_size(), self.config.chunk_size);
        let admit = AdmissionTerms { reserve_to, hit_limit: u32::MAX };
        // KV slots are granted in strict queue order: a request without slots blocks those behind
        // it.
        let stop = |reason| Refused { reason, blocks_queue: true };
        let found = view.admissible(entry, admit).map_err(stop)?;
        let plan = HitPlan::new(shape, found.tokens);
        if !nothing_runs && (!self.config.interleave || shape.is_last(plan.first_chunk)) {
            let pass = |reason| Refused { reason, blocks_queue: false };
            self.may_join(view, entry, shape.prompt()).map_err(pass)?;
        }
        let hit = view.admit(entry, admit).map_err(stop)?.tokens;
        let alone = self.decoding(view).next().is_none();
        let id = view.sequence(entry).id();
        self.running.push(Row { id, entry, shape, hit, alone, starved: 0 });
        self.run_chunk(view, self.running.len() - 1).map_err(stop)
    }

    /// Schedules the next chunk of row `at` and moves that row to the front.
    fn run_chunk(&mut self, view: &mut SchedulerView<'_>, at: usize) -> Result<(), DeferReason> {
        let Some(&row) = self.running.get(at) else { return Err(DeferReason::OnePrefill) };
        let Row { entry, shape, hit, .. } = row;
        let claimed = view.sequence(entry).claimed();
        let chunk = shape.chunk_after(claimed).min(shape.chunks() - 1);
        let tokens = shape.tokens(chunk);
        let run = chunk + 1 - row.plan().first_chunk.min(chunk);
        let rectangle = RectangleFeed {
            redirected: claimed.saturating_sub(tokens.start),
            left_pad_blocks: shape.left_blocks(),
            ahead: self.config.rules.taken(shape, hit, run).saturating_sub(tokens.end),
        };
        view.feed(entry, Feed { tokens: tokens.end.saturating_sub(claimed), rectangle })?;
        let is_last = shape.is_last(chunk);
        let block = view.block_size();
        self.tkv = self.config.rules.prefill_tkv(shape.prompt(), block, self.tkv, row.alone, is_last);
        self.running[..=at].rotate_right(1);
        view.rectangle().chunk = Some(ChunkRecord {
            request: row.id,
            chunk,
            chunks: shape.chunks(),
            left: shape.left(),
            right: shape.right(),
            from: tokens.start,
            to: tokens.end,
            redirected: rectangle.redirected,
        });
        view.defer_rest_running(DeferReason::PrefillFirst);
        Ok(())
    }

    /// Schedules the decode batch. If not all rows fit the volume limit, rows take turns. Ends a
    /// request that could not decode even alone.
    fn decode(&mut self, view: &mut SchedulerView<'_>) {
        let (mut shape, mut all) = self.shapes(view);
        // Usual case: nothing is paused and all rows fit.
        if !self.paused.is_empty() || shape.volume() > self.config.max_batch_tkv {
            while self.rotate(view).rows() == 0
                && let Some(first) = self.candidates.first()
            {
                if let Some(row) = self.rows.get(first.index) {
                    view.finish_capacity(row.entry);
                }
                self.drop_ended(view);
            }
            (shape, all) = self.shapes(view);
        }
        self.tkv = all.tkv();
        view.rectangle().rows = shape.rows();
        view.rectangle().width = shape.width();
        let mut has_ended = false;
        for row in &self.running {
            let sequence = view.sequence(row.entry);
            if sequence.is_prefilling() || view.is_settled(row.entry) {
                continue;
            }
            let left_pad_blocks = shape.left_blocks(sequence.claimed());
            let rectangle = RectangleFeed { left_pad_blocks, ..RectangleFeed::default() };
            match view.feed(row.entry, Feed { tokens: 1, rectangle }) {
                Ok(()) => {}
                // Its reservation was capped at the pool's capacity, and it has outgrown that.
                Err(DeferReason::NoSlots { .. }) if view.running() == 1 && view.steps_in_flight() == 0 => {
                    view.finish_capacity(row.entry);
                    has_ended = true;
                }
                Err(reason) => view.defer(row.entry, reason),
            }
        }
        if has_ended {
            self.drop_ended(view);
        }
        for row in &self.paused {
            view.defer(row.entry, DeferReason::Paused);
        }
        // Decoding rows first, then the row in prefill.
        if let Some(at) = self.ongoing(view) {
            self.running[at..].rotate_left(1);
        }
    }

    /// Two shapes: the rows that can decode now, and those plus rows that only wait for their token
    /// in flight, at their current length.
    fn shapes(&self, view: &SchedulerView<'_>) -> (Rectangle, Rectangle) {
        let none = Rectangle::new(view.block_size());
        let decoding = self.running.iter().map(|row| (row, view.sequence(row.entry)));
        let decoding = decoding.filter(|(_, sequence)| !sequence.is_prefilling());
        decoding.fold((none, none), |(shape, all), (row, sequence)| match view.must_wait(row.entry) {
            None => (shape.with(sequence.claimed()), all.with(sequence.claimed())),
            Some(DeferReason::TokenInFlight) => (shape, all.with(sequence.claimed() - 1)),
            Some(_) => (shape, all),
        })
    }

    /// Rotates rows between decoding and paused. Returns the shape of the decode batch.
    fn rotate(&mut self, view: &mut SchedulerView<'_>) -> Rectangle {
        let first_running = self.paused.len();
        self.rows.clear();
        self.rows.append(&mut self.paused);
        self.rows.append(&mut self.running);
        self.candidates.clear();
        for (index, row) in self.rows.iter().enumerate() {
            let sequence = view.sequence(row.entry);
            if sequence.is_prefilling() {
                continue;
            }
            let computed = sequence.claimed();
            if let Some(reason) = view.must_wait(row.entry) {
                view.defer(row.entry, reason);
                if index < first_running {
                    self.paused.push(*row);
                }
                continue;
            }
            let decoded = computed - row.shape.prompt().min(computed);
            self.candidates.push(Candidate {
                index,
                computed,
                decoded,
                starved: row.starved,
                selected: false,
            });
        }
        let (limit, long_first) = (self.config.max_batch_tkv, self.config.long_output_first);
        let shape = select_rows(&mut self.candidates, view.block_size(), limit, long_first);
        for candidate in &self.candidates {
            self.rows[candidate.index].starved = candidate.starved;
        }
        let is_out = |index: usize| {
            self.candidates.iter().any(|candidate| candidate.index == index && !candidate.selected)
        };
        let all_in = self.candidates.iter().all(|candidate| candidate.selected);
        for (index, row) in self.rows.iter().enumerate().skip(first_running) {
            if all_in || !is_out(index) {
                self.running.push(*row);
            }
        }
        let resumed =
            self.candidates.iter().filter(|candidate| candidate.selected && candidate.index < first_running);
        self.running.extend(resumed.map(|candidate| self.rows[candidate.index]));
        let out = self.candidates.iter().filter(|candidate| !candidate.selected);
        self.paused.extend(out.map(|candidate| self.rows[candidate.index]));
        let (before, after) = (first_running as u64, self.paused.len() as u64);
        self.pause_events += after.saturating_sub(before);
        self.resume_events += before.saturating_sub(after);
        shape
    }

    /// Drops rows of requests that have ended.
    fn drop_ended(&mut self, view: &SchedulerView<'_>) {
        // Every running request has a row here, so equal counts mean that none has ended.
        if view.running() == self.running.len() + self.paused.len() {
            return;
        }
        let is_running = |row: &Row| view.find_running(row.id).is_some();
        self.running.retain(is_running);
        self.paused.retain(is_running);
    }

    /// Writes the policy's state into the step record.
    fn write_record(&self, view: &mut SchedulerView<'_>) {
        let record = view.rectangle();
        record.tkv = self.tkv;
        record.limit = self.config.max_batch_tkv;
        record.running.extend(self.running.iter().map(|row| row.id));
        record.paused.extend(self.paused.iter().map(|row| row.id));
        let hits = self.running.iter().chain(&self.paused).filter(|row| row.hit > 0);
        let skipped = hits.map(|row| SkippedPrefill { request: row.id, tokens: row.plan().usable });
        record.skipped.extend(skipped.filter(|skipped| skipped.tokens > 0));
        record.pause_events = self.pause_events;
        record.resume_events = self.resume_events;
    }
}

/// Why a prompt does not start, and whether that blocks those behind it.
struct Refused {
    reason: DeferReason,
    blocks_queue: bool,
}

impl Policy for Rectangular {
    fn name(&self) -> &'static str {
        "rectangular"
    }

    fn redirects(&self) -> bool {
        true
    }

    fn is_rectangular(&self) -> bool {
        true
    }

    /// A decode row has exactly one token.
    fn verifies_drafts(&self) -> bool {
        false
    }

    fn schedule(&mut self, view: &mut SchedulerView<'_>) {
        self.drop_ended(view);
        let prefilled = self.prefill(view);
        if !prefilled {
            self.decode(view);
        }
        // A call that scheduled nothing because of tokens in flight does not count as a step.
        if view.scheduled_rows() > 0 || view.steps_in_flight() == 0 {
            self.after_prefill = prefilled;
        }
        self.write_record(view);
    }
}

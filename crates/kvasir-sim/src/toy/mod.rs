//! [`Toy`]: a device that detects KV cache errors. Every output token depends on every KV slot that
//! its query reads.
//!
//! 1. `submit` only queues a step. It runs in `wait`, as late as the contract allows, so premature
//!    reuse of slots shows.
//! 2. Slot copies are applied, all sources before any destination.
//! 3. Each query folds the values of its visible slots and windows and the recurrent state, stores
//!    its own value, and samples from the result (`model.rs`, `query.rs`, `states.rs`).
//! 4. The shadow state records the prefix that each slot and each recurrent state was written for,
//!    and reports reads for another prefix (`shadow.rs`, `states.rs`).
//!
//! A failed step overwrites or spoils its slots, as a real device may. It is the main oracle of the
//! engine's tests (`kvasir-engine/tests/toy`).

pub(crate) mod kv_rows;
pub(crate) mod model;
pub(crate) mod query;
pub(crate) mod shadow;
pub(crate) mod states;

use crate::fault::{Faults, Injector, StepOutcome};
use crate::toy::model::{ToyShape, mix, sample};
use crate::toy::query::Query;
use crate::toy::shadow::{Cell, PoolState};
use crate::toy::states::{Input, RecurrentState};
use kvasir_exec::{
    Abilities, Executor, KvAccess, KvLayout, KvRows, NoKvAccess, OutputRow, PoolRow, Refused, SequenceSpec,
    Step, StepError,
};
use kvasir_kv::{GroupId, Plan, Position, Section, Slot, Span};
use std::{collections::VecDeque, ops::Range, sync::mpsc};

/// A device whose every output depends on every KV slot that is read.
///
/// `F = 1; F = mix(F, slot)` over all visible positions before p; then `e = mix(F, t)` is stored
/// for token t at position p, and the output is `sample(mix(F, e))`, modulo 2^61 − 1. A wrong
/// prefix-cache hit, an unwritten slot, or a lost or phantom token changes the tokens that follow.
/// A [`ToyShape`] adds sliding windows and a recurrent state.
///
/// A shadow state records what each slot was written for. Reads of slots written for another
/// prefix, and positions that are fed two different tokens, are recorded as
/// [`violations`](Self::violations). Steps run when they are waited for, as late as the contract
/// allows.
#[derive(Debug, Default)]
pub struct Toy {
    shape: ToyShape,
    /// Slots of the full group (0) and of the window groups (from 1).
    slots: Vec<Vec<Cell>>,
    /// Slots of recurrent states.
    states: Vec<RecurrentState>,
    /// Tails: the inputs of draft tokens.
    tails: Vec<Vec<Input>>,
    rows: Vec<PoolState>,
    queue: VecDeque<(u64, Box<Step>)>,
    next: u64,
    violations: Vec<String>,
    faults: Injector,
    depth: u32,
    entries: Vec<(Slot, Position)>,
    moved: Vec<Cell>,
    /// Blocks the next `wait` until the sender sends or is dropped.
    hang: Option<mpsc::Receiver<()>>,
}

impl Toy {
    /// A device without faults.
    pub fn new() -> Self {
        Self { depth: 2, ..Self::default() }
    }

    /// Gives the model sliding windows or a recurrent state.
    pub fn with_shape(mut self, shape: ToyShape) -> Self {
        self.shape = shape;
        self
    }

    /// Injects faults.
    pub fn with_faults(faults: Faults) -> Self {
        Self { faults: Injector::new(faults), ..Self::new() }
    }

    /// Sets the number of steps that may be in flight.
    pub fn with_depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// Makes the next completed step fail, with or without having written its slots.
    pub fn fail_next(&mut self, wrote: bool) {
        self.faults.plan(StepOutcome::Failed { error: StepError::Failed("as planned".into()), wrote });
    }

    /// Makes the next completed step report that the device is lost.
    pub fn lose_next(&mut self) {
        self.faults.plan(StepOutcome::Lost(StepError::Lost("as planned".into())));
    }

    /// Makes the next `wait` hang until the sender sends or is dropped.
    pub fn hang_next(&mut self) -> mpsc::Sender<()> {
        let (sender, receiver) = mpsc::channel();
        self.hang = Some(receiver);
        sender
    }

    /// Breaches of the contract (at most 20): reads of foreign slots, positions fed two different
    /// tokens, and others.
    ///
    /// Tests must find it empty.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    fn note(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    fn run(&mut self, step: &mut Step) {
        if !step.batch.is_dummy() {
            self.move_rows(&step.plan);
        }
        let Step { batch, plan, output } = step;
        output.reset();
        if batch.is_dummy() {
            return output.rows.resize(batch.rows.len(), OutputRow::default());
        }
        if batch.rows.len() != plan.rows.len() || batch.tokens.len() != plan.positions.len() {
            self.note(format!("step {}: batch and plan differ in size", batch.step.0));
            return;
        }
        if plan.states.is_empty() == self.shape.state || plan.windows.len() > self.shape.windows.len() {
            self.note(format!(
                "step {}: the layer groups of the plan are not those of the model",
                batch.step.0
            ));
            return;
        }
        self.check_states(plan);
        for (row_index, (row, planned)) in batch.rows.iter().zip(&plan.rows).enumerate() {
            let start = output.tokens.len();
            if row.seq != planned.seq || row.tokens != planned.queries {
                self.note(format!("step {}: batch and plan name different rows", batch.step.0));
            }
            let mut scan = self.begin_scan(plan, row_index);
            for query in 0..planned.queries.len {
                let token_index = (planned.queries.start + query) as usize;
                let is_known = query < row.tokens.len - row.drafts.count;
                let token = batch.tokens[token_index];
                let (mut f, cell) = self.run_query(&Query {
                    row,
                    plan,
                    row_index,
                    query_index: query,
                    token_index,
                    token,
                    is_known,
                });
                if let Some(scan) = &mut scan {
                    f = mix(f, self.scan_query(plan, scan, query, cell, plan.positions[token_index]));
                }
                if query >= row.sample_from {
                    output.tokens.push(sample(f));
                }
            }
            let span = Span::new(start, output.tokens.len() - start);
            output.rows.push(OutputRow { tokens: span });
            if let (Some(token), Some(state)) =
                (output.tokens.last().filter(|_| span.len > 0), self.rows.get_mut(row.pool_row.0 as usize))
            {
                state.newest = *token;
            }
        }
    }

    /// Fills the slots that a failed step had to write with wrong values.
    fn spoil(&mut self, plan: &Plan) {
        for (group, section) in plan.sections().enumerate() {
            let destinations = section.moves.iter().map(|m| m.to).chain(section.write_slots.iter().copied());
            for slot in destinations {
                *self.slot_mut(group, slot) = Cell { value: 99, spoiled: true, ..Cell::default() };
            }
        }
        self.spoil_states(plan);
    }

    /// Slot copies: all sources are read before any destination is written.
    fn move_rows(&mut self, plan: &Plan) {
        let mut moved = std::mem::take(&mut self.moved);
        for (group, section) in plan.sections().enumerate() {
            let Section { moves, .. } = section;
            moved.clear();
            moved.extend(moves.iter().map(|m| self.slot(group, m.from)));
            for (m, cell) in moves.iter().zip(&moved) {
                *self.slot_mut(group, m.to) = *cell;
            }
        }
        self.moved = moved;
    }

    fn slot(&self, group: usize, slot: Slot) -> Cell {
        slot_of(&self.slots, group, slot)
    }

    fn slot_mut(&mut self, group: usize, slot: Slot) -> &mut Cell {
        grown(grown(&mut self.slots, group), slot as usize)
    }
}

/// A slot of a group; empty if no step has written it.
fn slot_of(slots: &[Vec<Cell>], group: usize, slot: Slot) -> Cell {
    slots.get(group).and_then(|slots| slots.get(slot as usize)).copied().unwrap_or_default()
}

/// The entry at `index` of a list, which grows to hold it.
fn grown<T: Clone + Default>(list: &mut Vec<T>, index: usize) -> &mut T {
    if list.len() <= index {
        list.resize(index + 1, T::default());
    }
    &mut list[index]
}

impl Executor for Toy {
    type Pending = u64;

    fn abilities(&self) -> Abilities {
        Abilities::all(self.depth, u32::MAX, u32::MAX)
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        *grown(&mut self.rows, row.0 as usize) = PoolState::of(spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<u64, Refused> {
        if self.queue.len() >= self.depth as usize {
            self.note(format!("step {}: more steps than the depth of {}", step.batch.step.0, self.depth));
        }
        if let Err(error) = self.faults.submit() {
            return Err(Refused { step, error });
        }
        let ticket = self.next;
        self.next += 1;
        self.queue.push_back((ticket, step));
        Ok(ticket)
    }

    fn wait(&mut self, pending: u64) -> (Box<Step>, Result<(), StepError>) {
        let Some((ticket, mut step)) = self.queue.pop_front() else {
            return (Box::default(), Err(StepError::Lost("nothing was submitted".into())));
        };
        if ticket != pending {
            self.note(format!("ticket {pending} is waited for before {ticket}"));
        }
        if let Some(hang) = self.hang.take() {
            // A sent message and a dropped sender both release it.
            let _ = hang.recv();
        }
        let fate = self.faults.complete();
        match fate {
            StepOutcome::Lost(error) => return (step, Err(error)),
            StepOutcome::Failed { error, wrote } => {
                if wrote {
                    self.run(&mut step)
                } else {
                    self.spoil(&step.plan)
                }
                return (step, Err(error));
            }
            StepOutcome::Late | StepOutcome::InTime => self.run(&mut step),
        }
        step.output.device_ns = if fate == StepOutcome::Late { 1_000_000 } else { 1_000 };
        (step, Ok(()))
    }

    /// Clears the slots, so that a read before the next write is a violation.
    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        if !self.queue.is_empty() {
            self.note("slots are released while a step is in flight".into());
        }
        let Some(pool) = self.slots.get_mut(group.index()) else { return };
        for slots in slots {
            let (start, end) = (slots.start as usize, (slots.end as usize).min(pool.len()));
            pool.get_mut(start..end).unwrap_or_default().fill(Cell::default());
        }
    }

    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        Ok(KvLayout { format: "toy".into(), slot_bytes: self.slot_bytes() })
    }

    fn access_kv(&mut self, access: KvAccess) {
        access(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::cost::CostDevice;
    use crate::output_source::OutputSource;
    use crate::preset::Preset;
    use kvasir_exec::{BatchRow, RowKind, StepKind};
    use kvasir_kv::{Cache, ClaimRow, Contiguous, SeqId, StepId, Token};

    /// The step that feeds `tokens` to `seq`.
    fn step(cache: &mut Contiguous, id: u64, seq: SeqId, tokens: &[Token]) -> Box<Step> {
        let mut step = Box::new(Step::default());
        let count = tokens.len() as u32;
        cache.claim(StepId(id), &[ClaimRow::new(seq, count)]).unwrap();
        cache.plan(StepId(id), &mut step.plan).unwrap();
        step.batch.reset(StepId(id));
        step.batch.tokens.extend_from_slice(tokens);
        step.batch.rows.push(BatchRow {
            request: 1,
            seq,
            kind: RowKind::Prefill,
            tokens: Span::new(0, tokens.len()),
            cached: 0,
            context_len: count,
            last_block_tokens: 1,
            sample_from: count - 1,
            pool_row: PoolRow(0),
            scored: Span::default(),
            drafts: Default::default(),
            feeds_draft: false,
            draft_depth: 0,
            sampling: Default::default(),
        });
        step
    }

    /// Runs a step of this kind; returns the number of output tokens per row.
    fn yields(device: &mut impl Executor, id: u64, kind: StepKind) -> Vec<u32> {
        let mut cache = Contiguous::new(64);
        let seq = cache.open().unwrap();
        let mut step = step(&mut cache, id, seq, &[103, 104]);
        step.batch.kind = kind;
        device.bind(PoolRow(0), SequenceSpec { prompt: vec![103, 104], ..SequenceSpec::default() });
        let Ok(pending) = device.submit(step) else { panic!("refused") };
        let (step, result) = device.wait(pending);
        assert_eq!(result, Ok(()));
        step.output.rows.iter().map(|row| row.tokens.len).collect()
    }

    struct One;

    impl OutputSource for One {
        fn token(&self, _: u64, _: u32) -> Token {
            1
        }
    }

    #[test]
    fn a_dummy_run_writes_nothing_and_yields_nothing() {
        let mut toy = Toy::new();
        assert_eq!(yields(&mut toy, 1, StepKind::Dummy), [0]);
        assert!(toy.slots.iter().flatten().all(|cell| cell.tag == 0));
        assert_eq!(yields(&mut toy, 2, StepKind::Prefill), [1]);
        assert!(toy.slots.iter().flatten().any(|cell| cell.tag != 0));
        assert_eq!(toy.violations(), [""; 0]);

        let clock = Clock::default();
        let preset = Preset::parse("h200:qwen3-0.6b").unwrap();
        let mut cost = CostDevice::new(preset, clock.clone(), Box::new(One));
        assert_eq!(yields(&mut cost, 1, StepKind::Dummy), [0]);
        assert!(clock.now() > 0, "it takes its time");
        assert_eq!(yields(&mut cost, 2, StepKind::Prefill), [1]);
    }
}

//! [`PlainExecutor`]: runs a step synchronously. Check the step, run the program, sample.
//!
//! The executor rejects a step with invalid sizes, slots, pools, states or token ids before it
//! writes anything. A failed step leaves the executor usable.

pub(crate) mod draft;
pub(crate) mod kv_rows;

use crate::executor::draft::Drafting;
use crate::frozen_pool::FrozenPool;
use crate::model::{Compiled, Pass, PlainModel};
use crate::pool::Pool;
use crate::run::{Job, Run};
use crate::state_pool::StatePool;
use kvasir_exec::{
    Abilities, Executor, ExpertExchange, KvAccess, KvLayout, NoKvAccess, OutputRow, PoolRow, Ran, Ranks,
    Refused, RowKind, SamplerRow, SequenceSpec, StateRowValidator, Step, StepError,
};
use kvasir_kv::{GroupId, Groups, PlanKind, PoolId, Slot, SlotCopy, Slots, StateConfig, Token};
use kvasir_program::{Grouping, Program, Tap, Windows};
use std::{collections::HashMap, ops::Range, sync::Arc, time::Instant};

/// Capacity of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots of its KV pool, dummy slots included. Sliding-window layers use them too, unless they
    /// have pools of their own ([`PlainExecutor::with_window_groups`]).
    pub slots: u32,
    /// Maximum tokens per step.
    pub tokens: u32,
    /// Size of the token pool, in rows.
    pub rows: u32,
    /// Sizes of the pool of recurrent states. Models with recurrent layers require one.
    pub states: Option<StateConfig>,
}

/// Sizes of the state pool when [`Limits::states`] is `None`.
const NO_STATES: StateConfig = StateConfig { live: 0, checkpoints: 0, tail_rows: 0, interval: 0 };

/// The reference executor: runs steps of one program over its own KV pool and state pool, in f32 on
/// the calling thread.
pub struct PlainExecutor {
    compiled: Arc<Compiled>,
    limits: Limits,
    grouping: Grouping,
    /// Slots per layer group.
    slots: Slots,
    own: Pool,
    states: StatePool,
    frozen: HashMap<PoolId, Arc<FrozenPool>>,
    rows: Vec<SamplerRow>,
    ranks: Option<Box<dyn Ranks>>,
    expert_exchange: Option<Box<dyn ExpertExchange>>,
    drafting: Option<Box<Drafting>>,
    batch_sizes: Vec<u32>,
}

impl PlainExecutor {
    /// An executor of the target model.
    pub fn new(model: &PlainModel, limits: Limits) -> Self {
        Self::of(Arc::clone(&model.target), limits)
    }

    /// An executor of an MTP layer (draft model), with a KV pool of its own; `None` if the model
    /// has no such layer.
    pub fn prediction(model: &PlainModel, index: usize, limits: Limits) -> Option<Self> {
        model.predictions.get(index).map(|compiled| Self::of(Arc::clone(compiled), limits))
    }

    /// Runs a draft model behind each step, whose proposals go into the step's output.
    pub fn drafting(mut self, drafting: Drafting) -> Self {
        self.drafting = Some(Box::new(drafting));
        self
    }

    pub(crate) fn of(compiled: Arc<Compiled>, limits: Limits) -> Self {
        let grouping = compiled.program.grouping(Windows::Joined);
        let own = Pool::new(&compiled.program.layers, &grouping);
        let states = StatePool::new(compiled.program.state_layout(), limits.states.unwrap_or(NO_STATES));
        let rows = (0..limits.rows).map(|_| SamplerRow::default()).collect();
        Self {
            compiled,
            limits,
            grouping,
            slots: GroupId::FULL.slots(limits.slots),
            own,
            states,
            frozen: HashMap::new(),
            rows,
            ranks: None,
            expert_exchange: None,
            drafting: None,
            batch_sizes: Vec::new(),
        }
    }

    /// Gives sliding-window layers KV pools of their own, with `slots` slots per layer group. Steps
    /// then need plans with window sections. `None` leaves the layers in the full group.
    pub fn with_window_groups(mut self, slots: Option<Slots>) -> Self {
        let Some(slots) = slots else { return self };
        let program = &self.compiled.program;
        self.grouping = program.grouping(Windows::Separate);
        self.own = Pool::new(&program.layers, &self.grouping);
        self.slots[1..=Groups::MAX_WINDOWS].copy_from_slice(&slots[1..=Groups::MAX_WINDOWS]);
        self
    }

    /// Declares the batch sizes of decode steps, in rising order, as a device of static shapes
    /// does. This backend gains no speed from them; tests of padding need them.
    pub fn with_batch_sizes(mut self, sizes: Vec<u32>) -> Self {
        self.batch_sizes = sizes;
        self
    }

    /// Makes it one rank of a tensor-parallel group; fails if the program is sharded for another
    /// number of ranks.
    pub fn among(mut self, ranks: impl Ranks + 'static) -> Result<Self, String> {
        self.compiled.program.check_ranks(ranks.count())?;
        self.ranks = Some(Box::new(ranks));
        Ok(self)
    }

    /// Makes it one replica of an expert-parallel group. Fails if the model's experts were not
    /// divided among that many replicas.
    pub fn with_expert_parallelism(
        mut self,
        exchange: impl ExpertExchange + 'static,
    ) -> Result<Self, String> {
        self.compiled.program.check_replicas(exchange.count())?;
        self.expert_exchange = Some(Box::new(exchange));
        Ok(self)
    }

    /// The program it runs.
    pub fn program(&self) -> &Program {
        &self.compiled.program
    }

    /// Its pools, to be attached to other executors as a frozen prefix.
    pub fn into_pool(self) -> Arc<FrozenPool> {
        Arc::new(FrozenPool { kv: self.own, states: self.states })
    }

    /// Lets plans read a frozen pool (shared prefix) under an id other than 0. It must come from an
    /// executor of the same program.
    pub fn attach(&mut self, id: PoolId, pool: Arc<FrozenPool>) {
        self.frozen.insert(id, pool);
    }

    /// Runs a forward pass without sampling. `hidden` holds one row per token, for MTP programs
    /// only.
    pub fn pass(&mut self, step: &Step, hidden: Option<&[f32]>, taps: &[Tap]) -> Result<Pass, StepError> {
        let tokens = self.check(step, hidden)?;
        self.run(step, &tokens, hidden, taps)
    }

    fn run(
        &mut self,
        step: &Step,
        tokens: &[Token],
        hidden: Option<&[f32]>,
        taps: &[Tap],
    ) -> Result<Pass, StepError> {
        let (batch, plan) = (&step.batch, &step.plan);
        let final_len = |row: &kvasir_exec::BatchRow| self.rows[row.pool_row.0 as usize].spec.final_len;
        let final_lens: Vec<u32> = batch.rows.iter().map(final_len).collect();
        let second_text_start =
            |row: &kvasir_exec::BatchRow| self.rows[row.pool_row.0 as usize].spec.second_text_start;
        let second_text_starts: Vec<u32> = batch.rows.iter().map(second_text_start).collect();
        let Compiled { program, weights, buffers } = &*self.compiled;
        let job = Job {
            program,
            weights,
            buffers,
            frozen: &self.frozen,
            batch,
            plan,
            tokens,
            second_text_starts: &second_text_starts,
            final_lens: &final_lens,
            hidden: hidden.unwrap_or_default(),
            ranks: self.ranks.as_deref(),
            expert_exchange: self.expert_exchange.as_deref(),
        };
        let mut run = Run::new(job, &mut self.own, &mut self.states);
        run.all()?;
        let value = |tap: Tap| program.tap(tap).map_or_else(Vec::new, |v| run.value(v).to_vec());
        Ok(Pass {
            logits: program.logits().map_or_else(Vec::new, |v| run.value(v).to_vec()),
            hidden: program.hidden_output().map_or_else(Vec::new, |v| run.value(v).to_vec()),
            taps: taps.iter().map(|tap| (*tap, value(*tap))).collect(),
        })
    }

    /// Rejects steps that do not fit; returns the tokens with those in flight resolved.
    fn check(&self, step: &Step, hidden: Option<&[f32]>) -> Result<Vec<Token>, StepError> {
        let fail = |why: String| Err(StepError::Failed(why));
        let (batch, program) = (&step.batch, &self.compiled.program);
        let ranks = self.ranks.as_ref().map_or(1, |ranks| ranks.count());
        program.check_ranks(ranks).map_err(StepError::Failed)?;
        let replicas = self.expert_exchange.as_ref().map_or(1, |exchange| exchange.count());
        program.check_replicas(replicas).map_err(StepError::Failed)?;
        step.check_sizes(self.limits.tokens)?;
        if program.is_encoder() {
            step.check_whole_sequences()?;
        }
        self.check_sections(step)?;
        let n = batch.tokens.len();
        if program.is_recurrent() {
            let Some(states) = self.limits.states else {
                return fail("the executor has no pool of recurrent states".into());
            };
            let mut validator = StateRowValidator::new(states);
            self.frozen.iter().for_each(|(id, pool)| validator.attach(*id, pool.states.slots()));
            validator.check(step)?;
        }
        let wanted = if program.takes_hidden() { n * program.hidden } else { 0 };
        if hidden.map_or(0, <[f32]>::len) != wanted {
            return fail(format!("{wanted} hidden numbers wanted"));
        }
        let mut tokens = Vec::with_capacity(n);
        for row in &batch.rows {
            let pool_row = self.rows.get(row.pool_row.0 as usize);
            let Some(pool_row) = pool_row else { return fail(format!("no row {}", row.pool_row.0)) };
            if !pool_row.resolve(&batch.tokens[row.tokens.range()], &mut tokens) {
                return fail("a token is in flight that was never sampled".into());
            }
        }
        match tokens.iter().find(|token| **token as usize >= program.vocab) {
            Some(token) => fail(format!("token {token} is outside the vocabulary of {}", program.vocab)),
            None => Ok(tokens),
        }
    }

    /// Rejects a plan without a section per layer group, and sections that name slots beyond their
    /// pool or pools that are not attached.
    fn check_sections(&self, step: &Step) -> Result<(), StepError> {
        let fail = |why: String| Err(StepError::Failed(why));
        let groups = self.grouping.window_count();
        step.check_window_sections(groups)?;
        for (section, slots) in step.plan.sections().take(1 + groups).zip(self.slots) {
            if section.kind != PlanKind::Explicit {
                let kind = section.kind;
                return fail(format!("plan of kind {kind:?} where explicit masks are required"));
            }
            let moved = section.moves.iter().flat_map(|copy| [copy.from, copy.to]);
            let mut changed = section.write_slots.iter().copied().chain(moved);
            if section.read_bound > slots || changed.any(|slot| slot >= slots) {
                return fail(format!("plan names slots beyond the pool's {slots}"));
            }
            let is_attached = |pool| pool == PoolId(0) || self.frozen.contains_key(&pool);
            if let Some(segment) = section.segments.iter().find(|segment| !is_attached(segment.pool)) {
                return fail(format!("plan reads pool {}, which is not attached", segment.pool.0));
            }
        }
        Ok(())
    }

    fn execute(&mut self, step: &mut Step) -> Result<(), StepError> {
        let started = Instant::now();
        step.output.reset();
        let tokens = self.check(step, None)?;
        let from = self.drafting.as_ref().and_then(|drafting| drafting.from);
        let Pass { logits, hidden, taps } = self.run(step, &tokens, None, from.as_slice())?;
        if self.ranks.as_ref().is_some_and(|ranks| !ranks.samples()) {
            step.output.rows.resize(step.batch.rows.len(), OutputRow::default());
            return Ok(());
        }
        let (vocab, width) = (self.compiled.program.vocab, self.compiled.program.hidden);
        let Step { batch, plan, output } = step;
        if self.compiled.program.is_encoder() {
            output.push_pooled(&batch.rows, &hidden);
            output.device_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            return Ok(());
        }
        let (mut rest, mut states, mut work) = (logits.as_slice(), hidden.as_slice(), Vec::new());
        for row in &batch.rows {
            if row.kind == RowKind::Dummy {
                output.rows.push(OutputRow::default());
                continue;
            }
            let count = row.tokens.len.saturating_sub(row.logits_from()) as usize;
            let (mine, others) = rest.split_at(count * vocab);
            rest = others;
            let (own, others) = states.split_at(count * width);
            states = others;
            if row.wants_hidden() {
                output.hidden.extend_from_slice(&own[own.len() - width..]);
            }
            let span = row.tokens.range();
            let parents = row.drafts.tree.map_or(&[][..], |tree| &batch.parents[tree.range()]);
            let positions = &plan.positions[span.clone()];
            let state = &mut self.rows[row.pool_row.0 as usize];
            state.draw(row, &tokens[span], positions, parents, mine, vocab, &mut work);
            output.push(state.drawn());
        }
        if batch.logits {
            output.logits = logits;
        }
        output.device_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Some(drafting) = &mut self.drafting {
            let hidden = taps.first().map_or(&[][..], |(_, rows)| rows);
            drafting.drafter.propose(step, &tokens, hidden, &mut self.rows);
        }
        Ok(())
    }

    /// Runs slot copies outside of a step; refuses slots beyond the pool.
    pub(crate) fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError> {
        let (last, slots) = (copies.iter().map(|copy| copy.from.max(copy.to)).max(), self.limits.slots);
        if let Some(last) = last.filter(|last| *last >= slots) {
            return Err(StepError::Failed(format!("plan copies slot {last} of a pool of {slots}")));
        }
        self.own.run_moves(GroupId::FULL, copies);
        Ok(())
    }
}

impl Executor for PlainExecutor {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        let (max_tokens, pool_rows) = (self.limits.tokens, self.limits.rows);
        let batch_sizes = self.batch_sizes.clone();
        let (plans, rectangles) = (&[PlanKind::Explicit], true);
        Abilities { plans, batch_sizes, rectangles, ..Abilities::all(2, max_tokens, pool_rows) }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        if let Some(drafting) = &mut self.drafting {
            drafting.drafter.bind(row, spec.final_len);
        }
        if let Some(place) = self.rows.get_mut(row.0 as usize) {
            *place = SamplerRow::bind(spec);
        }
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
        Ok(Ran::now(step, |step| self.execute(step)))
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        pending.into_parts()
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        slots.iter().for_each(|slots| self.own.release(group, slots.clone()));
        if let Some(drafting) = self.drafting.as_mut().filter(|_| group == GroupId::FULL) {
            drafting.drafter.release(slots);
        }
    }

    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        self.layout_of_rows()
    }

    fn access_kv(&mut self, access: KvAccess) {
        access(self);
    }
}

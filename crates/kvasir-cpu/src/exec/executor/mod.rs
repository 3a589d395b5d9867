//! The CPU executor: runs steps (batches) of one program over a KV cache pool of its own.
//!
//! A step goes through these stages:
//!
//! 1. Validate (`validate`): sizes, slots and tokens are checked before anything is changed.
//! 2. Pack some weights, grow the pool, and apply the plan's slot copies.
//! 3. Forward pass (`run`).
//! 4. Sample every row's tokens in parallel, verify drafts, and copy logits and hidden states out.
//! 5. Run the draft model (`draft`), if there is one.
//!
//! A step runs synchronously inside `submit`. On a validation error the pool and the samplers are
//! unchanged. `tests/plans.rs` and `tests/no_allocation.rs` guard it.

pub(crate) mod draft;
pub(crate) mod kv_rows;
pub(crate) mod validate;

use crate::exec::executor::draft::Drafting;
use crate::exec::model::CpuModel;
use crate::exec::run::Run;
use crate::exec::run::memory::Memory;
use crate::exec::run::recurrent::States;
use crate::gemm::bf16::activations::Bf16Terms;
use crate::memory::frozen_pool::FrozenPool;
use crate::memory::kv_pool::Pool;
use crate::memory::kv_pool::kv_type::KvType;
use crate::ops::mixture::MixtureMemory;
use kvasir_exec::{
    Abilities, Batch, Executor, ExpertExchange, KvAccess, KvLayout, NoKvAccess, OutputRow, PoolRow, Ran,
    Ranks, Refused, RowKind, SamplerRow, SequenceSpec, Step, StepError,
};
use kvasir_kv::{GroupId, Plan, PoolId, Section, Slot, SlotCopy, Slots, StateConfig, Token};
use kvasir_program::{Program, Tap, ValueId, Windows};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Capacity limits of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// KV slots of its pool, dummy slots included. Sliding-window layers use them too, unless they
    /// have rings or pools of their own ([`CpuExecutor::with_window_groups`]).
    pub slots: u32,
    /// Maximum number of tokens per step.
    pub tokens: u32,
    /// Maximum number of sequences that are bound at once (sampler rows).
    pub rows: u32,
    /// Storage type of the KV cache.
    pub kv: KvType,
    /// If set, sliding-window layers keep their KV cache in ring buffers made for writes of at most
    /// this many tokens; see [`Contiguous::with_rings`](kvasir_kv::Contiguous::with_rings). Every
    /// step is then one sequence with consecutive positions.
    pub ring: Option<u32>,
}

/// Sampler scratch for one row of logits.
#[derive(Default)]
struct SamplerScratch(Vec<f32>);

/// Runs steps of one program over a KV cache pool of its own.
pub struct CpuExecutor {
    model: Arc<CpuModel>,
    is_encoder: bool,
    limits: Limits,
    own: Arc<Pool>,
    /// Number of layer groups of sliding-window layers.
    window_groups: usize,
    /// Frozen prefix pools by id, from id 1 on.
    frozen: Vec<Option<Arc<Pool>>>,
    /// Pools by the plan's pool id: its own, then the frozen ones. Its own pool fills unused ids.
    pools: Vec<Arc<Pool>>,
    /// Sampler state by pool row.
    rows: Vec<Mutex<SamplerRow>>,
    memory: Memory,
    /// The recurrent states; `None` for a model without recurrent layers.
    states: Option<States>,
    /// Tokens of the step, with those in flight resolved.
    tokens: Vec<Token>,
    /// Final length of each token's sequence.
    final_lens: Vec<u32>,
    /// Position of the first token of type 1 in each token's sequence (encoders only); 0 if there
    /// is none.
    second_text_starts: Vec<u32>,
    /// Tokens that have logits, in rising order.
    sampled: Vec<usize>,
    /// Slots to write by layer group, sorted and unique, with the token whose rows go there.
    writes: Vec<Vec<(Slot, u32)>>,
    /// The other ranks of a tensor-parallel group.
    ranks: Option<Box<dyn Ranks>>,
    /// Exchanges rows with the other replicas of an expert-parallel group.
    expert_exchange: Option<Box<dyn ExpertExchange>>,
    /// Tokens of the last step; 0 if it failed.
    last: usize,
    /// The draft model that runs behind each step.
    drafting: Option<Box<Drafting>>,
}

impl CpuExecutor {
    /// Reserves address space for the largest step and the whole pool; physical memory is committed
    /// as it is used.
    pub fn new(model: Arc<CpuModel>, limits: Limits) -> io::Result<Self> {
        let own = Arc::new(Pool::with_rings(&model.program.layers, limits.kv, limits.slots, limits.ring)?);
        let memory = Memory::new(&model, limits.tokens as usize)?;
        Ok(Self {
            is_encoder: model.program.is_encoder(),
            model,
            limits,
            pools: vec![Arc::clone(&own)],
            own,
            window_groups: 0,
            frozen: Vec::new(),
            rows: (0..limits.rows).map(|_| Mutex::default()).collect(),
            memory,
            states: None,
            tokens: Vec::new(),
            final_lens: Vec::new(),
            second_text_starts: Vec::new(),
            sampled: Vec::new(),
            writes: Vec::new(),
            ranks: None,
            expert_exchange: None,
            last: 0,
            drafting: None,
        })
    }

    /// Adds a pool of recurrent states. Without one, a model with recurrent layers refuses every
    /// step; other models ignore it.
    pub fn with_states(mut self, states: Option<StateConfig>) -> io::Result<Self> {
        let (program, Limits { tokens, rows, .. }) = (&self.model.program, self.limits);
        let states = states.filter(|_| program.is_recurrent());
        let states = states.map(|config| States::new(program, config, tokens as usize, rows as usize));
        self.states = states.transpose()?;
        Ok(self)
    }

    /// Gives sliding-window layers KV pools of their own, with `slots` slots per layer group. Steps
    /// then need plans with window sections. `None` leaves the layers in the full group. Fails if
    /// the executor has rings, or if the pools cannot be mapped.
    pub fn with_window_groups(mut self, slots: Option<Slots>) -> io::Result<Self> {
        let Some(mut slots) = slots else { return Ok(self) };
        if self.limits.ring.is_some() {
            return Err(io::Error::other("sliding-window layers cannot have rings and pools of their own"));
        }
        slots[0] = self.limits.slots;
        let program = &self.model.program;
        let grouping = program.grouping(Windows::Separate);
        self.window_groups = grouping.window_count();
        self.own = Arc::new(Pool::with_groups(&program.layers, &grouping, self.limits.kv, slots)?);
        self.pools = vec![Arc::clone(&self.own)];
        Ok(self)
    }

    /// Runs a draft model behind each step, whose proposals go into the step's output.
    pub fn drafting(mut self, drafting: Drafting) -> Self {
        self.drafting = Some(Box::new(drafting));
        self
    }

    /// Makes it one rank of a tensor-parallel group. Fails if the model's program was not split for
    /// that many ranks.
    pub fn among(mut self, ranks: impl Ranks + 'static) -> Result<Self, String> {
        self.model.program.check_ranks(ranks.count())?;
        self.ranks = Some(Box::new(ranks));
        Ok(self)
    }

    /// Makes it one replica of an expert-parallel group. Fails if the model's experts were not
    /// divided among that many replicas, or if memory runs out.
    pub fn with_expert_parallelism(
        mut self,
        exchange: impl ExpertExchange + 'static,
    ) -> Result<Self, String> {
        let model = &self.model;
        model.program.check_replicas(exchange.count())?;
        let (tokens, terms) = (exchange.max_rows(), Bf16Terms::of(model.isa, model.precision));
        let memory = MixtureMemory::new(model.isa, &model.program, tokens, terms);
        self.memory.mixture =
            memory.map_err(|error| format!("no memory for `{tokens}` rows of other replicas: {error}"))?;
        self.expert_exchange = Some(Box::new(exchange));
        Ok(self)
    }

    /// The program that it runs.
    pub fn program(&self) -> &Program {
        &self.model.program
    }

    /// The KV cache pool that its steps write to.
    pub fn pool(&self) -> &Pool {
        &self.own
    }

    /// Consumes the executor and returns its pools, to be attached elsewhere as a frozen prefix:
    /// nothing writes to them any more.
    pub fn into_pool(self) -> FrozenPool {
        FrozenPool { kv: self.own, states: self.states.map(|states| states.pool) }
    }

    /// Attaches frozen pools, so that plans may read them under an id from 1 to 65,536. Fails if
    /// their layer shapes, KV type or recurrent states differ from the executor's own, or if either
    /// has rings or window pools.
    pub fn attach(&mut self, id: PoolId, prefix: FrozenPool) -> Result<(), String> {
        let FrozenPool { kv: pool, states } = prefix;
        let place = (id.0 as usize).checked_sub(1).filter(|place| *place < 65_536);
        let place = place.ok_or_else(|| format!("a frozen pool cannot have number {}", id.0))?;
        if pool.has_rings() {
            return Err("the prefix has ring buffers, whose slots plans cannot name".into());
        }
        if !pool.is_joined() || self.window_groups > 0 {
            return Err("sliding-window layers have KV pools of their own: a prefix has one pool".into());
        }
        if pool.kind() != self.limits.kv {
            return Err(format!(
                "the prefix stores K and V as {}, the session as {}",
                pool.kind(),
                self.limits.kv
            ));
        }
        if pool.facts() != self.own.facts() {
            return Err("the prefix is of another model".into());
        }
        match (&mut self.states, states) {
            (Some(own), Some(states)) => own.attach(id, states)?,
            (Some(_), None) => return Err("the prefix has no recurrent states".into()),
            (None, _) => {}
        }
        if self.frozen.len() <= place {
            self.frozen.resize(place + 1, None);
        }
        self.frozen[place] = Some(pool);
        let frozen = self.frozen.iter().map(|pool| pool.as_ref().unwrap_or(&self.own));
        self.pools = std::iter::once(&self.own).chain(frozen).cloned().collect();
        Ok(())
    }

    /// The last step's activations behind a tap that the model [keeps](CpuModel::keeping), a row
    /// per token.
    pub fn tap(&self, tap: Tap) -> Option<&[f32]> {
        let (_, value) = self.model.taps.iter().find(|(kept, _)| *kept == tap)?;
        self.rows_of(*value, self.last)
    }

    /// The first `rows` rows of a value of the last step.
    fn rows_of(&self, value: ValueId, rows: usize) -> Option<&[f32]> {
        let width = self.model.program.value(value).width();
        self.memory.numbers(self.model.lowered.buffers.of_value[value.0 as usize]?).get(..rows * width)
    }

    /// The logits of the last step, a row per token that has some.
    fn logits(&self) -> &[f32] {
        let logits = self.model.program.logits();
        logits.and_then(|value| self.rows_of(value, self.sampled.len())).unwrap_or(&[])
    }

    /// Row of the logits that belongs to a token: its rank in `sampled`, the sorted list of sampled
    /// tokens.
    fn place(&self, token: usize) -> usize {
        self.sampled.partition_point(|at| *at < token)
    }

    /// Appends the final hidden state of every row that requests it.
    fn append_hidden(&self, batch: &Batch, states: &[f32], into: &mut Vec<f32>) {
        let width = self.model.program.hidden;
        for row in batch.rows.iter().filter(|row| row.wants_hidden()) {
            let end = self.place(row.tokens.range().end) * width;
            into.extend_from_slice(&states[end - width..end]);
        }
    }

    /// Samples every row's tokens and verifies its drafts, in parallel over the rows.
    fn draw(&self, batch: &Batch, plan: &Plan, logits: &[f32]) {
        let vocab = self.model.program.vocab;
        self.model.threads.each(batch.rows.len(), &|worker, item| {
            let row = &batch.rows[item];
            if row.kind == RowKind::Dummy {
                return;
            }
            let span = row.tokens.range();
            let mine = &logits[self.place(span.start) * vocab..self.place(span.end) * vocab];
            let parents = row.drafts.tree.map_or(&[][..], |tree| &batch.parents[tree.range()]);
            let (tokens, positions) = (&self.tokens[span.clone()], &plan.positions[span]);
            let SamplerScratch(scratch) = worker.scratch();
            let mut state = self.rows[row.pool_row.0 as usize].lock().unwrap_or_else(PoisonError::into_inner);
            state.draw(row, tokens, positions, parents, mine, vocab, scratch);
        });
    }

    /// Runs a step synchronously: the forward pass, sampling, and the draft model if there is one.
    /// On an error the step's output is empty.
    pub fn execute(&mut self, step: &mut Step, hidden: &[f32]) -> Result<(), StepError> {
        let started = Instant::now();
        step.output.reset();
        self.forward(step, hidden)?;
        let Step { batch, plan, output } = &mut *step;
        if self.ranks.as_ref().is_some_and(|ranks| !ranks.samples()) {
            output.rows.resize(batch.rows.len(), OutputRow::default());
            return Ok(());
        }
        let states = self.model.program.hidden_output();
        let states = states.and_then(|value| self.rows_of(value, self.sampled.len())).unwrap_or(&[]);
        if self.is_encoder {
            output.push_pooled(&batch.rows, states);
            output.device_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
            return Ok(());
        }
        self.draw(batch, plan, self.logits());
        for row in &batch.rows {
            if row.kind == RowKind::Dummy {
                output.rows.push(OutputRow::default());
                continue;
            }
            let state = &self.rows[row.pool_row.0 as usize];
            output.push(state.lock().unwrap_or_else(PoisonError::into_inner).drawn());
        }
        self.append_hidden(batch, states, &mut output.hidden);
        if batch.logits {
            output.logits.extend_from_slice(self.logits());
        }
        output.device_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.draft(step);
        Ok(())
    }

    /// Runs the forward pass of a step. `hidden` has a row per token for MTP (draft) programs,
    /// which continue from the target's hidden states, and is empty for others.
    fn forward(&mut self, step: &Step, hidden: &[f32]) -> Result<(), StepError> {
        self.last = 0;
        let program = &self.model.program;
        let wanted = if program.takes_hidden() { step.batch.tokens.len() * program.hidden } else { 0 };
        if hidden.len() != wanted {
            return Err(StepError::Failed(format!("{wanted} hidden numbers wanted, {} given", hidden.len())));
        }
        self.validate(step)?;
        if step.batch.is_dummy() {
            self.model.pack_for_warm_up()
        } else {
            self.model.pack_before_step()
        }
        let plan = &step.plan;
        for (group, section) in self.sections(plan) {
            self.own.grow(group, section.read_bound);
            self.run_copies(group, &section.moves);
        }
        let run = Run {
            model: &self.model,
            plan,
            tokens: &self.tokens,
            hidden,
            final_lens: &self.final_lens,
            second_text_starts: &self.second_text_starts,
            sampled: &self.sampled,
            writes: &self.writes,
            pools: &self.pools,
            ranks: self.ranks.as_deref(),
            expert_exchange: self.expert_exchange.as_deref(),
        };
        // SAFETY: `validate` has validated the step; only this executor writes its pool, and frozen
        // pools are never written.
        unsafe { run.all(&mut self.memory, self.states.as_mut())? };
        self.last = self.tokens.len();
        Ok(())
    }

    /// The plan sections of the executor's layer groups.
    fn sections<'a>(&self, plan: &'a Plan) -> impl Iterator<Item = (GroupId, &'a Section)> + use<'a> {
        (0..).map(GroupId).zip(plan.sections()).take(1 + self.window_groups)
    }

    /// Runs slot copies of the full group outside of a step; refuses slots beyond the pool.
    fn copy_slots(&mut self, copies: &[SlotCopy]) -> Result<(), StepError> {
        let (last, slots) = (copies.iter().map(|copy| copy.from.max(copy.to)).max(), self.limits.slots);
        if let Some(last) = last.filter(|last| *last >= slots) {
            return Err(StepError::Failed(format!("plan copies slot {last} of a pool of {slots}")));
        }
        self.run_copies(GroupId::FULL, copies);
        Ok(())
    }

    /// Runs slot copies of a layer group, whose slots have been checked.
    fn run_copies(&mut self, group: GroupId, copies: &[SlotCopy]) {
        let Some(last) = copies.iter().map(|copy| copy.from.max(copy.to)).max() else { return };
        self.own.grow(group, last + 1);
        // SAFETY: the slots exist; only this executor writes its pool, and it runs nothing else
        // now.
        unsafe { self.own.apply(group, copies, &mut self.memory.copy_scratch) };
    }
}

impl Executor for CpuExecutor {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        Abilities::all(2, self.limits.tokens, self.limits.rows)
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        if let Some(drafting) = &mut self.drafting {
            drafting.drafter.bind(row, spec.final_len);
        }
        if let Some(place) = self.rows.get_mut(row.0 as usize) {
            *place = Mutex::new(SamplerRow::bind(spec));
        }
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Ran, Refused> {
        Ok(Ran::now(step, |step| self.execute(step, &[])))
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        pending.into_parts()
    }

    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]) {
        // No step is in flight: a submitted step has run.
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

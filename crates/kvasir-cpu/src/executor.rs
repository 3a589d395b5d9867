use crate::model::CpuModel;
use crate::pool::{KvType, Pool};
use crate::run::{Memory, Run};
use kvasir_exec::{
    Abilities, Executor, OutputRow, PoolRow, Refused, SamplerRow, SequenceSpec, Step, StepError,
};
use kvasir_kv::{PoolId, Slot, Span, Token};
use kvasir_program::Program;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// What an executor may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots of its pool, dummy slots included.
    pub slots: u32,
    /// Tokens of one step.
    pub tokens: u32,
    /// Token-pool rows.
    pub rows: u32,
    /// How K and V are stored.
    pub kv: KvType,
}

/// Runs steps of one program over a pool of its own.
pub struct CpuExecutor {
    model: Arc<CpuModel>,
    limits: Limits,
    own: Arc<Pool>,
    frozen: Vec<Option<Arc<Pool>>>,
    rows: Vec<SamplerRow>,
    memory: Memory,
    tokens: Vec<Token>,
    final_lens: Vec<u32>,
    sampled: Vec<usize>,
    writes: Vec<(Slot, u32)>,
}

/// A step that has run: the processor is the device, so there is nothing left to wait for.
pub struct Ran {
    step: Box<Step>,
    result: Result<(), StepError>,
}

impl Ran {
    /// The step, whatever became of it.
    pub fn into_step(self) -> Box<Step> {
        self.step
    }
}

impl CpuExecutor {
    /// Takes address space for the largest step and the whole pool; memory follows as it is used.
    pub fn new(model: Arc<CpuModel>, limits: Limits) -> io::Result<Self> {
        let own = Arc::new(Pool::new(&model.program.layers, limits.kv, limits.slots as usize)?);
        let memory = Memory::new(&model, limits.tokens as usize)?;
        Ok(Self {
            model,
            limits,
            own,
            frozen: Vec::new(),
            rows: (0..limits.rows).map(|_| SamplerRow::default()).collect(),
            memory,
            tokens: Vec::new(),
            final_lens: Vec::new(),
            sampled: Vec::new(),
            writes: Vec::new(),
        })
    }

    /// What it runs.
    pub fn program(&self) -> &Program {
        &self.model.program
    }

    /// The pool that its steps write to. To be handed to others as a frozen prefix once nothing writes the rows they read.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.own
    }

    /// Lets plans read a frozen pool under a number other than 0. It must come from an executor of the same program.
    pub fn attach(&mut self, id: PoolId, pool: Arc<Pool>) {
        let Some(place) = (id.0 as usize).checked_sub(1).filter(|place| *place < 65_536) else { return };
        if self.frozen.len() <= place {
            self.frozen.resize(place + 1, None);
        }
        self.frozen[place] = Some(pool);
    }

    /// Refuses what does not fit together, so that kernels need not look again; fills in the tokens in flight.
    fn check(&mut self, step: &Step) -> Result<(), StepError> {
        let fail = |why: String| Err(StepError::Failed(why));
        let (batch, plan) = (&step.batch, &step.plan);
        let n = batch.tokens.len();
        let mut spans = batch.rows.iter().map(|row| row.tokens);
        let end = spans.try_fold(0, |at, span| (span.start == at).then(|| at.saturating_add(span.len)));
        let same = batch.rows.len() == plan.rows.len()
            && end == Some(n as u32)
            && batch.rows.iter().zip(&plan.rows).all(|(b, p)| b.tokens == p.queries && b.seq == p.seq);
        if n > self.limits.tokens as usize || !same {
            return fail(format!("batch of {n} tokens and plan do not belong together"));
        }
        if plan.positions.len() != n || plan.write_slots.len() != n {
            return fail(format!("plan of {} tokens for a batch of {n}", plan.positions.len()));
        }
        let slots = self.limits.slots;
        let moved = plan.moves.iter().flat_map(|m| [m.from, m.to]);
        if plan.write_slots.iter().copied().chain(moved).any(|slot| slot >= slots) {
            return fail(format!("plan names slots beyond the pool's {slots}"));
        }
        // Several tokens may be redirected to one dummy slot; which of them it gets is of no matter.
        self.writes.clear();
        self.writes.extend(plan.write_slots.iter().copied().zip(0..));
        self.writes.sort_unstable();
        self.writes.dedup_by_key(|(slot, _)| *slot);
        self.memory.views.of_plan(plan);
        for entry in self.memory.views.all_entries() {
            let room = match entry.pool {
                0 => slots as usize,
                id => self.frozen.get(id as usize - 1).and_then(Option::as_ref).map_or(0, |pool| pool.slots),
            };
            if entry.slot as usize >= room {
                return fail(format!(
                    "plan reads slot {} of pool {}, which has {room}",
                    entry.slot, entry.pool
                ));
            }
        }
        self.tokens.clear();
        self.final_lens.clear();
        self.sampled.clear();
        for row in &batch.rows {
            let Some(state) = self.rows.get(row.pool_row.0 as usize) else {
                return fail(format!("no row {}", row.pool_row.0));
            };
            let Some(resolved) = state.resolve(&batch.tokens[row.tokens.range()]) else {
                return fail("a token is in flight that was never sampled".into());
            };
            self.tokens.extend(resolved);
            self.final_lens.resize(self.tokens.len(), state.spec.final_len);
            self.sampled.extend(row.tokens.range().skip(row.sample_from as usize));
        }
        let vocab = self.model.program.vocab;
        match self.tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => fail(format!("token {token} is outside the vocabulary of {vocab}")),
            None => Ok(()),
        }
    }

    fn execute(&mut self, step: &mut Step) -> Result<(), StepError> {
        let started = Instant::now();
        step.output.reset();
        if step.batch.is_dummy() {
            step.output.rows.resize(step.batch.rows.len(), OutputRow::default());
            return Ok(());
        }
        self.check(step)?;
        let Step { batch, plan, output } = step;
        self.own.apply(&plan.moves, &mut self.memory.kept);
        let frozen = self.frozen.iter().map(|pool| pool.as_deref().unwrap_or(&self.own));
        let pools: Vec<&Pool> = std::iter::once(&*self.own).chain(frozen).collect();
        let run = Run {
            model: &self.model,
            plan,
            tokens: &self.tokens,
            final_lens: &self.final_lens,
            sampled: &self.sampled,
            writes: &self.writes,
            pools: &pools,
        };
        run.all(&mut self.memory);
        let logits = run.logits(&self.memory);
        let vocab = self.model.program.vocab;
        let mut rest = logits;
        for row in &batch.rows {
            let count = row.tokens.len.saturating_sub(row.sample_from) as usize;
            let (mine, others) = rest.split_at(count * vocab);
            rest = others;
            let span = row.tokens.range();
            let parents = row.drafts.tree.map_or(&[][..], |tree| &batch.parents[tree.range()]);
            let state = &mut self.rows[row.pool_row.0 as usize];
            let tokens = &self.tokens[span.clone()];
            let drawn = state.draw(row, tokens, &plan.positions[span], parents, mine, vocab);
            output.rows.push(OutputRow { tokens: Span::new(output.tokens.len(), drawn.tokens.len()) });
            output.tokens.extend(drawn.tokens);
            output.logprobs.extend(drawn.logprobs);
        }
        if output.logprobs.iter().all(Option::is_none) {
            output.logprobs.clear();
        }
        if batch.logits {
            output.logits.extend_from_slice(logits);
        }
        output.device_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(())
    }
}

impl Executor for CpuExecutor {
    type Pending = Ran;

    fn abilities(&self) -> Abilities {
        Abilities {
            contiguous: true,
            ragged: true,
            explicit: true,
            mixed: true,
            depth: 2,
            max_tokens: self.limits.tokens,
            pool_rows: self.limits.rows,
        }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        if let Some(place) = self.rows.get_mut(row.0 as usize) {
            *place = SamplerRow::bind(spec);
        }
    }

    fn submit(&mut self, mut step: Box<Step>) -> Result<Ran, Refused> {
        let result = self.execute(&mut step);
        Ok(Ran { step, result })
    }

    fn wait(&mut self, pending: Ran) -> (Box<Step>, Result<(), StepError>) {
        (pending.step, pending.result)
    }
}

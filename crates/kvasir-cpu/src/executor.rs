use crate::model::CpuModel;
use crate::pool::{KvType, Pool};
use crate::run::{Memory, Run};
use kvasir_exec::{
    Abilities, Batch, Executor, OutputRow, PoolRow, Refused, SamplerRow, SequenceSpec, Step, StepError,
};
use kvasir_kv::{Plan, PoolId, Slot, Token};
use kvasir_program::Program;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
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
    /// Its own pool, then the frozen ones; its own again where none is.
    pools: Vec<Arc<Pool>>,
    rows: Vec<Mutex<SamplerRow>>,
    /// Per thread: memory for one row of logits.
    work: Vec<Mutex<Vec<f32>>>,
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
        let threads = model.team.len();
        Ok(Self {
            model,
            limits,
            pools: vec![Arc::clone(&own)],
            own,
            frozen: Vec::new(),
            rows: (0..limits.rows).map(|_| Mutex::default()).collect(),
            work: (0..threads).map(|_| Mutex::default()).collect(),
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
        let frozen = self.frozen.iter().map(|pool| pool.as_ref().unwrap_or(&self.own));
        self.pools = std::iter::once(&self.own).chain(frozen).cloned().collect();
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
        for run in self.memory.views.all_runs() {
            let room = match run.pool {
                0 => slots as usize,
                id => self.frozen.get(id as usize - 1).and_then(Option::as_ref).map_or(0, |pool| pool.slots),
            };
            let end = u64::from(run.slot) + u64::from(run.len);
            if end > room as u64 {
                return fail(format!("plan reads slot {} of pool {}, which has {room}", end - 1, run.pool));
            }
        }
        self.tokens.clear();
        self.final_lens.clear();
        self.sampled.clear();
        for row in &batch.rows {
            let Some(state) = self.rows.get(row.pool_row.0 as usize) else {
                return fail(format!("no row {}", row.pool_row.0));
            };
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.resolve(&batch.tokens[row.tokens.range()], &mut self.tokens) {
                return fail("a token is in flight that was never sampled".into());
            }
            self.final_lens.resize(self.tokens.len(), state.spec.final_len);
            self.sampled.extend(row.tokens.range().skip(row.logits_from() as usize));
        }
        let vocab = self.model.program.vocab;
        match self.tokens.iter().find(|token| **token as usize >= vocab) {
            Some(token) => fail(format!("token {token} is outside the vocabulary of {vocab}")),
            None => Ok(()),
        }
    }

    /// Draws every row's tokens, all threads at once.
    fn draw(&self, batch: &Batch, plan: &Plan, logits: &[f32]) {
        let vocab = self.model.program.vocab;
        self.model.team.each(batch.rows.len(), &|thread, item| {
            let row = &batch.rows[item];
            let span = row.tokens.range();
            // `sampled` lists the tokens whose logits are there, in rising order.
            let place = |token: usize| self.sampled.partition_point(|at| *at < token) * vocab;
            let mine = &logits[place(span.start)..place(span.end)];
            let parents = row.drafts.tree.map_or(&[][..], |tree| &batch.parents[tree.range()]);
            let (tokens, positions) = (&self.tokens[span.clone()], &plan.positions[span]);
            let mut work = self.work[thread].lock().unwrap_or_else(PoisonError::into_inner);
            let mut state = self.rows[row.pool_row.0 as usize].lock().unwrap_or_else(PoisonError::into_inner);
            state.draw(row, tokens, positions, parents, mine, vocab, &mut work);
        });
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
        self.own.grow(plan.read_bound);
        self.own.apply(&plan.moves, &mut self.memory.kept);
        let run = Run {
            model: &self.model,
            plan,
            tokens: &self.tokens,
            final_lens: &self.final_lens,
            sampled: &self.sampled,
            writes: &self.writes,
            pools: &self.pools,
        };
        run.all(&mut self.memory);
        let logits = run.logits(&self.memory);
        self.draw(batch, plan, logits);
        for row in &batch.rows {
            let state = &self.rows[row.pool_row.0 as usize];
            output.push(state.lock().unwrap_or_else(PoisonError::into_inner).drawn());
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
            *place = Mutex::new(SamplerRow::bind(spec));
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

//! Executes the recurrent ops: `ShortConv`, `NgramEmbed`, `GatedDelta` and `SelectiveScan`.

use crate::exec::run::Run;
use crate::memory::buffer::Buffer;
use crate::memory::state_pool::StatePool;
use crate::recurrent::gated_delta::{self, DeltaOperands};
use crate::recurrent::inputs::StateInputs;
use crate::recurrent::ngram_embed::{self, NgramEmbedding};
use crate::recurrent::op_context::OpContext;
use crate::recurrent::selective_scan::{self, ScanOperands};
use crate::recurrent::short_conv::{self, ShortConv};
use crate::recurrent::weights::RecurrentWeights;
use crate::threads::rows::DisjointRows;
use kvasir_exec::StateRowValidator;
use kvasir_kv::{PoolId, StateConfig, Token};
use kvasir_program::{Op, Program};
use std::io;
use std::sync::Arc;

/// The recurrent states of an executor, and the inputs of the current step.
pub(crate) struct States {
    pub(crate) pool: Arc<StatePool>,
    /// The pools of shared prefixes by id, from id 1 on. `pool` fills unused ids.
    frozen: Vec<Arc<StatePool>>,
    pub(crate) validator: StateRowValidator,
    pub(crate) inputs: StateInputs,
    /// Scratch memory for the prepared inputs of one op.
    prepared: Buffer,
    /// Zeros, as the inputs of a convolution before a sequence's first token.
    zeros: Vec<f32>,
}

impl States {
    /// Allocates for steps of at most `tokens` tokens in `rows` rows.
    pub(crate) fn new(
        program: &Program,
        config: StateConfig,
        tokens: usize,
        rows: usize,
    ) -> io::Result<Self> {
        let prepared_width = |op: &Op| match op {
            Op::GatedDelta { form, .. } => gated_delta::prepared_width(form),
            Op::SelectiveScan { form, .. } => selective_scan::prepared_width(form),
            _ => 0,
        };
        let conv_width = |op: &Op| match op {
            Op::ShortConv { x, .. } => program.value(*x).width(),
            _ => 0,
        };
        let widest = |of: &dyn Fn(&Op) -> usize| program.ops.iter().map(of).max().unwrap_or(0);
        let replayed = rows.min(config.live as usize).saturating_mul(config.tail_rows as usize);
        let inputs = tokens.saturating_add(replayed);
        let bytes = widest(&prepared_width).saturating_mul(inputs).saturating_mul(4);
        Ok(Self {
            pool: Arc::new(StatePool::new(program.state_layout(), config)?),
            frozen: Vec::new(),
            validator: StateRowValidator::new(config),
            inputs: StateInputs::default(),
            prepared: Buffer::in_huge_pages(bytes)?,
            zeros: vec![0.0; widest(&conv_width)],
        })
    }

    /// Lets rows read the frozen pool of a shared prefix under `id`, which must not be 0. Fails if
    /// its state layout is another one.
    pub(crate) fn attach(&mut self, id: PoolId, pool: Arc<StatePool>) -> Result<(), String> {
        if !pool.has_layout_of(&self.pool) {
            return Err("the prefix is of another model".into());
        }
        let place = id.0 as usize - 1;
        if self.frozen.len() <= place {
            self.frozen.resize(place + 1, Arc::clone(&self.pool));
        }
        self.validator.attach(id, pool.slots());
        self.frozen[place] = pool;
        Ok(())
    }
}

impl Run<'_> {
    /// Runs a recurrent op over all rows. Tokens that are not inputs of the recurrence get zeros.
    ///
    /// # Safety
    /// `states.inputs` must come from a validated step. No other thread may access `states.pool` or
    /// write a frozen one.
    pub(crate) unsafe fn recurrent(&self, op: &Op, states: &mut States, values: &[Buffer]) {
        let States { pool, frozen, inputs, prepared, zeros, .. } = states;
        let x = |value| self.value(values, value);
        let width = self.width(op.out());
        // SAFETY: only this op writes its output now.
        let y = unsafe { self.value_mut(values, op.out()) };
        for tokens in &inputs.skipped {
            y[tokens.start * width..tokens.end * width].fill(0.0);
        }
        let y = DisjointRows::new(y, width);
        let Some(state) = op.state() else { return };
        let prepared = prepared.floats_mut();
        let (threads, isa) = (&*self.model.threads, self.model.isa);
        let context = OpContext { threads, isa, pool, frozen, state, inputs };
        let weights = &self.model.recurrent[state.0 as usize];
        // SAFETY: upheld by the caller.
        unsafe {
            match (op, weights) {
                (Op::ShortConv { x: v, kernel, dilation, silu, .. }, RecurrentWeights::Conv(weights)) => {
                    let (kernel, dilation, silu, x) = (*kernel, *dilation, *silu, x(*v));
                    let conv = ShortConv { weights, kernel, dilation, silu, width, x, zeros };
                    short_conv::run(&context, &conv, &y);
                }
                (Op::GatedDelta { q, k, v, decay, beta, form, .. }, RecurrentWeights::Head(weights)) => {
                    let operands =
                        DeltaOperands { q: x(*q), k: x(*k), v: x(*v), decay: x(*decay), beta: x(*beta) };
                    gated_delta::run(&context, form, weights, operands, prepared, &y);
                }
                (Op::SelectiveScan { x: v, b, c, dt, form, .. }, RecurrentWeights::Head(weights)) => {
                    let operands = ScanOperands { x: x(*v), b: x(*b), c: x(*c), dt: x(*dt) };
                    selective_scan::run(&context, form, weights, operands, prepared, &y);
                }
                (Op::NgramEmbed { form, .. }, _) => {
                    let first = form.tables.first().map(|table| &self.model.program.weight(*table).shape);
                    let table_rows = first.and_then(|shape| shape.first()).map_or(1, |rows| (*rows).max(1));
                    let read_row = |table, row: usize, y: &mut [f32]| self.embed(table, row as Token, 1.0, y);
                    let (tokens, read_row) = (self.tokens, &read_row);
                    let ngrams = NgramEmbedding { form, table_rows, tokens, read_row };
                    ngram_embed::run(&context, &ngrams, &y);
                }
                _ => {}
            }
        }
    }
}

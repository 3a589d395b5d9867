//! The interpreter of the reference backend: runs a program's ops one after the other over one
//! step.
//!
//! 1. Apply the plan's slot copies (`moves`), group by group.
//! 2. For each op, compute its result into the buffer of its value. Attention first writes K and V
//!    to the slots that the plan names for its layer group. Recurrent ops read and write the plan's
//!    states (`recurrent_rows.rs`).
//!
//! It defines the reference semantics of every op in `kvasir_program::Op`.

use crate::attention::{Attention, Pools, for_each_query};
use crate::compressed::{CompressedAttention, VisibleEntries};
use crate::expert_parallel::{RoutedRows, expert_parallel_mixture};
use crate::frozen_pool::FrozenPool;
use crate::indexer::{GatedValues, Indexer, ResolvedKeyPool, ResolvedPooling};
use crate::mask::Reads;
use crate::mixture::{Routes, mixture, route};
use crate::pool::{Part, Pool};
use crate::state_pool::StatePool;
use crate::weights::Weights;
use kvasir_exec::{AllGatherBuffers, Batch, ExpertExchange, Ranks, StepError};
use kvasir_kv::{GroupId, Plan, PoolId, Section, Token};
use kvasir_program::{
    Buffers, Collective, Holds, KeyPool, KeyPooling, LayerId, Matrix, Op, Program, Rows, ValueId,
};
use std::{collections::HashMap, sync::Arc};

/// The inputs of one step, validated by the executor.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) program: &'a Program,
    pub(crate) weights: &'a Weights,
    pub(crate) buffers: &'a Buffers,
    pub(crate) frozen: &'a HashMap<PoolId, Arc<FrozenPool>>,
    pub(crate) batch: &'a Batch,
    pub(crate) plan: &'a Plan,
    /// Input tokens, with those in flight resolved.
    pub(crate) tokens: &'a [Token],
    /// Position of the first token of type 1 in each row's sequence; 0 if there is none.
    pub(crate) second_text_starts: &'a [u32],
    /// Maximum length of each row's sequence; selects LongRoPE frequencies.
    pub(crate) final_lens: &'a [u32],
    /// The target's hidden states, one row per token, for MTP programs.
    pub(crate) hidden: &'a [f32],
    /// The other tensor-parallel ranks.
    pub(crate) ranks: Option<&'a dyn Ranks>,
    /// Exchanges rows with the other expert-parallel replicas.
    pub(crate) expert_exchange: Option<&'a dyn ExpertExchange>,
}

/// The execution state of one step.
pub(crate) struct Run<'a> {
    pub(crate) job: Job<'a>,
    own: &'a mut Pool,
    pub(crate) states: &'a mut StatePool,
    /// The plan sections of the executor's layer groups. A dummy step lacks those of window groups.
    sections: Vec<&'a Section>,
    /// The reads of all rows, by layer group.
    reads: Vec<Vec<Reads<'a>>>,
    /// Batch row of each token.
    pub(crate) row_of: Vec<usize>,
    /// Indices of the tokens whose logits are wanted.
    pub(crate) sampled: Vec<usize>,
    memory: Vec<Vec<f32>>,
    routes: HashMap<ValueId, Vec<Routes>>,
    selections: HashMap<ValueId, Vec<Vec<u32>>>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(job: Job<'a>, own: &'a mut Pool, states: &'a mut StatePool) -> Self {
        let reads_of = |section: &'a Section| {
            let rows = section.rows.iter().zip(&job.batch.rows);
            let reads = rows.map(|(row, of)| Reads::new(section, row, &job.plan.positions, job.batch, of));
            reads.collect()
        };
        let sections: Vec<_> = job.plan.sections().take(own.group_count()).collect();
        let reads = sections.iter().map(|section| reads_of(section)).collect();
        let rows = || job.batch.rows.iter().enumerate();
        let row_of = rows().flat_map(|(r, row)| row.tokens.range().map(move |_| r)).collect();
        let sampled =
            rows().flat_map(|(_, row)| row.tokens.range().skip(row.logits_from() as usize)).collect();
        let memory = vec![Vec::new(); job.buffers.buffers.len()];
        let (routes, selections) = (HashMap::new(), HashMap::new());
        Self { job, own, states, sections, reads, row_of, sampled, memory, routes, selections }
    }

    /// Runs all ops. Logits and the values that the buffer plan keeps can be read afterwards.
    /// Returns the error of the first collective that fails.
    pub(crate) fn all(&mut self) -> Result<(), StepError> {
        for (group, section) in (0..).map(GroupId).zip(&self.sections) {
            self.own.run_moves(group, &section.moves);
        }
        for op in &self.job.program.ops {
            match op {
                Op::Route { scores, routing, out } => {
                    // Routing by token id runs on all tokens of the step, so that row i is token i;
                    // other routing ignores the token.
                    let tokens = self.job.tokens.iter().copied().chain(std::iter::repeat(0));
                    let scores = self.rows(*scores).zip(tokens);
                    let routes =
                        scores.map(|(s, token)| route(s, token, routing, self.job.weights)).collect();
                    self.routes.insert(*out, routes);
                }
                Op::SelectKeys { q, k, weights, layer, top_k, pool, out } => {
                    self.write_kv(*k, *layer, Part::Index);
                    let pool = pool.map(|pool| self.resolve_key_pool(pool));
                    let indexer = Indexer { layer: *layer, top_k: *top_k, pool, kv_pools: self.pools() };
                    let selection = self.select(*q, *weights, &indexer);
                    self.selections.insert(*out, selection);
                }
                _ => self.numbers(op)?,
            }
        }
        Ok(())
    }

    /// A value's elements, row after row.
    pub(crate) fn value(&self, value: ValueId) -> &[f32] {
        self.job.buffers.of_value[value.0 as usize].map_or(&[], |buffer| &self.memory[buffer])
    }

    pub(crate) fn width(&self, value: ValueId) -> usize {
        self.job.program.value(value).width()
    }

    /// The row of one token in a value.
    pub(crate) fn token(&self, value: ValueId, token: usize) -> &[f32] {
        let width = self.width(value);
        &self.value(value)[token * width..(token + 1) * width]
    }

    pub(crate) fn rows(&self, value: ValueId) -> std::slice::ChunksExact<'_, f32> {
        self.value(value).chunks_exact(self.width(value))
    }

    /// Runs an op whose result is rows of numbers.
    fn numbers(&mut self, op: &Op) -> Result<(), StepError> {
        let out = op.out();
        let value = self.job.program.value(out);
        let (Holds::Numbers(width), Some(buffer)) = (value.holds, self.job.buffers.of_value[out.0 as usize])
        else {
            return Ok(());
        };
        if let Op::UpdateAndAttend { k, v, layer, .. } = op {
            k.iter().for_each(|k| self.write_kv(*k, *layer, Part::Key));
            v.iter().for_each(|v| self.write_kv(*v, *layer, Part::Value));
        }
        if let Op::CompressedAttend { k, row, layer, .. } = op {
            self.write_kv(*k, *layer, Part::Key);
            row.iter().for_each(|row| self.write_kv(*row, *layer, Part::Index));
        }
        let rows = if value.rows == Rows::Tokens { self.job.tokens.len() } else { self.sampled.len() };
        // Taking the buffer is safe: the buffer plan never assigns a result the buffer of an
        // operand.
        let mut y = std::mem::take(&mut self.memory[buffer]);
        y.clear();
        y.resize(rows * width, 0.0);
        if op.state().is_some() {
            self.run_recurrent(op, &mut y, width);
        } else {
            self.compute(op, &mut y, width)?;
        }
        self.memory[buffer] = y;
        Ok(())
    }

    fn compute(&self, op: &Op, y: &mut [f32], width: usize) -> Result<(), StepError> {
        let w = self.job.weights;
        match op {
            Op::Embed { table, scale, .. } => {
                for (y, token) in y.chunks_exact_mut(width).zip(self.job.tokens) {
                    let row = w.row(*table, *token as usize, width);
                    y.iter_mut().zip(row).for_each(|(y, x)| *y = x * scale);
                }
            }
            Op::Lookup { table, index, .. } => self.lookup(*table, *index, y, width),
            Op::Hidden { .. } => y.copy_from_slice(self.job.hidden),
            Op::Linear { x, matrix, .. } => self.linear(*x, matrix, y),
            Op::GroupLinear { x, matrices, .. } => {
                let (stride, x) = (self.width(*x), self.value(*x));
                for group in 0..matrices.count {
                    let m = matrices.nth(group);
                    let (from, to) = (group * m.inputs, group * m.outputs);
                    if !x.is_empty() {
                        w.multiply(&m, &x[from..], stride, &mut y[to..], width);
                    }
                }
            }
            Op::UpdateAndAttend { .. } => self.attend(op, y, width),
            Op::CompressedAttend { .. } => self.attend_compressed(op, y, width),
            Op::Pool { x, pooling, .. } => self.pool(*x, *pooling, y, width),
            Op::Mixture { .. } => self.mix_experts(op, y, width)?,
            Op::Collect { x, how, .. } => self.collect(*x, *how, y, width)?,
            Op::Gather { x, .. } => {
                for (y, token) in y.chunks_exact_mut(width).zip(&self.sampled) {
                    y.copy_from_slice(self.token(*x, *token));
                }
            }
            Op::Head { x, matrix, scale, soft_cap, .. } => {
                self.linear(*x, matrix, y);
                if *scale != 1.0 {
                    y.iter_mut().for_each(|y| *y *= scale);
                }
                if let Some(cap) = soft_cap {
                    y.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
                }
            }
            Op::Norm { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Rotary { .. }
            | Op::Gate { .. }
            | Op::Scale { .. }
            | Op::Add { .. }
            | Op::Elementwise { .. }
            | Op::GroupDot { .. }
            | Op::HyperConnection { .. }
            | Op::MixStreams { .. } => self.compute_rows(op, y, width),
            Op::Route { .. }
            | Op::SelectKeys { .. }
            | Op::ShortConv { .. }
            | Op::GatedDelta { .. }
            | Op::SelectiveScan { .. }
            | Op::NgramEmbed { .. } => {}
        }
        Ok(())
    }

    /// Computes a mixture of experts by the routes of its rows.
    fn mix_experts(&self, op: &Op, y: &mut [f32], width: usize) -> Result<(), StepError> {
        let Op::Mixture { x, routes, experts, .. } = op else { return Ok(()) };
        let w = self.job.weights;
        if let Some(exchange) = self.job.expert_exchange {
            let (routes, top_k) = (&self.routes[routes][..], self.job.program.top_k(op));
            let rows = RoutedRows { x: self.value(*x), width, routes, top_k };
            return expert_parallel_mixture(exchange, &rows, experts, w, y);
        }
        let rows = self.rows(*x).zip(&self.routes[routes]);
        for (y, (x, routes)) in y.chunks_exact_mut(width).zip(rows) {
            mixture(x, routes, experts, w, y);
        }
        Ok(())
    }

    /// All-gathers (`Join`) or all-reduces (`Sum`) rows over the ranks. Without ranks, copies them.
    fn collect(&self, x: ValueId, how: Collective, y: &mut [f32], width: usize) -> Result<(), StepError> {
        let rows = self.value(x);
        match (how, self.job.ranks) {
            (Collective::Join, Some(ranks)) => {
                AllGatherBuffers::default().all_gather(ranks, rows, self.width(x), y, width)
            }
            (Collective::Sum, Some(ranks)) => {
                y.copy_from_slice(rows);
                ranks.all_reduce(y)
            }
            (_, None) => {
                y.copy_from_slice(rows);
                Ok(())
            }
        }
    }

    fn linear(&self, x: ValueId, matrix: &Matrix, y: &mut [f32]) {
        self.job.weights.multiply(matrix, self.value(x), matrix.inputs, y, matrix.outputs);
    }

    /// Writes each token's row of a value to its KV slot.
    fn write_kv(&mut self, value: ValueId, layer: LayerId, part: Part) {
        let Some(buffer) = self.job.buffers.of_value[value.0 as usize] else { return };
        let Some(section) = self.sections.get(self.own.group(layer).index()) else { return };
        let rows = self.memory[buffer].chunks_exact(self.width(value));
        for (row, slot) in rows.zip(&section.write_slots) {
            self.own.write(layer, part, *slot, row);
        }
    }

    /// The reads of all rows in a layer's group.
    fn reads_of(&self, layer: LayerId) -> &[Reads<'a>] {
        self.reads.get(self.own.group(layer).index()).map_or(&[], |reads| reads)
    }

    fn pools(&self) -> Pools<'_> {
        Pools { own: self.own, frozen: self.job.frozen }
    }

    /// Attention of all queries; K and V of this step are in the pool already.
    fn attend(&self, op: &Op, y: &mut [f32], width: usize) {
        let Op::UpdateAndAttend { q, layer, scale, soft_cap, sinks, selection, .. } = op else { return };
        let facts = &self.job.program.layers[layer.0 as usize];
        let sinks = sinks.map(|sinks| &self.job.weights.get(sinks.weight)[sinks.offset..]);
        let attention = Attention {
            layer: *layer,
            facts: *facts,
            scale: *scale,
            soft_cap: *soft_cap,
            sinks,
            kv_pools: self.pools(),
        };
        for (token, reads, visible) in for_each_query(self.reads_of(*layer), facts) {
            let visible = selection.map_or(&visible, |s| &self.selections[&s][token]);
            let q = self.token(*q, token);
            attention.query(reads, visible, q, &mut y[token * width..(token + 1) * width]);
        }
    }

    /// Attention of all queries to a sliding window and to compressed entries.
    fn attend_compressed(&self, op: &Op, y: &mut [f32], width: usize) {
        let Op::CompressedAttend { q, selection, layer, scale, sinks, window, pool, .. } = op else { return };
        let facts = &self.job.program.layers[layer.0 as usize];
        let attention = CompressedAttention {
            layer: *layer,
            dim: facts.key_dim,
            scale: *scale,
            sinks: &self.job.weights.get(sinks.weight)[sinks.offset..],
            window: *window,
            key_pool: self.resolve_key_pool(*pool),
            kv_pools: self.pools(),
        };
        for (token, reads, visible) in for_each_query(self.reads_of(*layer), facts) {
            let seen = VisibleEntries {
                reads,
                visible: &visible,
                selected: selection.map(|selection| &self.selections[&selection][token][..]),
                position: self.job.plan.positions[token],
                final_len: self.job.final_lens[self.row_of[token]],
            };
            attention.query(&seen, self.token(*q, token), &mut y[token * width..(token + 1) * width]);
        }
    }

    /// Looks up the weights and the RoPE of a key pool.
    fn resolve_key_pool(&self, pool: KeyPool) -> ResolvedKeyPool<'_> {
        let w = self.job.weights;
        let combine = match pool.combine {
            KeyPooling::Gated { bias } => {
                let bias = w.get(bias);
                ResolvedPooling::Gated(GatedValues { start: 0, dim: bias.len() / pool.size, parts: 1, bias })
            }
            KeyPooling::Mean { norm, plus, eps, rope } => {
                let rope = &self.job.program.ropes[rope.0 as usize];
                ResolvedPooling::Mean { norm: w.get(norm), plus, eps, rope }
            }
            KeyPooling::Compressed { start, dim, parts, bias, norm, eps, rope } => {
                let rope = &self.job.program.ropes[rope.0 as usize];
                let values = GatedValues { start, dim, parts, bias: w.get(bias) };
                ResolvedPooling::Compressed { values, norm: w.get(norm), eps, rope }
            }
        };
        ResolvedKeyPool { size: pool.size, combine }
    }

    /// Runs the indexer: the selected entries per token, by index into the entries of its row.
    fn select(&self, q: ValueId, weights: Option<ValueId>, indexer: &Indexer<'_>) -> Vec<Vec<u32>> {
        let facts = &self.job.program.layers[indexer.layer.0 as usize];
        let mut selections = vec![Vec::new(); self.job.tokens.len()];
        for (token, reads, visible) in for_each_query(self.reads_of(indexer.layer), facts) {
            let weights = weights.map(|weights| self.token(weights, token));
            let final_len = self.job.final_lens[self.row_of[token]];
            selections[token] = indexer.select(reads, &visible, self.token(q, token), weights, final_len);
        }
        selections
    }
}

//! The interpreter of the reference backend: runs a program's ops one after the other over one
//! step.
//!
//! 1. Apply the plan's slot copies (`moves`).
//! 2. For each op, compute its result into the buffer of its value. Attention first writes K and V
//!    to the plan's slots; recurrent ops read and write the plan's states (`recurrent_rows.rs`).
//!
//! It defines the reference semantics of every op in `kvasir_program::Op`.

use crate::attention::{Attention, Pools, for_each_query};
use crate::compressed::{CompressedAttention, VisibleEntries};
use crate::elementwise::elementwise;
use crate::expert_parallel::{RoutedRows, expert_parallel_mixture};
use crate::indexer::{GatedValues, Indexer, ResolvedKeyPool, ResolvedPooling};
use crate::mask::Reads;
use crate::math::{dot, rotate_pairs, turns};
use crate::mixture::{Routes, gated, mixture, route};
use crate::pool::{Part, Pool};
use crate::state_pool::StatePool;
use crate::streams::{HyperWeights, hyper_connection, mix_streams};
use crate::weights::Weights;
use kvasir_exec::{AllGatherBuffers, Batch, ExpertExchange, Ranks, StepError};
use kvasir_kv::{Plan, PoolId, Token};
use kvasir_program::{
    Buffers, Collective, Holds, KeyPool, KeyPooling, LayerId, Matrix, NormKind, Op, Pairs, Program, Rope,
    Rows, ValueId,
};
use std::{collections::HashMap, sync::Arc};

/// The inputs of one step, validated by the executor.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) program: &'a Program,
    pub(crate) weights: &'a Weights,
    pub(crate) buffers: &'a Buffers,
    pub(crate) frozen: &'a HashMap<PoolId, Arc<Pool>>,
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
    reads: Vec<Reads>,
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
        let rows = job.plan.rows.iter().zip(&job.batch.rows);
        let reads = rows.map(|(row, of)| Reads::new(job.plan, row, job.batch, of)).collect();
        let rows = || job.batch.rows.iter().enumerate();
        let row_of = rows().flat_map(|(r, row)| row.tokens.range().map(move |_| r)).collect();
        let sampled =
            rows().flat_map(|(_, row)| row.tokens.range().skip(row.logits_from() as usize)).collect();
        let memory = vec![Vec::new(); job.buffers.buffers.len()];
        let (routes, selections) = (HashMap::new(), HashMap::new());
        Self { job, own, states, reads, row_of, sampled, memory, routes, selections }
    }

    /// Runs all ops. Logits and the values that the buffer plan keeps can be read afterwards.
    /// Returns the error of the first collective that fails.
    pub(crate) fn all(&mut self) -> Result<(), StepError> {
        self.own.run_moves(&self.job.plan.moves);
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
                    self.keep(*k, *layer, Part::Index);
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

    fn width(&self, value: ValueId) -> usize {
        self.job.program.value(value).width()
    }

    /// The row of one token in a value.
    pub(crate) fn token(&self, value: ValueId, token: usize) -> &[f32] {
        let width = self.width(value);
        &self.value(value)[token * width..(token + 1) * width]
    }

    fn rows(&self, value: ValueId) -> std::slice::ChunksExact<'_, f32> {
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
            k.iter().for_each(|k| self.keep(*k, *layer, Part::Key));
            v.iter().for_each(|v| self.keep(*v, *layer, Part::Value));
        }
        if let Op::CompressedAttend { k, row, layer, .. } = op {
            self.keep(*k, *layer, Part::Key);
            row.iter().for_each(|row| self.keep(*row, *layer, Part::Index));
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
            Op::Norm { x, kind, weight, bias, eps, groups, .. } => {
                let group = width / groups;
                let parts = y.chunks_exact_mut(group).zip(self.value(*x).chunks_exact(group));
                for (at, (y, x)) in parts.enumerate() {
                    // One weight per element of the row, or one per element of a group that all
                    // groups share.
                    let of_group = |weight: &'a [f32]| {
                        if weight.len() == group { weight } else { &weight[at % groups * group..][..group] }
                    };
                    let weight = weight.map(|id| of_group(w.get(id)));
                    norm(y, x, *kind, weight, bias.map(|b| w.get(b)), *eps);
                }
            }
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
            Op::Slice { x, groups, start, width: part, .. } => {
                let x = self.value(*x).chunks_exact(self.width(*x) / groups);
                for (y, x) in y.chunks_exact_mut(*part).zip(x) {
                    y.copy_from_slice(&x[*start..start + part]);
                }
            }
            Op::Concat { a, b, groups, .. } => {
                let (a_width, b_width) = (self.width(*a) / groups, self.width(*b) / groups);
                let parts = self.value(*a).chunks_exact(a_width).zip(self.value(*b).chunks_exact(b_width));
                for (y, (a, b)) in y.chunks_exact_mut(a_width + b_width).zip(parts) {
                    y[..a_width].copy_from_slice(a);
                    y[a_width..].copy_from_slice(b);
                }
            }
            Op::Rotary { x, groups, start, rope, pairs, .. } => {
                y.copy_from_slice(self.value(*x));
                let rope = &self.job.program.ropes[rope.0 as usize];
                self.rotate(y, width / groups, *groups, *start, rope, *pairs);
            }
            Op::UpdateAndAttend { .. } => self.attend(op, y, width),
            Op::CompressedAttend { .. } => self.attend_compressed(op, y, width),
            Op::Gate { gate, up, activation, .. } => {
                // A gate of one element applies to the whole row.
                let repeat = width / self.width(*gate).max(1);
                let gates = self.value(*gate).iter().flat_map(|gate| std::iter::repeat_n(gate, repeat));
                let operands = gates.zip(self.value(*up));
                y.iter_mut().zip(operands).for_each(|(y, (gate, up))| *y = gated(*gate, *up, *activation));
            }
            Op::Scale { x, factor, by, .. } => {
                let factor = factor * by.map_or(1.0, |by| w.get(by)[0]);
                y.iter_mut().zip(self.value(*x)).for_each(|(y, x)| *y = x * factor);
            }
            Op::Add { a, b, .. } => {
                let operands = self.value(*a).iter().zip(self.value(*b));
                y.iter_mut().zip(operands).for_each(|(y, (a, b))| *y = a + b);
            }
            Op::Elementwise { x, function, .. } => {
                y.iter_mut().zip(self.value(*x)).for_each(|(y, x)| *y = elementwise(*x, *function));
            }
            Op::GroupDot { a, b, groups, .. } => {
                let width = self.width(*a) / groups;
                let operands = self.value(*a).chunks_exact(width).zip(self.value(*b).chunks_exact(width));
                y.iter_mut().zip(operands).for_each(|(y, (a, b))| *y = dot(a, b));
            }
            Op::HyperConnection { x, form, .. } => {
                let weights = HyperWeights { scale: w.get(form.scale), base: w.get(form.base) };
                let rows = y.chunks_exact_mut(width).zip(self.rows(*x));
                rows.for_each(|(y, x)| hyper_connection(x, form, weights, y));
            }
            Op::MixStreams { x, weights, streams, .. } => {
                let stream = self.width(*x) / streams;
                for (y, (x, weights)) in y.chunks_exact_mut(width).zip(self.rows(*x).zip(self.rows(*weights)))
                {
                    mix_streams(x, weights, stream, y);
                }
            }
            Op::Pool { x, pooling, .. } => self.pool(*x, *pooling, y, width),
            Op::Mixture { x, routes, experts, .. } => {
                if let Some(exchange) = self.job.expert_exchange {
                    let (routes, top_k) = (&self.routes[routes][..], self.job.program.top_k(op));
                    let rows = RoutedRows { x: self.value(*x), width, routes, top_k };
                    return expert_parallel_mixture(exchange, &rows, experts, w, y);
                }
                let rows = self.rows(*x).zip(&self.routes[routes]);
                for (y, (x, routes)) in y.chunks_exact_mut(width).zip(rows) {
                    mixture(x, routes, experts, w, y);
                }
            }
            Op::Collect { x, how, .. } => match (how, self.job.ranks) {
                (Collective::Join, Some(ranks)) => {
                    AllGatherBuffers::default().all_gather(
                        ranks,
                        self.value(*x),
                        self.width(*x),
                        y,
                        width,
                    )?;
                }
                (Collective::Sum, Some(ranks)) => {
                    y.copy_from_slice(self.value(*x));
                    ranks.all_reduce(y)?;
                }
                (_, None) => y.copy_from_slice(self.value(*x)),
            },
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
            Op::Route { .. }
            | Op::SelectKeys { .. }
            | Op::ShortConv { .. }
            | Op::GatedDelta { .. }
            | Op::SelectiveScan { .. }
            | Op::NgramEmbed { .. } => {}
        }
        Ok(())
    }

    fn linear(&self, x: ValueId, matrix: &Matrix, y: &mut [f32]) {
        self.job.weights.multiply(matrix, self.value(x), matrix.inputs, y, matrix.outputs);
    }

    /// Writes each token's row of a value to its KV slot.
    fn keep(&mut self, value: ValueId, layer: LayerId, part: Part) {
        let Some(buffer) = self.job.buffers.of_value[value.0 as usize] else { return };
        let rows = self.memory[buffer].chunks_exact(self.width(value));
        for (row, slot) in rows.zip(&self.job.plan.write_slots) {
            self.own.write(layer, part, *slot, row);
        }
    }

    /// RoPE in place. `group` is the width of a head, `start` its first rotated element.
    fn rotate(&self, y: &mut [f32], group: usize, groups: usize, start: usize, rope: &Rope, pairs: Pairs) {
        let positions = self.job.plan.positions.iter().zip(&self.row_of);
        for (heads, (position, row)) in y.chunks_exact_mut(group * groups).zip(positions) {
            let turns = turns(rope, *position, self.job.final_lens[*row]);
            for head in heads.chunks_exact_mut(group) {
                rotate_pairs(&mut head[start..start + rope.dims()], &turns, pairs);
            }
        }
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
        for (token, reads, visible) in for_each_query(self.job.plan, &self.reads, facts) {
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
        for (token, reads, visible) in for_each_query(self.job.plan, &self.reads, facts) {
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
        for (token, reads, visible) in for_each_query(self.job.plan, &self.reads, facts) {
            let weights = weights.map(|weights| self.token(weights, token));
            let final_len = self.job.final_lens[self.row_of[token]];
            selections[token] = indexer.select(reads, &visible, self.token(q, token), weights, final_len);
        }
        selections
    }
}

/// RMSNorm or LayerNorm of one group.
fn norm(y: &mut [f32], x: &[f32], kind: NormKind, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) {
    let weights = (0..x.len()).map(|i| weight.map_or(1.0, |weight| weight[i]));
    let n = x.len() as f32;
    match kind {
        NormKind::Rms | NormKind::RmsPlusOne => {
            let plus = if kind == NormKind::RmsPlusOne { 1.0 } else { 0.0 };
            let factor = 1.0 / (dot(x, x) / n + eps).sqrt();
            y.iter_mut().zip(x).zip(weights).for_each(|((y, x), w)| *y = x * factor * (plus + w));
        }
        NormKind::Layer => {
            let mean = x.iter().sum::<f32>() / n;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
            let factor = 1.0 / (variance + eps).sqrt();
            y.iter_mut().zip(x).zip(weights).for_each(|((y, x), w)| *y = (x - mean) * factor * w);
            bias.into_iter().for_each(|bias| y.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
    }
}

//! Dispatch of one op to its kernel: embedding, norms, rotary, attention, MoE, collectives.

use crate::exec::run::Run;
use crate::exec::run::memory::Memory;
use crate::gemm::linear::Operand;
use crate::gemm::output::Output;
use crate::memory::buffer::Buffer;
use crate::ops::expert_parallel::{RoutedRows, expert_parallel_mixture};
use crate::ops::hyper_connection::{HyperWeights, hyper_connection, mix_streams};
use crate::ops::mixture::{Experts, RoutingVectors, mixture, route};
use crate::rowwise::{
    RotaryPart, activate, activate_scalar_gate, add, elementwise, group_dot, norm, rotate, scale,
};
use crate::threads::rows::{DisjointRows, for_each_row};
use crate::weights::linear::OpWeights;
use kvasir_kv::Token;
use kvasir_program::{Collective, Holds, Op, RopeId, ValueId, WeightId};

impl Run<'_> {
    /// Computes row `row` of a row-wise op (norm, gate, scale, add, hyper-connection) into `y`.
    pub(crate) fn row(&self, op: &Op, values: &[Buffer], row: usize, y: &mut [f32]) {
        let (isa, width) = (self.model.isa, y.len());
        let x = |v: ValueId| &self.value(values, v)[row * width..(row + 1) * width];
        // An operand whose width is not that of the result.
        let own_width = |v: ValueId| {
            let width = self.width(v);
            &self.value(values, v)[row * width..(row + 1) * width]
        };
        match op {
            Op::Norm { x: v, kind, weight, bias, eps, groups, .. } => {
                let vector = |id: &WeightId| &self.model.vectors[id][..];
                let (w, b) = (weight.as_ref().map(vector), bias.as_ref().map(vector));
                norm(isa, x(*v), y, width / groups, *kind, w, b, *eps);
            }
            Op::Gate { gate, up, activation, .. } if self.width(*gate) == width => {
                activate(isa, x(*gate), x(*up), *activation, y);
            }
            Op::Gate { gate, up, activation, .. } => {
                let gate = self.value(values, *gate)[row];
                activate_scalar_gate(isa, gate, x(*up), *activation, y);
            }
            Op::Scale { x: v, factor, by, .. } => {
                let factor = factor * by.map_or(1.0, |by| self.model.vectors[&by][0]);
                scale(isa, x(*v), factor, y);
            }
            Op::Add { a, b, .. } => add(isa, x(*a), x(*b), y),
            Op::Elementwise { x: v, function, .. } => elementwise(isa, x(*v), *function, y),
            Op::GroupDot { a, b, groups, .. } => {
                group_dot(isa, own_width(*a), own_width(*b), self.width(*a) / groups, y);
            }
            Op::HyperConnection { x: v, form, .. } => {
                let vector = |id: WeightId| &self.model.vectors[&id][..];
                let weights = HyperWeights { scale: vector(form.scale), base: vector(form.base) };
                hyper_connection(x(*v), form, weights, y);
            }
            Op::MixStreams { x: v, weights, streams, .. } => {
                mix_streams(isa, own_width(*v), own_width(*weights), self.width(*v) / streams, y);
            }
            _ => {}
        }
    }

    /// Runs op `op`, and inside it the op `before` it if that is fused into it.
    pub(crate) fn op(&self, op: &Op, before: Option<&Op>, weights: &OpWeights, m: &mut Memory) {
        let threads = &*self.model.threads;
        let out = op.out();
        let width = self.width(out);
        let n = self.rows(out);
        let values = &m.values;
        let x = |v: ValueId| self.value(values, v);
        // SAFETY: only this op writes its output now.
        let y = unsafe { self.value_mut(values, out) };
        let parts = DisjointRows::new(y, width);
        // SAFETY: `for_each_row` hands each row to one thread.
        let row_of = |row: usize| unsafe { parts.row(row) };
        match op {
            Op::Embed { table, scale, .. } => {
                for_each_row(threads, n, &|_, row| self.embed(*table, self.tokens[row], *scale, row_of(row)))
            }
            Op::Lookup { table, index, .. } => {
                for_each_row(threads, n, &|_, row| self.lookup(*table, *index, row, row_of(row)));
            }
            Op::Pool { x: v, pooling, .. } => {
                let x = x(*v);
                for_each_row(threads, n, &|_, row| self.pool(x, *pooling, row, row_of(row)));
            }
            Op::Hidden { .. } => y.copy_from_slice(self.hidden),
            Op::Norm { .. }
            | Op::Gate { .. }
            | Op::Scale { .. }
            | Op::Add { .. }
            | Op::GroupDot { .. }
            | Op::HyperConnection { .. }
            | Op::MixStreams { .. }
            | Op::Elementwise { .. } => {
                for_each_row(threads, n, &|_, row| self.row(op, values, row, row_of(row)));
            }
            // Run by `products`.
            Op::Linear { .. } | Op::Head { .. } => {}
            Op::GroupLinear { .. } => self.group_linear(op, weights, m),
            Op::Slice { .. } | Op::Concat { .. } => self.copy_parts(op, values, &parts),
            Op::Rotary { .. } => self.rotary(op, before, m),
            Op::SelectKeys { .. } => self.select_keys(op, m),
            Op::CompressedAttend { .. } => self.attend_compressed(op, m),
            Op::UpdateAndAttend { .. } => self.attend(op, m),
            // Run by `recurrent`.
            Op::ShortConv { .. }
            | Op::NgramEmbed { .. }
            | Op::GatedDelta { .. }
            | Op::SelectiveScan { .. } => {}
            Op::Route { scores, routing, .. } => {
                let from = self.width(*scores);
                let correction = routing.correction.map(|c| &self.model.vectors[&c][..]);
                let scales = routing.expert_scale.map(|s| &self.model.vectors[&s][..]);
                let table = routing.token_table.map(|table| &self.model.vectors[&table][..]);
                // Routing by token id runs for all tokens of the step, so that row i is token i.
                let token_experts = |row: usize| {
                    let token = self.tokens[row] as usize;
                    table.map(|table| &table[token * routing.top_k..][..routing.top_k])
                };
                let route_row = |(row, scores): (usize, &[f32])| {
                    let vectors = RoutingVectors { correction, scales, experts: token_experts(row) };
                    route(scores, routing, vectors)
                };
                let routes = x(*scores).chunks_exact(from).enumerate().map(route_row).collect();
                m.routes.push((out, routes));
            }
            Op::Mixture { .. } => self.mix_experts(op, weights, m),
            Op::Collect { .. } => self.collect(op, m),
            Op::Gather { x: v, .. } => {
                let x = x(*v);
                for (y, token) in y.chunks_exact_mut(width.max(1)).zip(self.sampled) {
                    y.copy_from_slice(&x[token * width..(token + 1) * width]);
                }
            }
        }
        debug_assert!(matches!(self.model.program.value(out).holds, Holds::Numbers(_)) || width == 0);
    }

    /// Multiplies each group of a row by the matrix of the group.
    fn group_linear(&self, op: &Op, weights: &OpWeights, m: &mut Memory) {
        let (Op::GroupLinear { x, out, .. }, OpWeights::Many(all)) = (op, weights) else { return };
        let (stride, x) = (self.width(*x), self.value(&m.values, *x));
        let (rows, width) = (self.rows(*out), self.width(*out));
        // SAFETY: only this op writes its output now.
        let y = unsafe { self.value_mut(&m.values, *out) };
        let (mut from, mut to) = (0, 0);
        for l in all {
            let x = Operand::Rows(&x[from..], stride);
            let out = Output::new(&mut y[to..], rows, width, l.outputs);
            m.prepared.multiply(&self.model.threads, &mut [Some((l, out))], None, &x);
            (from, to) = (from + l.inputs, to + l.outputs);
        }
        m.prepared.invalidate();
    }

    /// Runs `Slice` or `Concat`, which copy parts of the groups of each row.
    fn copy_parts(&self, op: &Op, values: &[Buffer], parts: &DisjointRows<'_>) {
        let (threads, n, width) = (&*self.model.threads, self.rows(op.out()), self.width(op.out()));
        // SAFETY: `for_each_row` hands each row to one thread.
        let row_of = |row: usize| unsafe { parts.row(row) };
        match op {
            Op::Slice { x, groups, start, width: part, .. } => {
                let (x, from) = (self.value(values, *x), self.width(*x));
                for_each_row(threads, n, &|_, row| {
                    let x = x[row * from..(row + 1) * from].chunks_exact(from / groups);
                    for (y, x) in row_of(row).chunks_exact_mut(*part).zip(x) {
                        y.copy_from_slice(&x[*start..start + part]);
                    }
                });
            }
            Op::Concat { a, b, groups, .. } => {
                let (a_width, b_width) = (self.width(*a), self.width(*b));
                let (a, b) = (self.value(values, *a), self.value(values, *b));
                for_each_row(threads, n, &|_, row| {
                    let a = a[row * a_width..(row + 1) * a_width].chunks_exact(a_width / groups);
                    let b = b[row * b_width..(row + 1) * b_width].chunks_exact(b_width / groups);
                    for (y, (a, b)) in row_of(row).chunks_exact_mut(width / groups).zip(a.zip(b)) {
                        y[..a.len()].copy_from_slice(a);
                        y[a.len()..].copy_from_slice(b);
                    }
                });
            }
            _ => {}
        }
    }

    /// Applies RoPE to the heads of each row, after the op `before` if it is fused into this one.
    fn rotary(&self, op: &Op, before: Option<&Op>, m: &mut Memory) {
        let Op::Rotary { x, groups, start, rope, pairs, out } = op else { return };
        self.fill_rotary_table(*rope, &mut m.rotary_tables);
        let (width, x) = (self.width(*out), self.value(&m.values, *x));
        let dims = self.model.program.ropes[rope.0 as usize].dims();
        let rotary_tables = &m.rotary_tables[rope.0 as usize];
        let part = RotaryPart { group: width / groups, start: *start, pairs: *pairs };
        // SAFETY: only this op writes its output now.
        let parts = DisjointRows::new(unsafe { self.value_mut(&m.values, *out) }, width);
        for_each_row(&self.model.threads, self.rows(*out), &|_, row| {
            // SAFETY: `for_each_row` hands each row to one thread.
            let y = unsafe { parts.row(row) };
            match before {
                Some(before) => self.row(before, &m.values, row, y),
                None => y.copy_from_slice(&x[row * width..(row + 1) * width]),
            }
            let (cos, sin) = rotary_tables[row * dims..(row + 1) * dims].split_at(dims / 2);
            rotate(self.model.isa, y, part, cos, sin);
        });
    }

    /// Computes a mixture of experts by the routes of its rows.
    fn mix_experts(&self, op: &Op, weights: &OpWeights, m: &mut Memory) {
        let (Op::Mixture { x, routes, experts, out }, OpWeights::Experts { gate, up, down }) = (op, weights)
        else {
            return;
        };
        let Some((_, routes)) = m.routes.iter().find(|(of, _)| of == routes) else { return };
        let (threads, isa) = (&*self.model.threads, self.model.isa);
        let (activation, first) = (experts.activation, experts.first);
        let experts = Experts { threads, isa, gate, up, down, activation, first };
        let (x, memory) = (self.value(&m.values, *x), &mut m.mixture);
        // SAFETY: only this op writes its output now.
        let y = unsafe { self.value_mut(&m.values, *out) };
        match self.expert_exchange {
            None => mixture(&experts, x, routes, memory, y),
            Some(exchange) => {
                let (width, top_k) = (self.width(*out), self.model.program.top_k(op));
                let rows = RoutedRows { x, width, routes, top_k };
                m.error = expert_parallel_mixture(&experts, exchange, &rows, memory, y).err();
            }
        }
    }

    /// All-gathers (`Join`) or all-reduces (`Sum`) rows over the ranks. Without ranks, copies them.
    fn collect(&self, op: &Op, m: &mut Memory) {
        let Op::Collect { x, how, out } = op else { return };
        let rows = self.value(&m.values, *x);
        // SAFETY: only this op writes its output now.
        let y = unsafe { self.value_mut(&m.values, *out) };
        match (how, self.ranks) {
            (Collective::Join, Some(ranks)) => {
                let (part, width) = (self.width(*x), self.width(*out));
                m.error = m.gather_buffers.all_gather(ranks, rows, part, y, width).err();
            }
            (Collective::Sum, Some(ranks)) => {
                y.copy_from_slice(rows);
                m.error = ranks.all_reduce(y).err();
            }
            (_, None) => y.copy_from_slice(rows),
        }
    }

    /// Embedding lookup of one token.
    pub(crate) fn embed(&self, table: WeightId, token: Token, scale: f32, y: &mut [f32]) {
        let program = &self.model.program;
        let weight = program.weight(program.resolve(table));
        // A row of the table was read when the model was loaded, and tokens are below its length,
        // so this does not fail.
        if self.model.source.row(&weight.name, &weight.shape, token as usize, y).is_err() {
            y.fill(f32::NAN);
        } else if scale != 1.0 {
            y.iter_mut().for_each(|y| *y *= scale);
        }
    }

    /// Fills the rotary table (cosines and sines of all tokens) of a rope, unless it is filled.
    fn fill_rotary_table(&self, id: RopeId, rotary_tables: &mut [Vec<f32>]) {
        let rope = &self.model.program.ropes[id.0 as usize];
        let rotary_tables = &mut rotary_tables[id.0 as usize];
        if !rotary_tables.is_empty() {
            return;
        }
        rotary_tables.resize(self.tokens.len() * rope.dims(), 0.0);
        let parts = DisjointRows::new(rotary_tables, rope.dims());
        for_each_row(&self.model.threads, self.tokens.len(), &|_, row| {
            // SAFETY: each row goes to one thread.
            let (cos, sin) = unsafe { parts.row(row) }.split_at_mut(rope.dims() / 2);
            let frequencies = rope.frequencies(self.final_lens[row]);
            for ((c, s), f) in cos.iter_mut().zip(sin).zip(frequencies) {
                (*c, *s) = rope.turn(*f, self.plan.positions[row]);
            }
        });
    }
}

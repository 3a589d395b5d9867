//! A program's ops, one after the other, over one step.

use crate::attention::{Attend, Views, attend_exact};
use crate::buffer::Buffer;
use crate::dense::Taken;
use crate::matmul::{AT_ONCE, Output};
use crate::mixture::{MixtureMemory, Routes, mixture, route};
use crate::model::{CpuModel, OpWeights};
use crate::parts::{Parts, by_rows};
use crate::pool::{Pool, Rows as PoolRows};
use crate::precision::Precision;
use crate::prepared::{Operand, Prepared};
use crate::rows::{self, Turn};
use crate::select::select;
use kvasir_exec::Ranks;
use kvasir_kv::{Plan, Slot, Token};
use kvasir_program::{Collective, Holds, Op, RopeId, Rows, ValueId};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Memory of an executor; made once, for the largest step.
pub(crate) struct Memory {
    values: Vec<Buffer>,
    prepared: Prepared,
    mixture: MixtureMemory,
    pub(crate) views: Views,
    /// What is seen in rings, by window.
    rings: Vec<(u32, Views)>,
    routes: Vec<(ValueId, Vec<Routes>)>,
    selections: Vec<(ValueId, Views)>,
    /// Per rope and token: cosines, then sines.
    turns: Vec<Vec<f32>>,
    pub(crate) kept: Vec<u8>,
}

impl Memory {
    pub(crate) fn new(model: &CpuModel, tokens: usize) -> io::Result<Self> {
        let widest = model.program.values.iter().map(|v| v.width()).max().unwrap_or(0);
        let taken = if model.precision == Precision::Close { Taken::Twice } else { Taken::Once };
        // Matrices write down columns of rows that lie pages apart.
        let size = |(width, _): &(usize, Rows)| Buffer::in_large_pages(width * tokens * 4);
        Ok(Self {
            values: model.how.buffers.buffers.iter().map(size).collect::<io::Result<_>>()?,
            prepared: Prepared::new(tokens, widest, taken)?,
            mixture: MixtureMemory::new(&model.program, tokens, taken)?,
            views: Views::default(),
            rings: Vec::new(),
            routes: Vec::new(),
            selections: Vec::new(),
            turns: vec![Vec::new(); model.program.ropes.len()],
            kept: Vec::new(),
        })
    }

    /// All that fits into a buffer of values; what the last step wrote comes first.
    pub(crate) fn numbers(&self, buffer: usize) -> &[f32] {
        let values = &self.values[buffer];
        // SAFETY: the bytes are the buffer's own, nothing writes them while it is borrowed, and any bytes are floats.
        unsafe { std::slice::from_raw_parts(values.ptr().cast(), values.len() / 4) }
    }
}

/// One step; everything in it is checked.
pub(crate) struct Run<'a> {
    pub(crate) model: &'a CpuModel,
    pub(crate) plan: &'a Plan,
    pub(crate) tokens: &'a [Token],
    /// What programs of prediction layers go on from: a row per token.
    pub(crate) hidden: &'a [f32],
    /// Longest that the sequence of each token may become.
    pub(crate) final_lens: &'a [u32],
    /// Tokens whose logits are wanted.
    pub(crate) sampled: &'a [usize],
    /// Slots that are written, each once, with the token whose rows they get.
    pub(crate) writes: &'a [(Slot, u32)],
    /// The session's own pool first.
    pub(crate) pools: &'a [Arc<Pool>],
    /// Those that have other parts of the model.
    pub(crate) ranks: Option<&'a dyn Ranks>,
}

impl Run<'_> {
    /// Runs all ops; the logits can be read from `m` afterwards.
    ///
    /// # Safety
    /// All slots that are named must exist in their pools, `writes` name each once, memory be made for so many tokens of the model, and nobody else may write
    /// what is read of pools, or use what is written, meanwhile.
    pub(crate) unsafe fn all(&self, m: &mut Memory) {
        m.prepared.forget();
        m.routes.clear();
        m.selections.clear();
        m.turns.iter_mut().for_each(Vec::clear);
        self.look_into_rings(m);
        let mut done = 0;
        for (at, (op, weights)) in self.model.program.ops.iter().zip(&self.model.weights).enumerate() {
            // Of a part of a prompt nothing may be sampled: a matrix times no rows would still be read.
            let idle = !matches!(weights, OpWeights::None) && self.rows(op.out()) == 0;
            let how = &self.model.how;
            if at < done || how.merged[at] || idle {
                continue;
            }
            let siblings = how.siblings[at];
            if how.gated[at] && self.gate(at, m) {
                done = at + 3;
            } else if siblings > 0 {
                self.products(at..at + siblings, m);
                done = at + siblings;
            } else {
                self.op((op, self.before(at)), weights, m);
            }
        }
    }

    /// The op that runs inside op `at`.
    fn before(&self, at: usize) -> Option<&Op> {
        at.checked_sub(1)
            .filter(|before| self.model.how.merged[*before])
            .map(|before| &self.model.program.ops[before])
    }

    /// Runs neighbouring matrices that take the same rows.
    fn products(&self, ops: Range<usize>, m: &mut Memory) {
        let values = &m.values;
        let make =
            self.before(ops.start).map(|op| move |row: usize, x: &mut [f32]| self.row(op, values, row, x));
        let product = |at: usize| {
            let (Op::Linear { out, .. } | Op::Head { out, .. }, OpWeights::One(l)) =
                (&self.model.program.ops[at], &self.model.weights[at])
            else {
                return None;
            };
            // SAFETY: no two of them have a result in one place, and only they write now.
            let y = unsafe { self.value_mut(values, *out) };
            Some((l, Output::new(y, self.rows(*out), self.width(*out), l.outputs)))
        };
        // An array, not a list: a step allocates nothing.
        let mut wanted = [const { None }; AT_ONCE];
        wanted.iter_mut().zip(ops.clone()).for_each(|(wanted, at)| *wanted = product(at));
        let [Some((first, _)), ..] = &wanted else { return };
        let Some(x) = self.model.program.ops[ops.start].inputs().next() else { return };
        let rows = match &make {
            Some(make) => Operand::Made(make),
            None => Operand::Rows(self.value(values, x), first.inputs),
        };
        let units = (&*self.model.team, self.model.level);
        m.prepared.multiply(units, &mut wanted, Some(x), &rows);
        if let Op::Head { out, soft_cap: Some(cap), .. } = &self.model.program.ops[ops.start] {
            // SAFETY: only this writes it now.
            let parts = Parts::new(unsafe { self.value_mut(values, *out) }, self.width(*out));
            by_rows(units.0, self.rows(*out), &|row| {
                // SAFETY: each row goes to one thread.
                unsafe { parts.row(row) }.iter_mut().for_each(|y| *y = cap * (*y / cap).tanh());
            });
        }
    }

    /// Runs a gate, its partner and what joins them as one, if that pays.
    fn gate(&self, at: usize, m: &mut Memory) -> bool {
        if let [Op::Linear { x, .. }, _, Op::Gate { activation, out, .. }] =
            &self.model.program.ops[at..at + 3]
            && let [OpWeights::One(gate), OpWeights::One(up)] = &self.model.weights[at..at + 2]
        {
            let values = &m.values;
            let make =
                self.before(at).map(|op| move |row: usize, x: &mut [f32]| self.row(op, values, row, x));
            let rows = match &make {
                Some(make) => Operand::Made(make),
                None => Operand::Rows(self.value(values, *x), gate.inputs),
            };
            let units = (&*self.model.team, self.model.level);
            return m.prepared.gate(units, (gate, up, *activation), (*x, rows), self.rows(*out), *out);
        }
        false
    }

    fn width(&self, value: ValueId) -> usize {
        self.model.program.value(value).width()
    }

    fn rows(&self, value: ValueId) -> usize {
        if self.model.program.value(value).rows == Rows::Tokens {
            self.tokens.len()
        } else {
            self.sampled.len()
        }
    }

    /// Where a value's numbers lie, row after row, and how many there are.
    fn place(&self, values: &[Buffer], value: ValueId) -> (*mut f32, usize) {
        let Some(buffer) = self.model.how.buffers.of_value[value.0 as usize] else {
            return (std::ptr::dangling_mut(), 0);
        };
        let len = self.rows(value) * self.width(value);
        assert!(len * 4 <= values[buffer].len(), "a buffer is as large as the largest step needs");
        (values[buffer].ptr().cast_mut().cast(), len)
    }

    /// A value's numbers, row after row.
    pub(crate) fn value<'m>(&self, values: &'m [Buffer], value: ValueId) -> &'m [f32] {
        let (at, len) = self.place(values, value);
        // SAFETY: so many numbers are there; any bytes are floats.
        unsafe { std::slice::from_raw_parts(at, len) }
    }

    /// A result's numbers, to be written.
    ///
    /// # Safety
    /// Nobody else may have them meanwhile. The plan of buffers never gives a result the place of an operand.
    #[allow(clippy::mut_from_ref)]
    unsafe fn value_mut<'m>(&self, values: &'m [Buffer], value: ValueId) -> &'m mut [f32] {
        let (at, len) = self.place(values, value);
        // SAFETY: as for reading; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts_mut(at, len) }
    }

    /// The logits.
    pub(crate) fn logits<'m>(&self, m: &'m Memory) -> &'m [f32] {
        self.model.program.logits().map_or(&[], |v| self.value(&m.values, v))
    }

    /// What the logits were made of.
    pub(crate) fn head_input<'m>(&self, m: &'m Memory) -> &'m [f32] {
        self.model.program.head_input().map_or(&[], |v| self.value(&m.values, v))
    }

    /// Row `row` of a result whose rows depend on the operands' row of the same number alone.
    fn row(&self, op: &Op, values: &[Buffer], row: usize, y: &mut [f32]) {
        let (level, width) = (self.model.level, y.len());
        let x = |v: ValueId| &self.value(values, v)[row * width..(row + 1) * width];
        match op {
            Op::Norm { x: v, kind, weight, bias, eps, groups, .. } => {
                let (w, b) = (&self.model.vectors[weight], bias.as_ref().map(|b| &self.model.vectors[b][..]));
                rows::norm(level, x(*v), y, width / groups, *kind, w, b, *eps);
            }
            Op::Gate { gate, up, activation, .. } => rows::gate(level, x(*gate), x(*up), *activation, y),
            Op::Add { a, b, .. } => rows::add(level, x(*a), x(*b), y),
            _ => {}
        }
    }

    /// Runs an op, and inside it the one `before` it, if that is merged into it.
    fn op(&self, (op, before): (&Op, Option<&Op>), weights: &OpWeights, m: &mut Memory) {
        let (team, level) = (&*self.model.team, self.model.level);
        let out = op.out();
        let width = self.width(out);
        let n = self.rows(out);
        let values = &m.values;
        let x = |v: ValueId| self.value(values, v);
        // SAFETY: only this op writes it now.
        let y = unsafe { self.value_mut(values, out) };
        let parts = Parts::new(y, width);
        // SAFETY: `by_rows` hands each row to one thread.
        let row_of = |row: usize| unsafe { parts.row(row) };
        match op {
            Op::Embed { table, scale, .. } => {
                by_rows(team, n, &|row| self.embed(*table, self.tokens[row], *scale, row_of(row)))
            }
            Op::Hidden { .. } => y.copy_from_slice(self.hidden),
            Op::Norm { .. } | Op::Gate { .. } | Op::Add { .. } => {
                by_rows(team, n, &|row| self.row(op, values, row, row_of(row)));
            }
            // Matrices have a way of their own.
            Op::Linear { .. } | Op::Head { .. } => {}
            Op::GroupLinear { x: v, .. } => {
                let OpWeights::Many(all) = weights else { return };
                let (stride, x) = (self.width(*v), x(*v));
                let (mut from, mut to) = (0, 0);
                for l in all {
                    let x = Operand::Rows(&x[from..], stride);
                    let out = Output::new(&mut y[to..], n, width, l.outputs);
                    m.prepared.multiply((team, level), &mut [Some((l, out))], None, &x);
                    (from, to) = (from + l.inputs, to + l.outputs);
                }
                m.prepared.forget();
            }
            Op::Slice { x: v, groups, start, width: part, .. } => {
                let (x, from) = (x(*v), self.width(*v));
                by_rows(team, n, &|row| {
                    let x = x[row * from..(row + 1) * from].chunks_exact(from / groups);
                    for (y, x) in row_of(row).chunks_exact_mut(*part).zip(x) {
                        y.copy_from_slice(&x[*start..start + part]);
                    }
                });
            }
            Op::Concat { a, b, groups, .. } => {
                let (a_width, b_width) = (self.width(*a), self.width(*b));
                let (a, b) = (x(*a), x(*b));
                by_rows(team, n, &|row| {
                    let a = a[row * a_width..(row + 1) * a_width].chunks_exact(a_width / groups);
                    let b = b[row * b_width..(row + 1) * b_width].chunks_exact(b_width / groups);
                    for (y, (a, b)) in row_of(row).chunks_exact_mut(width / groups).zip(a.zip(b)) {
                        y[..a.len()].copy_from_slice(a);
                        y[a.len()..].copy_from_slice(b);
                    }
                });
            }
            Op::Rotary { x: v, groups, start, rope, pairs, .. } => {
                self.make_turns(*rope, &mut m.turns);
                let x = x(*v);
                let dims = self.model.program.ropes[rope.0 as usize].dims();
                let turns = &m.turns[rope.0 as usize];
                let turn = Turn { group: width / groups, start: *start, pairs: *pairs };
                by_rows(team, n, &|row| {
                    let y = row_of(row);
                    match before {
                        Some(before) => self.row(before, values, row, y),
                        None => y.copy_from_slice(&x[row * width..(row + 1) * width]),
                    }
                    let (cos, sin) = turns[row * dims..(row + 1) * dims].split_at(dims / 2);
                    rows::rotate(level, y, turn, cos, sin);
                });
            }
            Op::SelectKeys { q, k, weights, layer, top_k, .. } => {
                let Some(index) = &self.pools[0].layers[layer.0 as usize].index else { return };
                self.keep(None, &[Some((index, x(*k)))]);
                let operands =
                    [(*q, self.width(*q)), (*weights, self.width(*weights))].map(|(v, w)| (x(v), w));
                let facts = &self.model.program.layers[layer.0 as usize];
                let mut views = Views::default();
                let layer = layer.0 as usize;
                // SAFETY: the plan's slots were checked, and writes come before reads.
                unsafe {
                    select((team, level), self.plan, self.pools, layer, facts, operands, *top_k, &mut views);
                }
                m.selections.push((out, views));
            }
            Op::UpdateAndAttend { .. } => self.attend(op, m, y, width),
            Op::Route { scores, routing, .. } => {
                let from = self.width(*scores);
                let correction = routing.correction.map(|c| &self.model.vectors[&c][..]);
                let routes = x(*scores).chunks_exact(from).map(|s| route(s, routing, correction)).collect();
                m.routes.push((out, routes));
            }
            Op::Mixture { x: v, routes, experts, .. } => {
                let OpWeights::Experts { gate, up, down } = weights else { return };
                let Some((_, routes)) = m.routes.iter().find(|(of, _)| of == routes) else { return };
                let activation = experts.activation;
                mixture(
                    (team, level),
                    [gate, up, down],
                    activation,
                    x(*v),
                    routes,
                    &mut m.mixture,
                    (y, width),
                );
            }
            Op::Collect { x: v, how, .. } => match (how, self.ranks) {
                (Collective::Join, Some(ranks)) => ranks.join(x(*v), self.width(*v), y),
                (Collective::Sum, Some(ranks)) => {
                    y.copy_from_slice(x(*v));
                    ranks.sum(y);
                }
                (_, None) => y.copy_from_slice(x(*v)),
            },
            Op::Gather { x: v, .. } => {
                let x = x(*v);
                for (y, token) in y.chunks_exact_mut(width.max(1)).zip(self.sampled) {
                    y.copy_from_slice(&x[token * width..(token + 1) * width]);
                }
            }
        }
        debug_assert!(matches!(self.model.program.value(out).holds, Holds::Numbers(_)) || width == 0);
    }

    fn embed(&self, table: kvasir_program::WeightId, token: Token, scale: f32, y: &mut [f32]) {
        let program = &self.model.program;
        let weight = program.weight(program.resolve(table));
        // One was read when the model was loaded, and tokens are below their number: it is there.
        if self.model.source.row(&weight.name, &weight.shape, token as usize, y).is_err() {
            y.fill(f32::NAN);
        } else if scale != 1.0 {
            y.iter_mut().for_each(|y| *y *= scale);
        }
    }

    /// Cosines and sines of all tokens for one rope.
    fn make_turns(&self, id: RopeId, turns: &mut [Vec<f32>]) {
        let rope = &self.model.program.ropes[id.0 as usize];
        let turns = &mut turns[id.0 as usize];
        if !turns.is_empty() {
            return;
        }
        turns.resize(self.tokens.len() * rope.dims(), 0.0);
        let parts = Parts::new(turns, rope.dims());
        by_rows(&self.model.team, self.tokens.len(), &|row| {
            // SAFETY: each row goes to one thread.
            let (cos, sin) = unsafe { parts.row(row) }.split_at_mut(rope.dims() / 2);
            let frequencies = rope.frequencies(self.final_lens[row]);
            for ((c, s), f) in cos.iter_mut().zip(sin).zip(frequencies) {
                (*c, *s) = rope.turn(*f, self.plan.positions[row]);
            }
        });
    }

    /// Makes the views of layers that keep rings, once for each window.
    fn look_into_rings(&self, m: &mut Memory) {
        let layers = self.pools[0].layers.iter().zip(&self.model.program.layers);
        let mut seen = 0;
        for (window, ring) in layers.filter_map(|(pool, facts)| facts.window.zip(pool.ring)) {
            if m.rings[..seen].iter().any(|(of, _)| *of == window) {
                continue;
            }
            if seen == m.rings.len() {
                m.rings.push((window, Views::default()));
            }
            m.rings[seen].0 = window;
            m.rings[seen].1.of_ring(self.plan, window, ring);
            seen += 1;
        }
    }

    /// Writes each token's rows of some values to its slot, or to its place in the layer's ring.
    fn keep(&self, ring: Option<Slot>, all: &[Option<(&PoolRows, &[f32])>]) {
        let tokens = self.tokens.len().max(1);
        by_rows(&self.model.team, self.writes.len(), &|i| {
            let (slot, row) = self.writes[i];
            let slot = ring.map_or(slot, |ring| self.plan.positions[row as usize] % ring);
            for (pool, x) in all.iter().flatten() {
                let width = x.len() / tokens;
                let x = &x[row as usize * width..][..width];
                // SAFETY: slots were checked, and each is named once; so is each place in a ring, which is no shorter than a step.
                unsafe { pool.write(self.model.level, slot, x) };
            }
        });
    }

    fn attend(&self, op: &Op, m: &Memory, y: &mut [f32], width: usize) {
        let Op::UpdateAndAttend { q, k, v, layer, scale, soft_cap, sinks, selection, .. } = op else {
            return;
        };
        let facts = &self.model.program.layers[layer.0 as usize];
        let pool = &self.pools[0].layers[layer.0 as usize];
        let x = |v: ValueId| self.value(&m.values, v);
        let values = pool.values.as_ref().zip(*v);
        self.keep(pool.ring, &[Some((&pool.keys, x(*k))), values.map(|(rows, v)| (rows, x(v)))]);
        let selected = selection.and_then(|s| m.selections.iter().find(|(of, _)| *of == s));
        let in_ring =
            pool.ring.and(facts.window).and_then(|window| m.rings.iter().find(|(of, _)| *of == window));
        let views = match (selected, in_ring) {
            (Some((_, views)), _) | (None, Some((_, views))) => views,
            (None, None) => &m.views,
        };
        let q_stride = self.width(*q);
        let attend = Attend {
            q: self.value(&m.values, *q),
            q_stride,
            heads: q_stride / facts.key_dim.max(1),
            facts,
            layer: layer.0 as usize,
            pools: self.pools,
            views,
            positions: &self.plan.positions,
            scale: *scale,
            soft_cap: *soft_cap,
            sinks: sinks.map(|s| &self.model.vectors[&s][..]),
        };
        let results = Parts::new(y, width);
        let (team, level) = (&*self.model.team, self.model.level);
        // SAFETY: the plan's slots were checked, and writes come before reads; the results are this op's alone.
        unsafe {
            match self.model.precision {
                Precision::Exact | Precision::Close => attend_exact(&attend, team, level, &results),
                Precision::Auto => attend.run(team, level, &results),
            }
        }
    }
}

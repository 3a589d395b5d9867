//! Writes the program of one rank, or that of all ranks in turn, from a [`Plan`].
//!
//! One rank's program makes its own parts and meets the others in `Collect`. The program of all
//! ranks makes the parts one after the other and adds them in rank order, so that it has the ranks'
//! bits in one process. Whole values are made once in either.

use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::op::{Collective, Experts, Op};
use crate::ir::program::{Program, Shard};
use crate::ir::value::{Holds, Value, ValueId};
use crate::passes::split::cuts::{self, Cut};
use crate::passes::split::plan::{Plan, State};
use std::collections::HashMap;
use std::ops::Range;

/// Writes a program of some ranks.
pub(crate) struct Emitter<'a> {
    whole: &'a Program,
    plan: &'a Plan,
    ranks: usize,
    /// The ranks whose parts it makes.
    own: Range<usize>,
    program: Program,
    /// Values of the whole program that are whole here, by the new id.
    wholes: HashMap<ValueId, ValueId>,
    /// Parts of values of the whole program, and the ranks' addends of partial ones.
    parts: HashMap<(ValueId, usize), ValueId>,
    /// Parts of whole values.
    slices: HashMap<(ValueId, Range<usize>), ValueId>,
    /// Layers of the whole program, by rank.
    layers: HashMap<(LayerId, usize), LayerId>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(whole: &'a Program, plan: &'a Plan, ranks: usize, own: Range<usize>) -> Self {
        let (ops, values, layers, taps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let shard = (own.len() < ranks).then_some(Shard { rank: own.start, ranks });
        let program = Program {
            schema_version: whole.schema_version,
            architecture: whole.architecture.clone(),
            purpose: whole.purpose,
            hidden: whole.hidden,
            vocab: whole.vocab,
            max_positions: whole.max_positions,
            dtype: whole.dtype,
            ops,
            values,
            weights: whole.weights.clone(),
            ropes: whole.ropes.clone(),
            layers,
            taps,
            shard,
        };
        let (wholes, parts, slices) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { whole, plan, ranks, own, program, wholes, parts, slices, layers: HashMap::new() }
    }

    /// Writes all ops.
    pub(crate) fn run(mut self) -> Program {
        self.place_layers();
        for op in &self.whole.ops {
            let out = op.out();
            match (self.plan.state(out), op) {
                (_, Op::Head { .. }) => self.head(op),
                (State::Whole, _) => {
                    let made = self.whole_op(op);
                    self.wholes.insert(out, made);
                }
                (State::Cut(_) | State::Partial, _) => {
                    for rank in self.own.clone() {
                        let made = self.part_op(op, rank);
                        self.parts.insert((out, rank), made);
                    }
                }
            }
            for (tap, value) in self.whole.taps.iter().filter(|(_, value)| *value == out) {
                let value = self.whole_value(*value);
                self.program.taps.push((*tap, value));
            }
        }
        self.program
    }

    /// KV cache layers: one per whole layer and rank that is made here.
    fn place_layers(&mut self) {
        for (id, facts) in (0..).map(LayerId).zip(&self.whole.layers) {
            let cut = self.plan.kv_heads[id.0 as usize].as_ref();
            for rank in self.own.clone() {
                let first = rank == self.own.start;
                let kv_heads = match cut {
                    Some(cut) => cut[rank].len(),
                    None if first => facts.kv_heads,
                    None => continue,
                };
                // The indexer runs once, and writes its keys to the first layer.
                let index_dim = if first { facts.index_dim } else { 0 };
                let new = LayerId(self.program.layers.len() as u32);
                self.program.layers.push(LayerFacts { kv_heads, index_dim, ..*facts });
                self.layers.insert((id, rank), new);
            }
        }
    }

    fn layer(&self, id: LayerId, rank: usize) -> LayerId {
        let whole = || self.layers.get(&(id, self.own.start)).copied();
        self.layers.get(&(id, rank)).copied().or_else(whole).unwrap_or(id)
    }

    /// A new value with the rows of `like`.
    fn value(&mut self, like: ValueId, holds: Holds) -> ValueId {
        self.program.values.push(Value { holds, ..self.whole.value(like) });
        ValueId(self.program.values.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) -> ValueId {
        let out = op.out();
        self.program.ops.push(op);
        out
    }

    /// The value as a whole row. A partial one is summed at its first use.
    fn whole_value(&mut self, value: ValueId) -> ValueId {
        if let Some(known) = self.wholes.get(&value) {
            return *known;
        }
        let holds = self.whole.value(value).holds;
        let addends: Vec<ValueId> =
            self.own.clone().filter_map(|rank| self.parts.get(&(value, rank)).copied()).collect();
        let sum = match addends[..] {
            [x] if self.ranks > 1 => {
                let out = self.value(value, holds);
                self.push(Op::Collect { x, how: Collective::Sum, out })
            }
            _ => addends
                .into_iter()
                .reduce(|a, b| {
                    let out = self.value(value, holds);
                    self.push(Op::Add { a, b, out })
                })
                // Each value is made before it is read.
                .unwrap_or(value),
        };
        self.wholes.insert(value, sum);
        sum
    }

    /// A rank's part of a value: made as such, or a slice of the whole.
    fn part(&mut self, value: ValueId, rank: usize, part: Range<usize>) -> ValueId {
        if matches!(self.plan.state(value), State::Cut(_))
            && let Some(known) = self.parts.get(&(value, rank))
        {
            return *known;
        }
        let x = self.whole_value(value);
        if part == (0..self.whole.value(value).width()) {
            return x;
        }
        if let Some(known) = self.slices.get(&(x, part.clone())) {
            return *known;
        }
        let out = self.value(value, Holds::Numbers(part.len()));
        self.slices.insert((x, part.clone()), out);
        self.push(Op::Slice { x, groups: 1, start: part.start, width: part.len(), out })
    }

    /// Groups `units` of a value that consists of `groups` groups.
    fn groups(&mut self, value: ValueId, rank: usize, units: &Range<usize>, groups: usize) -> ValueId {
        let width = self.whole.value(value).width() / groups.max(1);
        self.part(value, rank, units.start * width..units.end * width)
    }

    /// An op that all ranks run alike.
    fn whole_op(&mut self, op: &Op) -> ValueId {
        let inputs: Vec<(ValueId, ValueId)> =
            op.inputs().map(|value| (value, self.whole_value(value))).collect();
        let mut op = op.clone();
        op.replace(|value| inputs.iter().find(|(old, _)| *old == value).map_or(value, |(_, new)| *new));
        if let Op::SelectKeys { layer, .. } | Op::UpdateAndAttend { layer, .. } = &mut op {
            *layer = self.layer(*layer, self.own.start);
        }
        let out = self.value(op.out(), self.whole.value(op.out()).holds);
        op.set_out(out);
        self.push(op)
    }

    /// One rank's part of an op.
    fn part_op(&mut self, op: &Op, rank: usize) -> ValueId {
        let whole_out = op.out();
        let width = self.whole.value(whole_out).width();
        let own = match self.plan.state(whole_out) {
            State::Cut(cut) => cut[rank].clone(),
            State::Whole | State::Partial => 0..width,
        };
        // The plan cuts groups between groups only.
        let units = |groups: usize| {
            let group = (width / groups.max(1)).max(1);
            own.start / group..own.end / group
        };
        let mut new = op.clone();
        match &mut new {
            Op::Linear { x, matrix, .. } => match self.plan.cut(*x).map(|cut| cut[rank].clone()) {
                Some(columns) => {
                    *x = self.part(*x, rank, columns.clone());
                    *matrix = matrix.columns(columns);
                    // A bias is added once.
                    matrix.bias = matrix.bias.filter(|_| rank == 0);
                }
                None => {
                    *x = self.whole_value(*x);
                    *matrix = matrix.rows(own.clone());
                }
            },
            Op::GroupLinear { x, matrices, .. } => {
                let units = units(matrices.count);
                *x = self.groups(*x, rank, &units, matrices.count);
                *matrices = matrices.range(units);
            }
            Op::Norm { x, groups, .. } | Op::Rotary { x, groups, .. } => {
                let units = units(*groups);
                *x = self.groups(*x, rank, &units, *groups);
                *groups = units.len();
            }
            Op::Slice { x, groups, start, width: wide, .. } => {
                if *groups == 1 {
                    return self.part_of_slice(*x, whole_out, *start + own.start..*start + own.end);
                }
                let units = units(*groups);
                *x = self.groups(*x, rank, &units, *groups);
                (*groups, *wide) = (units.len(), own.len() / units.len().max(1));
            }
            Op::Concat { a, b, groups, .. } => {
                let units = units(*groups);
                *a = self.groups(*a, rank, &units, *groups);
                *b = self.groups(*b, rank, &units, *groups);
                *groups = units.len();
            }
            Op::UpdateAndAttend { q, k, v, layer, sinks, selection, .. } => {
                let facts = self.whole.layers[layer.0 as usize];
                let heads = units(width / facts.value_dim.max(1));
                let cut = self.plan.kv_heads[layer.0 as usize].as_ref();
                let kv = cut.map_or(0..facts.kv_heads, |cut| cut[rank].clone());
                *q = self.part(*q, rank, heads.start * facts.key_dim..heads.end * facts.key_dim);
                *k = self.groups(*k, rank, &kv, facts.kv_heads);
                if let Some(v) = v {
                    *v = self.groups(*v, rank, &kv, facts.kv_heads);
                }
                if let Some(sinks) = sinks {
                    sinks.offset += heads.start * sinks.stride;
                }
                if let Some(selection) = selection {
                    *selection = self.whole_value(*selection);
                }
                *layer = self.layer(*layer, rank);
            }
            Op::Gate { gate, up, .. } => {
                *gate = self.part(*gate, rank, own.clone());
                *up = self.part(*up, rank, own.clone());
            }
            Op::Add { a, b, .. } => {
                // The sum of two partial rows is partial.
                for x in [a, b] {
                    *x = self.parts.get(&(*x, rank)).copied().unwrap_or(*x);
                }
            }
            Op::Mixture { x, routes, experts, .. } => {
                *x = self.whole_value(*x);
                *routes = self.whole_value(*routes);
                **experts = self.experts(experts, rank);
            }
            // The plan makes no parts of others.
            _ => return self.whole_op(op),
        }
        let out = self.value(whole_out, Holds::Numbers(own.len()));
        new.set_out(out);
        self.push(new)
    }

    /// A part of a slice: some rows of the matrix that made the operand, if one did, else a slice
    /// of the whole operand.
    fn part_of_slice(&mut self, x: ValueId, like: ValueId, part: Range<usize>) -> ValueId {
        let maker = self.whole.ops.iter().find(|op| op.out() == x);
        if let (Some(Op::Linear { x: inputs, matrix, .. }), State::Whole) = (maker, self.plan.state(x)) {
            let (x, matrix) = (self.whole_value(*inputs), matrix.rows(part.clone()));
            let out = self.value(like, Holds::Numbers(part.len()));
            return self.push(Op::Linear { x, matrix, out });
        }
        let x = self.whole_value(x);
        let out = self.value(like, Holds::Numbers(part.len()));
        self.push(Op::Slice { x, groups: 1, start: part.start, width: part.len(), out })
    }

    /// The experts of one rank.
    fn experts(&self, all: &Experts, rank: usize) -> Experts {
        let own = cuts::even(all.gate.count, self.ranks).map_or(0..all.gate.count, |cut| cut[rank].clone());
        let [gate, up, down] = [all.gate, all.up, all.down].map(|matrices| matrices.range(own.clone()));
        Experts { gate, up, down, activation: all.activation, first: all.first + own.start }
    }

    /// The LM head: each rank makes the logits of a part of the vocabulary, which are then joined.
    /// The program of all ranks makes them at once, with the same bits.
    fn head(&mut self, op: &Op) {
        let Op::Head { x, matrix, soft_cap, out } = op else { return };
        let (all, parts) = (matrix.outputs, joined(matrix.outputs, self.ranks));
        let Some(part) = parts.filter(|_| self.own.len() == 1).map(|cut| cut[self.own.start].clone()) else {
            let made = self.whole_op(op);
            self.wholes.insert(*out, made);
            return;
        };
        let x = self.whole_value(*x);
        let own = self.value(*out, Holds::Numbers(part.len()));
        self.push(Op::Head { x, matrix: matrix.rows(part), soft_cap: *soft_cap, out: own });
        let made = self.value(*out, Holds::Numbers(all));
        self.push(Op::Collect { x: own, how: Collective::Join, out: made });
        self.wholes.insert(*out, made);
    }
}

/// Parts of a row that an all-gather joins: all of one width but the last ones, which may be
/// narrower. `None` if a rank would have none; each then makes the whole row.
fn joined(len: usize, ranks: usize) -> Option<Cut> {
    let width = len.div_ceil(ranks.max(1));
    let parts = (0..ranks).map(|rank| (rank * width).min(len)..((rank + 1) * width).min(len));
    Some(parts.collect()).filter(|parts: &Cut| parts.iter().all(|part| !part.is_empty()))
}

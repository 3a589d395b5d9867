//! Emits the program of one rank, or that of all ranks in one process, from a [`ShardingPlan`].
//!
//! - One rank: its shards, with a `Collect` op where a value must be complete.
//! - All ranks: the shards of rank 0, then those of rank 1, and so on. Partial rows are added in
//!   rank order, so the results equal those of the ranks bit for bit.
//!
//! Replicated values are computed once in both.

use crate::ir::collective::Collective;
use crate::ir::layer::{LayerFacts, LayerId};
use crate::ir::moe::Experts;
use crate::ir::op::Op;
use crate::ir::program::{Program, Shard};
use crate::ir::recurrent::{StateFacts, StateId};
use crate::ir::value::{Holds, Value, ValueId};
use crate::passes::split::convolutions::{add_weight_part, conv_state};
use crate::passes::split::cuts::{self, Partition};
use crate::passes::split::plan::{Sharding, ShardingPlan};
use std::collections::HashMap;
use std::ops::Range;

pub(crate) struct Emitter<'a> {
    whole: &'a Program,
    plan: &'a ShardingPlan,
    ranks: usize,
    /// Ranks whose shards are emitted: one, or all.
    local_ranks: Range<usize>,
    program: Program,
    /// New ids of replicated values, and of partial ones that are summed, by their id in `whole`.
    replicated: HashMap<ValueId, ValueId>,
    /// New ids of shards and of ranks' partial rows, by the id in `whole` and the rank.
    shards: HashMap<(ValueId, usize), ValueId>,
    /// Slices of replicated values, by new id and range.
    slices: HashMap<(ValueId, Range<usize>), ValueId>,
    /// New ids of layers, by the id in `whole` and the rank.
    layers: HashMap<(LayerId, usize), LayerId>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        whole: &'a Program,
        plan: &'a ShardingPlan,
        ranks: usize,
        local_ranks: Range<usize>,
    ) -> Self {
        let (ops, values, layers, taps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let shard = (local_ranks.len() < ranks).then_some(Shard { rank: local_ranks.start, ranks });
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
            states: Vec::new(),
            taps,
            shard,
            expert_shard: None,
        };
        let (replicated, shards, slices) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { whole, plan, ranks, local_ranks, program, replicated, shards, slices, layers: HashMap::new() }
    }

    /// Emits all layers, ops and taps.
    pub(crate) fn emit(mut self) -> Program {
        self.add_kv_layers();
        for op in &self.whole.ops {
            let out = op.out();
            match (self.plan.sharding(out), op) {
                (_, Op::Head { .. }) => self.head(op),
                (Sharding::Replicated, _) => {
                    let made = self.replicated_op(op);
                    self.replicated.insert(out, made);
                }
                (Sharding::Sharded(_) | Sharding::Partial, _) => {
                    for rank in self.local_ranks.clone() {
                        let made = self.sharded_op(op, rank);
                        self.shards.insert((out, rank), made);
                    }
                }
            }
            for (tap, value) in self.whole.taps.iter().filter(|(_, value)| *value == out) {
                let value = self.replicated_value(*value);
                self.program.taps.push((*tap, value));
            }
        }
        self.program
    }

    /// Adds the KV cache layers: one per local rank, or one if the layer's attention is replicated.
    fn add_kv_layers(&mut self) {
        for (id, facts) in (0..).map(LayerId).zip(&self.whole.layers) {
            let partition = self.plan.kv_heads[id.0 as usize].as_ref();
            for rank in self.local_ranks.clone() {
                let first = rank == self.local_ranks.start;
                let kv_heads = match partition {
                    Some(partition) => partition[rank].len(),
                    None if first => facts.kv_heads,
                    None => continue,
                };
                // The indexer is replicated: its keys are stored with the first local rank.
                let index_dim = if first { facts.index_dim } else { 0 };
                let new = LayerId(self.program.layers.len() as u32);
                self.program.layers.push(LayerFacts { kv_heads, index_dim, ..*facts });
                self.layers.insert((id, rank), new);
            }
        }
    }

    fn layer(&self, id: LayerId, rank: usize) -> LayerId {
        let whole = || self.layers.get(&(id, self.local_ranks.start)).copied();
        self.layers.get(&(id, rank)).copied().or_else(whole).unwrap_or(id)
    }

    /// Adds a value with the row set of `like`.
    fn value(&mut self, like: ValueId, holds: Holds) -> ValueId {
        self.program.values.push(Value { holds, ..self.whole.value(like) });
        ValueId(self.program.values.len() as u32 - 1)
    }

    fn push(&mut self, op: Op) -> ValueId {
        let out = op.out();
        self.program.ops.push(op);
        out
    }

    /// The complete row of a value. Emits the all-reduce of a partial one at its first use.
    fn replicated_value(&mut self, value: ValueId) -> ValueId {
        if let Some(known) = self.replicated.get(&value) {
            return *known;
        }
        if matches!(self.plan.sharding(value), Sharding::Sharded(_)) {
            return self.gathered_value(value);
        }
        let holds = self.whole.value(value).holds;
        let addends: Vec<ValueId> =
            self.local_ranks.clone().filter_map(|rank| self.shards.get(&(value, rank)).copied()).collect();
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
                // Unreachable: ops are in topological order, so a shard or a replica exists.
                .unwrap_or(value),
        };
        self.replicated.insert(value, sum);
        sum
    }

    /// The complete row of a value that is sharded into parts of equal width. Emits the all-gather.
    fn gathered_value(&mut self, value: ValueId) -> ValueId {
        let parts: Vec<ValueId> =
            self.local_ranks.clone().filter_map(|rank| self.shards.get(&(value, rank)).copied()).collect();
        let gathered = match parts[..] {
            [x] => {
                let out = self.value(value, self.whole.value(value).holds);
                self.push(Op::Collect { x, how: Collective::Join, out })
            }
            _ => parts
                .into_iter()
                .reduce(|a, b| {
                    let width = self.program.value(a).width() + self.program.value(b).width();
                    let out = self.value(value, Holds::Numbers(width));
                    self.push(Op::Concat { a, b, groups: 1, out })
                })
                // Unreachable: ops are in topological order, so all shards exist.
                .unwrap_or(value),
        };
        self.replicated.insert(value, gathered);
        gathered
    }

    /// Adds a recurrent state; returns its id.
    fn add_state(&mut self, facts: StateFacts) -> StateId {
        self.program.states.push(facts);
        StateId(self.program.states.len() as u32 - 1)
    }

    /// The range `part` of a value: the shard that the rank has computed, or a slice of the complete
    /// row.
    fn shard(&mut self, value: ValueId, rank: usize, part: Range<usize>) -> ValueId {
        // A row-parallel matrix may read a range that is not the rank's shard.
        if self.plan.partition(value).is_some_and(|partition| partition[rank] == part)
            && let Some(known) = self.shards.get(&(value, rank))
        {
            return *known;
        }
        let x = self.replicated_value(value);
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

    /// A rank's shard of a value of `groups` equal groups: the groups `units`.
    fn shard_groups(&mut self, value: ValueId, rank: usize, units: &Range<usize>, groups: usize) -> ValueId {
        let width = self.whole.value(value).width() / groups.max(1);
        self.shard(value, rank, units.start * width..units.end * width)
    }

    /// Emits an op that every rank runs on complete rows.
    fn replicated_op(&mut self, op: &Op) -> ValueId {
        let inputs: Vec<(ValueId, ValueId)> =
            op.inputs().map(|value| (value, self.replicated_value(value))).collect();
        let mut op = op.clone();
        op.replace(|value| inputs.iter().find(|(old, _)| *old == value).map_or(value, |(_, new)| *new));
        if let Op::SelectKeys { layer, .. }
        | Op::UpdateAndAttend { layer, .. }
        | Op::CompressedAttend { layer, .. } = &mut op
        {
            *layer = self.layer(*layer, self.local_ranks.start);
        }
        if let Some(state) = op.state() {
            let state = self.add_state(self.whole.states[state.0 as usize]);
            op.set_state(state);
        }
        let out = self.value(op.out(), self.whole.value(op.out()).holds);
        op.set_out(out);
        self.push(op)
    }

    /// Emits one rank's shard of an op.
    fn sharded_op(&mut self, op: &Op, rank: usize) -> ValueId {
        let whole_out = op.out();
        let width = self.whole.value(whole_out).width();
        let local = match self.plan.sharding(whole_out) {
            Sharding::Sharded(partition) => partition[rank].clone(),
            Sharding::Replicated | Sharding::Partial => 0..width,
        };
        let units = |groups: usize| groups_of(&local, width, groups);
        let mut new = op.clone();
        match &mut new {
            Op::Linear { x, matrix, .. } => {
                match self.plan.row_parallel.get(&whole_out).map(|inputs| inputs[rank].clone()) {
                    Some(columns) => {
                        *x = self.shard(*x, rank, columns.clone());
                        *matrix = matrix.slice_inputs(columns);
                        // Rank 0 adds the bias, so that the sum over ranks contains it once.
                        matrix.bias = matrix.bias.filter(|_| rank == 0);
                    }
                    None => {
                        *x = self.replicated_value(*x);
                        *matrix = matrix.slice_outputs(local.clone());
                    }
                }
            }
            Op::GroupLinear { x, matrices, .. } => {
                let units = units(matrices.count);
                *x = self.shard_groups(*x, rank, &units, matrices.count);
                *matrices = matrices.range(units);
            }
            Op::Norm { x, groups, weight, bias, .. } => {
                let units = units(*groups);
                *x = self.shard_groups(*x, rank, &units, *groups);
                // A weight with one element per element of the row is sharded with it.
                for id in weight.iter_mut().chain(bias) {
                    if self.program.weight(self.program.resolve(*id)).elements().len() == width {
                        *id = add_weight_part(&mut self.program, *id, local.clone());
                    }
                }
                *groups = units.len();
            }
            Op::Rotary { x, groups, .. } => {
                let units = units(*groups);
                *x = self.shard_groups(*x, rank, &units, *groups);
                *groups = units.len();
            }
            recurrent @ (Op::ShortConv { .. } | Op::GatedDelta { .. } | Op::SelectiveScan { .. }) => {
                self.shard_recurrent(recurrent, rank, &local);
            }
            Op::Scale { x, .. } => {
                *x = match self.plan.sharding(whole_out) {
                    Sharding::Partial => self.shards.get(&(*x, rank)).copied().unwrap_or(*x),
                    Sharding::Sharded(_) | Sharding::Replicated => self.shard(*x, rank, local.clone()),
                };
            }
            Op::Slice { x, groups, start, width: wide, .. } => {
                if *groups == 1 {
                    return self.shard_of_slice(*x, whole_out, *start + local.start..*start + local.end);
                }
                let units = units(*groups);
                *x = self.shard_groups(*x, rank, &units, *groups);
                (*groups, *wide) = (units.len(), local.len() / units.len().max(1));
            }
            Op::Concat { a, b, groups, .. } => {
                let units = units(*groups);
                *a = self.shard_groups(*a, rank, &units, *groups);
                *b = self.shard_groups(*b, rank, &units, *groups);
                *groups = units.len();
            }
            attention @ Op::UpdateAndAttend { .. } => self.shard_attention(attention, rank, &local),
            Op::Gate { gate, up, .. } => {
                *gate = self.shard(*gate, rank, local.clone());
                *up = self.shard(*up, rank, local.clone());
            }
            Op::Add { a, b, .. } => {
                // The sum of two partial rows is partial.
                for x in [a, b] {
                    *x = self.shards.get(&(*x, rank)).copied().unwrap_or(*x);
                }
            }
            Op::Mixture { x, routes, experts, .. } => {
                *x = self.replicated_value(*x);
                *routes = self.replicated_value(*routes);
                **experts = self.experts(experts, rank);
            }
            // The plan shards no other op.
            _ => return self.replicated_op(op),
        }
        let out = self.value(whole_out, Holds::Numbers(local.len()));
        new.set_out(out);
        self.push(new)
    }

    /// Replaces operands and KV layer of an attention op by those of one rank, which computes the
    /// elements `local` of the result.
    fn shard_attention(&mut self, op: &mut Op, rank: usize, local: &Range<usize>) {
        let width = self.whole.value(op.out()).width();
        let Op::UpdateAndAttend { q, k, v, layer, sinks, selection, .. } = op else { return };
        let facts = self.whole.layers[layer.0 as usize];
        let heads = groups_of(local, width, width / facts.value_dim.max(1));
        let partition = self.plan.kv_heads[layer.0 as usize].as_ref();
        let kv = partition.map_or(0..facts.kv_heads, |partition| partition[rank].clone());
        *q = self.shard(*q, rank, heads.start * facts.key_dim..heads.end * facts.key_dim);
        for operand in k.iter_mut().chain(v) {
            *operand = self.shard_groups(*operand, rank, &kv, facts.kv_heads);
        }
        if let Some(sinks) = sinks {
            sinks.offset += heads.start * sinks.stride;
        }
        if let Some(selection) = selection {
            *selection = self.replicated_value(*selection);
        }
        *layer = self.layer(*layer, rank);
    }

    /// Replaces operands, weights and state of a recurrent op by those of one rank, which computes
    /// the elements `local` of the result.
    fn shard_recurrent(&mut self, op: &mut Op, rank: usize, local: &Range<usize>) {
        let width = self.whole.value(op.out()).width();
        let shared_heads = self.shared_heads(op.out(), rank);
        match op {
            Op::ShortConv { x, weight, bias, kernel, dilation, state, .. } => {
                *x = self.shard(*x, rank, local.clone());
                let elements = local.start * *kernel..local.end * *kernel;
                *weight = add_weight_part(&mut self.program, *weight, elements);
                *bias = bias.map(|bias| add_weight_part(&mut self.program, bias, local.clone()));
                *state = self.add_state(conv_state(local.len(), *kernel, *dilation));
            }
            Op::GatedDelta { q, k, v, decay, beta, form, state, .. } => {
                let heads = groups_of(local, width, form.value_heads);
                for x in [q, k] {
                    *x = self.shard_groups(*x, rank, &shared_heads, form.key_heads);
                }
                for x in [v, decay, beta] {
                    *x = self.shard_groups(*x, rank, &heads, form.value_heads);
                }
                let per_head = form.decays() / form.value_heads.max(1);
                let decays = heads.start * per_head..heads.end * per_head;
                (form.key_heads, form.value_heads) = (shared_heads.len(), heads.len());
                form.decay = add_weight_part(&mut self.program, form.decay, heads);
                form.dt_bias = add_weight_part(&mut self.program, form.dt_bias, decays);
                *state = self.add_state(form.state());
            }
            Op::SelectiveScan { x, b, c, dt, form, state, .. } => {
                let heads = groups_of(local, width, form.heads);
                for x in [x, dt] {
                    *x = self.shard_groups(*x, rank, &heads, form.heads);
                }
                for x in [b, c] {
                    *x = self.shard_groups(*x, rank, &shared_heads, form.groups);
                }
                (form.heads, form.groups) = (heads.len(), shared_heads.len());
                for id in [&mut form.decay, &mut form.dt_bias, &mut form.skip] {
                    *id = add_weight_part(&mut self.program, *id, heads.clone());
                }
                *state = self.add_state(form.state());
            }
            _ => {}
        }
    }

    /// The key heads or groups of a recurrence that one rank reads; empty for other ops.
    fn shared_heads(&self, out: ValueId, rank: usize) -> Range<usize> {
        self.plan.shared_heads.get(&out).map_or(0..0, |partition| partition[rank].clone())
    }

    /// A shard of an ungrouped slice. If a matrix computes the operand, emits the product of the
    /// shard's outputs only; else slices the replicated operand.
    fn shard_of_slice(&mut self, x: ValueId, like: ValueId, part: Range<usize>) -> ValueId {
        let producer = self.whole.ops.iter().find(|op| op.out() == x);
        if let (Some(Op::Linear { x: inputs, matrix, .. }), Sharding::Replicated) =
            (producer, self.plan.sharding(x))
        {
            let (x, matrix) = (self.replicated_value(*inputs), matrix.slice_outputs(part.clone()));
            let out = self.value(like, Holds::Numbers(part.len()));
            return self.push(Op::Linear { x, matrix, out });
        }
        let x = self.replicated_value(x);
        let out = self.value(like, Holds::Numbers(part.len()));
        self.push(Op::Slice { x, groups: 1, start: part.start, width: part.len(), out })
    }

    /// The experts of one rank (expert parallelism).
    fn experts(&self, all: &Experts, rank: usize) -> Experts {
        let local = cuts::even(all.gate.count, self.ranks)
            .map_or(0..all.gate.count, |partition| partition[rank].clone());
        let [gate, up, down] = [all.gate, all.up, all.down].map(|matrices| matrices.range(local.clone()));
        Experts { gate, up, down, activation: all.activation, first: all.first + local.start }
    }

    /// Emits the LM head: each rank computes the logits of a range of the vocabulary, and an
    /// all-gather joins them. The program of all ranks computes them in one op, with equal bits.
    fn head(&mut self, op: &Op) {
        let Op::Head { x, matrix, scale, soft_cap, out } = op else { return };
        let (all, parts) = (matrix.outputs, vocab_partition(matrix.outputs, self.ranks));
        let Some(part) = parts
            .filter(|_| self.local_ranks.len() == 1)
            .map(|partition| partition[self.local_ranks.start].clone())
        else {
            let made = self.replicated_op(op);
            self.replicated.insert(*out, made);
            return;
        };
        let x = self.replicated_value(*x);
        let local = self.value(*out, Holds::Numbers(part.len()));
        let (matrix, scale, soft_cap) = (matrix.slice_outputs(part), *scale, *soft_cap);
        self.push(Op::Head { x, matrix, scale, soft_cap, out: local });
        let made = self.value(*out, Holds::Numbers(all));
        self.push(Op::Collect { x: local, how: Collective::Join, out: made });
        self.replicated.insert(*out, made);
    }
}

/// The groups of a row of `width` elements that `local` covers. The plan shards grouped ops at group
/// boundaries only.
fn groups_of(local: &Range<usize>, width: usize, groups: usize) -> Range<usize> {
    let group = (width / groups.max(1)).max(1);
    local.start / group..local.end / group
}

/// Partitions a row for an all-gather: each part has `ceil(len / ranks)` elements, but the last
/// ones may have fewer. `None` if a part would be empty: the row is then replicated.
fn vocab_partition(len: usize, ranks: usize) -> Option<Partition> {
    let width = len.div_ceil(ranks.max(1));
    let parts = (0..ranks).map(|rank| (rank * width).min(len)..((rank + 1) * width).min(len));
    Some(parts.collect()).filter(|parts: &Partition| parts.iter().all(|part| !part.is_empty()))
}

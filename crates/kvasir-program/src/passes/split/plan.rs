//! Sharding propagation: decides by data flow which values are replicated, sharded or partial.
//!
//! 1. Forward, from the anchors: attention (sharded by query heads), recurrences (by heads),
//!    activation gates (by columns) and mixtures (by experts). Attention and gates are sharded if
//!    all their readers lead to matrices, which become row-parallel: their results are partial.
//! 2. Backward, from readers to producers: an operand is sharded as its readers demand if its
//!    producer can compute one shard. Matrices become column-parallel, and per-head ops run on some
//!    of the heads. A value is replicated if its readers' demands differ.
//!
//! Invariant: the plan depends on the ops and the number of ranks, not on the architecture's name
//! or on the rank. All ranks of a model derive the same plan.

use crate::ir::layer::LayerId;
use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::recurrent::{DeltaForm, HeadMap};
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, WeightId};
use crate::passes::split::cuts::{self, Partition};
use crate::passes::split::error::SplitError;
use std::collections::HashMap;

/// How a value is distributed over the ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sharding {
    /// Each rank has the complete row.
    Replicated,
    /// Each rank has its range of the row.
    Sharded(Partition),
    /// The row is the sum of the ranks' rows.
    Partial,
}

/// The sharding of all values and KV layers of a program.
pub(crate) struct ShardingPlan {
    /// By `ValueId`.
    pub(crate) shardings: Vec<Sharding>,
    /// By `LayerId`: the KV heads of each rank; `None` if the layer's attention is replicated.
    pub(crate) kv_heads: Vec<Option<Partition>>,
    /// By the result of a sharded recurrence: the key heads or groups that each rank reads.
    pub(crate) shared_heads: HashMap<ValueId, Partition>,
    /// By the result of a row-parallel matrix: the range of its inputs that each rank reads.
    pub(crate) row_parallel: HashMap<ValueId, Partition>,
}

impl ShardingPlan {
    /// Plans the sharding of a complete program. Fails if a constraint leaves a rank without a
    /// part.
    pub(crate) fn new(program: &Program, ranks: usize) -> Result<Self, SplitError> {
        let shardings = vec![Sharding::Replicated; program.values.len()];
        let mut planner = Planner {
            program,
            ranks,
            readers: readers(program),
            demands: vec![Demand::None; program.values.len()],
            plan: Self {
                shardings,
                kv_heads: vec![None; program.layers.len()],
                shared_heads: HashMap::new(),
                row_parallel: HashMap::new(),
            },
        };
        for op in &program.ops {
            planner.anchor(op)?;
        }
        for op in program.ops.iter().rev() {
            planner.propagate_demands(op);
        }
        Ok(planner.plan)
    }

    pub(crate) fn sharding(&self, value: ValueId) -> &Sharding {
        &self.shardings[value.0 as usize]
    }

    /// The partition of a value, if it is sharded.
    pub(crate) fn partition(&self, value: ValueId) -> Option<&Partition> {
        match self.sharding(value) {
            Sharding::Sharded(partition) => Some(partition),
            Sharding::Replicated | Sharding::Partial => None,
        }
    }
}

/// The sharding that the readers of a value accept.
#[derive(Clone, PartialEq)]
enum Demand {
    /// No reader seen yet.
    None,
    /// All readers accept this partition.
    Sharded(Partition),
    /// A reader needs the complete row, or readers need different partitions.
    Replicated,
}

pub(crate) struct Planner<'a> {
    pub(crate) program: &'a Program,
    pub(crate) ranks: usize,
    /// Indices of the ops that read each value.
    pub(crate) readers: Vec<Vec<usize>>,
    demands: Vec<Demand>,
    pub(crate) plan: ShardingPlan,
}

fn readers(program: &Program) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); program.values.len()];
    for (at, op) in program.ops.iter().enumerate() {
        op.inputs().for_each(|value| readers[value.0 as usize].push(at));
    }
    readers
}

/// The values between an anchor and the row-parallel matrices that consume its result.
#[derive(Default)]
struct ShardedRegion {
    /// All sharded values, the anchor's result included.
    values: Vec<ValueId>,
    /// The row-parallel matrices, each with its operand and result.
    matrices: Vec<(Matrix, ValueId, ValueId)>,
}

impl Planner<'_> {
    pub(crate) fn width(&self, value: ValueId) -> usize {
        self.program.value(value).width()
    }

    pub(crate) fn is_tapped(&self, value: ValueId) -> bool {
        self.program.taps.iter().any(|(_, tapped)| *tapped == value)
    }

    /// Follows an anchor's result of `groups` heads to the matrices that consume it, and adds all
    /// to `region`. `None` if a value on the way is tapped or has another consumer.
    fn follow(&self, value: ValueId, groups: Option<usize>, region: &mut ShardedRegion) -> Option<()> {
        let readers = &self.readers[value.0 as usize];
        if self.is_tapped(value) || readers.is_empty() {
            return None;
        }
        region.values.push(value);
        for op in readers.iter().map(|at| &self.program.ops[*at]) {
            match op {
                Op::Linear { x, matrix, out } => region.matrices.push((*matrix, *x, *out)),
                Op::GroupLinear { matrices: Matrices { count: op_groups, .. }, out, .. }
                | Op::Norm { groups: op_groups, out, .. }
                | Op::Slice { groups: op_groups, out, .. }
                    if Some(*op_groups) == groups =>
                {
                    self.follow(*out, groups, region)?;
                }
                // An output gate of attention: each rank has the gates of its heads.
                Op::Gate { gate, up, out, .. }
                    if groups.is_some()
                        && *up == value
                        && *gate != value
                        && self.width(*gate) == self.width(value) =>
                {
                    self.follow(*out, groups, region)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Elements per quantization block, which boundaries between inputs must not separate.
    pub(crate) fn block(&self, matrix: &Matrix) -> usize {
        // Transposed matrices are dequantized before they are sliced.
        if matrix.input_stride == 1 { self.program.weight(matrix.weight).block.max(1) } else { 1 }
    }

    fn name(&self, weight: WeightId) -> String {
        self.program.weight(self.program.resolve(weight)).name.clone()
    }

    /// Shards the result of an anchor, and marks those of its row-parallel matrices as partial.
    fn anchor(&mut self, op: &Op) -> Result<(), SplitError> {
        let ranks = self.ranks;
        match op {
            Op::UpdateAndAttend { q, k: Some(_), layer, .. } => {
                let facts = self.program.layers[layer.0 as usize];
                let heads = self.width(*q) / facts.key_dim.max(1);
                // All attention ops that share the K and V of this layer get the same partition.
                let Some(regions) = self.attention_regions(*layer, heads) else { return Ok(()) };
                let matrices = || regions.iter().flat_map(|region| &region.matrices);
                let fits = |matrix: &Matrix, head: usize| {
                    (matrix.offset + head * (matrix.inputs / heads)).is_multiple_of(self.block(matrix))
                };
                let may_begin = |head: usize| matrices().all(|(matrix, ..)| fits(matrix, head));
                let partition = cuts::heads(heads, facts.kv_heads, ranks, may_begin).ok_or_else(|| {
                    let coarsest = matrices().max_by_key(|(matrix, ..)| self.block(matrix));
                    match coarsest.filter(|_| cuts::heads(heads, facts.kv_heads, ranks, |_| true).is_some()) {
                        Some((matrix, ..)) => self.column_error(matrix),
                        None => SplitError::Heads {
                            architecture: self.program.architecture.clone(),
                            layer: layer.0,
                            heads,
                            kv_heads: facts.kv_heads,
                            ranks,
                        },
                    }
                })?;
                self.plan.kv_heads[layer.0 as usize] = Some(partition.kv_heads);
                regions.iter().for_each(|region| self.shard(region, &partition.heads, heads));
            }
            Op::Gate { gate, out, .. } => {
                let mut region = ShardedRegion::default();
                // A gate of one element needs the complete row; an output gate of attention is
                // already sharded by heads.
                let is_sharded = self.plan.partition(*out).is_some();
                if is_sharded
                    || self.width(*gate) != self.width(*out)
                    || self.follow(*out, None, &mut region).is_none()
                {
                    return Ok(());
                }
                let (width, block) = (self.width(*out), |matrix: &Matrix| self.block(matrix));
                let blocks = region.matrices.iter().fold(1, |all, (m, ..)| cuts::lcm(all, block(m)));
                let Some(partition) = cuts::columns(width, blocks, ranks) else {
                    let coarsest = region.matrices.iter().max_by_key(|(matrix, ..)| block(matrix));
                    return coarsest.map_or(Ok(()), |(matrix, ..)| Err(self.column_error(matrix)));
                };
                self.shard(&region, &partition, width);
            }
            // The sum of two partial rows is partial: one all-reduce serves both, unless a reader
            // needs one of them alone.
            Op::Add { a, b, out }
                if self.is_partial_with_one_reader(*a) && self.is_partial_with_one_reader(*b) =>
            {
                self.plan.shardings[out.0 as usize] = Sharding::Partial;
            }
            // A multiple of a partial row is partial.
            Op::Scale { x, out, .. } if self.is_partial_with_one_reader(*x) => {
                self.plan.shardings[out.0 as usize] = Sharding::Partial;
            }
            Op::GatedDelta { form, out, .. } => {
                let DeltaForm { key_heads, value_heads, head_map, .. } = *form;
                let partition = cuts::recurrence_heads(value_heads, key_heads, head_map, ranks);
                self.shard_recurrence(*out, value_heads, partition);
            }
            Op::SelectiveScan { form, out, .. } => {
                let partition = cuts::recurrence_heads(form.heads, form.groups, HeadMap::Grouped, ranks);
                self.shard_recurrence(*out, form.heads, partition);
            }
            Op::Mixture { experts, out, .. } => {
                if experts.gate.count < ranks {
                    let (architecture, experts) = (self.program.architecture.clone(), experts.gate.count);
                    return Err(SplitError::Experts { architecture, experts, ranks });
                }
                self.plan.shardings[out.0 as usize] = Sharding::Partial;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a value is partial and has exactly one reader, which can then add or scale the partial
    /// rows before the all-reduce.
    fn is_partial_with_one_reader(&self, x: ValueId) -> bool {
        *self.plan.sharding(x) == Sharding::Partial
            && self.readers[x.0 as usize].len() == 1
            && !self.is_tapped(x)
    }

    /// The region that follows each attention op of a layer. `None` if one of them cannot be
    /// sharded, or if the ops differ in their number of query heads.
    fn attention_regions(&self, layer: LayerId, heads: usize) -> Option<Vec<ShardedRegion>> {
        let mut regions = Vec::new();
        for op in &self.program.ops {
            if let Op::UpdateAndAttend { q, layer: of, out, .. } = op
                && *of == layer
            {
                let facts = self.program.layers[layer.0 as usize];
                let mut region = ShardedRegion::default();
                if self.width(*q) != heads * facts.key_dim {
                    return None;
                }
                self.follow(*out, Some(heads), &mut region)?;
                regions.push(region);
            }
        }
        Some(regions)
    }

    fn column_error(&self, matrix: &Matrix) -> SplitError {
        let (tensor, columns, ranks) = (self.name(matrix.weight), matrix.inputs, self.ranks);
        match self.block(matrix) {
            1 => SplitError::Columns { tensor, columns, ranks },
            block => SplitError::Blocks { tensor, columns, block, ranks },
        }
    }

    /// Shards the values of a region. `partition` is in units, of which each row has `units`.
    fn shard(&mut self, region: &ShardedRegion, partition: &Partition, units: usize) {
        for value in &region.values {
            let unit = self.width(*value) / units.max(1);
            self.plan.shardings[value.0 as usize] = Sharding::Sharded(cuts::to_elements(partition, unit));
        }
        for (_, x, out) in &region.matrices {
            let inputs = cuts::to_elements(partition, self.width(*x) / units.max(1));
            self.plan.shardings[out.0 as usize] = Sharding::Partial;
            self.plan.row_parallel.insert(*out, inputs);
        }
    }

    fn demand(&mut self, value: ValueId, partition: Option<Partition>) {
        let width = self.width(value);
        // A partition that gives every rank the complete row is a replication.
        let partition = partition.filter(|partition| partition.iter().any(|part| *part != (0..width)));
        let demand = &mut self.demands[value.0 as usize];
        *demand = match (partition, &*demand) {
            (Some(partition), Demand::None) => Demand::Sharded(partition),
            (Some(partition), Demand::Sharded(have)) if partition == *have => return,
            _ => Demand::Replicated,
        };
    }

    /// Demands a value of `groups` equal groups, partitioned among the ranks as `units`.
    fn demand_groups(&mut self, value: ValueId, units: &Partition, groups: usize) {
        let width = self.width(value) / groups.max(1);
        self.demand(value, Some(cuts::to_elements(units, width)));
    }

    /// Fixes the sharding of an op's result from its readers' demands, then demands the op's
    /// operands. All readers of the result must have been visited.
    fn propagate_demands(&mut self, op: &Op) {
        let out = op.out();
        if let (Sharding::Replicated, Demand::Sharded(partition)) =
            (self.plan.sharding(out), &self.demands[out.0 as usize])
            && !self.is_tapped(out)
            && self.can_shard(op, partition)
        {
            self.plan.shardings[out.0 as usize] = Sharding::Sharded(partition.clone());
        }
        let Some(partition) = self.plan.partition(out).cloned() else {
            // `follow` has already fixed the operands inside a sharded region.
            for value in op.inputs().filter(|value| self.plan.partition(*value).is_none()).collect::<Vec<_>>()
            {
                self.demand(value, None);
            }
            return;
        };
        let width = self.width(out);
        let units = |groups: usize| cuts::to_units(&partition, width / groups.max(1));
        match op {
            Op::UpdateAndAttend { q, k, v, layer, .. } => {
                let facts = self.program.layers[layer.0 as usize];
                if let (Some(heads), Some(kv)) = (
                    cuts::to_units(&partition, facts.value_dim),
                    self.plan.kv_heads[layer.0 as usize].clone(),
                ) {
                    self.demand_groups(*q, &heads, width / facts.value_dim.max(1));
                    for operand in k.iter().chain(v) {
                        self.demand_groups(*operand, &kv, facts.kv_heads);
                    }
                }
            }
            Op::Gate { gate, up, .. } => {
                self.demand(*gate, Some(partition.clone()));
                self.demand(*up, Some(partition));
            }
            Op::ShortConv { x, .. } | Op::Scale { x, .. } => self.demand(*x, Some(partition)),
            Op::GatedDelta { q, k, v, decay, beta, form, .. } => {
                if let (Some(heads), Some(keys)) =
                    (units(form.value_heads), self.plan.shared_heads.get(&out).cloned())
                {
                    [q, k].into_iter().for_each(|x| self.demand_groups(*x, &keys, form.key_heads));
                    [v, decay, beta]
                        .into_iter()
                        .for_each(|x| self.demand_groups(*x, &heads, form.value_heads));
                }
            }
            Op::SelectiveScan { x, b, c, dt, form, .. } => {
                if let (Some(heads), Some(groups)) =
                    (units(form.heads), self.plan.shared_heads.get(&out).cloned())
                {
                    [x, dt].into_iter().for_each(|x| self.demand_groups(*x, &heads, form.heads));
                    [b, c].into_iter().for_each(|x| self.demand_groups(*x, &groups, form.groups));
                }
            }
            Op::Norm { x, groups, .. } | Op::Rotary { x, groups, .. } => {
                units(*groups).iter().for_each(|units| self.demand_groups(*x, units, *groups));
            }
            Op::Slice { x, groups, .. } => match units(*groups) {
                Some(units) => self.demand_groups(*x, &units, *groups),
                None => self.demand(*x, None),
            },
            Op::GroupLinear { x, matrices, .. } => {
                units(matrices.count).iter().for_each(|units| self.demand_groups(*x, units, matrices.count));
            }
            Op::Concat { a, b, groups, .. } => {
                for (units, x) in units(*groups).iter().flat_map(|units| [(units, *a), (units, *b)]) {
                    self.demand_groups(x, units, *groups);
                }
            }
            _ => op.inputs().collect::<Vec<_>>().into_iter().for_each(|value| self.demand(value, None)),
        }
    }

    /// Whether an op can compute one shard of its result from shards or slices of its operands.
    fn can_shard(&self, op: &Op, partition: &Partition) -> bool {
        let width = self.width(op.out());
        let by_group = |groups: usize| cuts::to_units(partition, width / groups.max(1)).is_some();
        match op {
            Op::Linear { .. } | Op::ShortConv { .. } | Op::Scale { .. } => true,
            Op::Gate { gate, .. } => self.width(*gate) == width,
            Op::Slice { groups, .. } => *groups == 1 || by_group(*groups),
            Op::GroupLinear { matrices, .. } => by_group(matrices.count),
            Op::Norm { groups, .. } | Op::Rotary { groups, .. } | Op::Concat { groups, .. } => {
                by_group(*groups)
            }
            _ => false,
        }
    }
}

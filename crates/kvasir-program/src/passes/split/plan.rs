//! Decides by data flow which values are whole on every rank, which are cut, and which are partial
//! sums.
//!
//! 1. Anchors are the ops that can work on a part of their row: attention (by query heads), an
//!    activation gate (by columns) and a mixture (by experts). Attention and gates are cut if all that
//!    reads their result leads to matrices, which then multiply a part of their inputs (row-parallel).
//! 2. From the anchors upward, operands are cut alike as far as their producers can make a part: a
//!    matrix makes a part of its outputs (column-parallel), ops per head work on some of the heads.
//!    A value that one reader wants cut and another whole stays whole.
//!
//! Nothing here depends on the architecture or on the rank: all ranks of a model derive the same
//! plan.

use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, WeightId};
use crate::passes::split::cuts::{self, Cut};
use crate::passes::split::error::SplitError;

/// How a value is distributed over the ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// Each rank has the whole row.
    Whole,
    /// Each rank has its part of the row.
    Cut(Cut),
    /// The row is the sum of the ranks' rows.
    Partial,
}

/// The distribution of a program over ranks.
pub(crate) struct Plan {
    /// By value.
    pub(crate) states: Vec<State>,
    /// By layer: the KV heads of each rank, where attention is divided.
    pub(crate) kv_heads: Vec<Option<Cut>>,
}

impl Plan {
    /// Plans the division of a whole program.
    pub(crate) fn new(program: &Program, ranks: usize) -> Result<Self, SplitError> {
        let states = vec![State::Whole; program.values.len()];
        let mut planner = Planner {
            program,
            ranks,
            readers: readers(program),
            demands: vec![Demand::None; program.values.len()],
            plan: Self { states, kv_heads: vec![None; program.layers.len()] },
        };
        for op in &program.ops {
            planner.anchor(op)?;
        }
        for op in program.ops.iter().rev() {
            planner.pass_demands_up(op);
        }
        Ok(planner.plan)
    }

    pub(crate) fn state(&self, value: ValueId) -> &State {
        &self.states[value.0 as usize]
    }

    /// The cut of a value, if it has one.
    pub(crate) fn cut(&self, value: ValueId) -> Option<&Cut> {
        match self.state(value) {
            State::Cut(cut) => Some(cut),
            State::Whole | State::Partial => None,
        }
    }
}

/// How the readers of a value want it.
#[derive(Clone, PartialEq)]
enum Demand {
    /// No reader seen yet.
    None,
    /// All readers want this cut.
    Cut(Cut),
    /// A reader wants the whole row, or readers want different cuts.
    Whole,
}

struct Planner<'a> {
    program: &'a Program,
    ranks: usize,
    /// Ops that read each value.
    readers: Vec<Vec<usize>>,
    demands: Vec<Demand>,
    plan: Plan,
}

fn readers(program: &Program) -> Vec<Vec<usize>> {
    let mut readers = vec![Vec::new(); program.values.len()];
    for (at, op) in program.ops.iter().enumerate() {
        op.inputs().for_each(|value| readers[value.0 as usize].push(at));
    }
    readers
}

/// What an anchor's result leads to.
#[derive(Default)]
struct Reach {
    /// Values between the anchor and the matrices, itself included.
    values: Vec<ValueId>,
    /// The matrices that multiply a part of their inputs, and their results.
    matrices: Vec<(Matrix, ValueId)>,
}

impl Planner<'_> {
    fn width(&self, value: ValueId) -> usize {
        self.program.value(value).width()
    }

    fn is_tapped(&self, value: ValueId) -> bool {
        self.program.taps.iter().any(|(_, tapped)| *tapped == value)
    }

    /// Follows an anchor's result, of `groups` heads, to the matrices that read it; `None` if
    /// anything else does.
    fn reach(&self, value: ValueId, groups: Option<usize>, reach: &mut Reach) -> Option<()> {
        let readers = &self.readers[value.0 as usize];
        if self.is_tapped(value) || readers.is_empty() {
            return None;
        }
        reach.values.push(value);
        for op in readers.iter().map(|at| &self.program.ops[*at]) {
            match op {
                Op::Linear { matrix, out, .. } => reach.matrices.push((*matrix, *out)),
                Op::GroupLinear { matrices: Matrices { count: own, .. }, out, .. }
                | Op::Norm { groups: own, out, .. }
                | Op::Slice { groups: own, out, .. }
                    if Some(*own) == groups =>
                {
                    self.reach(*out, groups, reach)?;
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Elements of a stored row that cannot be separated, for a matrix of which a part of the
    /// inputs is read.
    fn block(&self, matrix: &Matrix) -> usize {
        // Transposed matrices are dequantized as a whole.
        if matrix.input_stride == 1 { self.program.weight(matrix.weight).block.max(1) } else { 1 }
    }

    fn name(&self, weight: WeightId) -> String {
        self.program.weight(self.program.resolve(weight)).name.clone()
    }

    /// Cuts the result of an anchor, and marks the results of the matrices that it leads to as
    /// partial.
    fn anchor(&mut self, op: &Op) -> Result<(), SplitError> {
        let ranks = self.ranks;
        match op {
            Op::UpdateAndAttend { q, layer, out, .. } => {
                let facts = self.program.layers[layer.0 as usize];
                let heads = self.width(*q) / facts.key_dim.max(1);
                let mut reach = Reach::default();
                if self.reach(*out, Some(heads), &mut reach).is_none() {
                    return Ok(());
                }
                let fits = |matrix: &Matrix, head: usize| {
                    (matrix.offset + head * (matrix.inputs / heads)).is_multiple_of(self.block(matrix))
                };
                let may_cut = |head: usize| reach.matrices.iter().all(|(matrix, _)| fits(matrix, head));
                let cut = cuts::heads(heads, facts.kv_heads, ranks, may_cut).ok_or_else(|| {
                    let coarse = reach.matrices.iter().max_by_key(|(matrix, _)| self.block(matrix));
                    match coarse.filter(|_| cuts::heads(heads, facts.kv_heads, ranks, |_| true).is_some()) {
                        Some((matrix, _)) => self.blocks_error(matrix),
                        None => SplitError::Heads {
                            architecture: self.program.architecture.clone(),
                            layer: layer.0,
                            heads,
                            kv_heads: facts.kv_heads,
                            ranks,
                        },
                    }
                })?;
                self.plan.kv_heads[layer.0 as usize] = Some(cut.kv_heads);
                self.cut(&reach, &cut.heads, heads);
            }
            Op::Gate { out, .. } => {
                let mut reach = Reach::default();
                if self.reach(*out, None, &mut reach).is_none() {
                    return Ok(());
                }
                let (width, block) = (self.width(*out), |matrix: &Matrix| self.block(matrix));
                let blocks =
                    reach.matrices.iter().fold(1, |all, (m, _)| cuts::common_multiple(all, block(m)));
                let Some(cut) = cuts::columns(width, blocks, ranks) else {
                    let coarse = reach.matrices.iter().max_by_key(|(matrix, _)| block(matrix));
                    return coarse.map_or(Ok(()), |(matrix, _)| Err(self.blocks_error(matrix)));
                };
                self.cut(&reach, &cut, width);
            }
            // The sum of two partial rows is partial: they are summed over the ranks once, unless a
            // reader needs one of them by itself.
            Op::Add { a, b, out } => {
                let alone = |x: &ValueId| {
                    *self.plan.state(*x) == State::Partial
                        && self.readers[x.0 as usize].len() == 1
                        && !self.is_tapped(*x)
                };
                if alone(a) && alone(b) {
                    self.plan.states[out.0 as usize] = State::Partial;
                }
            }
            Op::Mixture { experts, out, .. } => {
                if experts.gate.count < ranks {
                    let (architecture, experts) = (self.program.architecture.clone(), experts.gate.count);
                    return Err(SplitError::Experts { architecture, experts, ranks });
                }
                self.plan.states[out.0 as usize] = State::Partial;
            }
            _ => {}
        }
        Ok(())
    }

    fn blocks_error(&self, matrix: &Matrix) -> SplitError {
        let (tensor, columns, ranks) = (self.name(matrix.weight), matrix.inputs, self.ranks);
        match self.block(matrix) {
            1 => SplitError::Columns { tensor, columns, ranks },
            block => SplitError::Blocks { tensor, columns, block, ranks },
        }
    }

    /// Cuts the values of a reach, whose rows consist of `units` units.
    fn cut(&mut self, reach: &Reach, cut: &Cut, units: usize) {
        for value in &reach.values {
            let unit = self.width(*value) / units.max(1);
            self.plan.states[value.0 as usize] = State::Cut(cuts::scaled(cut, unit));
        }
        for (_, out) in &reach.matrices {
            self.plan.states[out.0 as usize] = State::Partial;
        }
    }

    fn demand(&mut self, value: ValueId, cut: Option<Cut>) {
        let width = self.width(value);
        // Equal parts that are the whole row: each rank computes it.
        let cut = cut.filter(|cut| cut.iter().any(|part| *part != (0..width)));
        let demand = &mut self.demands[value.0 as usize];
        *demand = match (cut, &*demand) {
            (Some(cut), Demand::None) => Demand::Cut(cut),
            (Some(cut), Demand::Cut(have)) if cut == *have => return,
            _ => Demand::Whole,
        };
    }

    /// Demands a value whose `groups` groups are cut like `units`.
    fn demand_groups(&mut self, value: ValueId, units: &Cut, groups: usize) {
        let width = self.width(value) / groups.max(1);
        self.demand(value, Some(cuts::scaled(units, width)));
    }

    /// Settles the state of an op's result, and tells its operands how it wants them. All readers
    /// of the result have been seen.
    fn pass_demands_up(&mut self, op: &Op) {
        let out = op.out();
        if let (State::Whole, Demand::Cut(cut)) = (self.plan.state(out), &self.demands[out.0 as usize])
            && !self.is_tapped(out)
            && self.makes_parts(op, cut)
        {
            self.plan.states[out.0 as usize] = State::Cut(cut.clone());
        }
        let Some(cut) = self.plan.cut(out).cloned() else {
            // Readers of a cut anchor were seen by `reach`; they want it as it is.
            for value in op.inputs().filter(|value| self.plan.cut(*value).is_none()).collect::<Vec<_>>() {
                self.demand(value, None);
            }
            return;
        };
        let width = self.width(out);
        let units = |groups: usize| cuts::in_units(&cut, width / groups.max(1));
        match op {
            Op::UpdateAndAttend { q, k, v, layer, .. } => {
                let facts = self.program.layers[layer.0 as usize];
                if let (Some(heads), Some(kv)) =
                    (cuts::in_units(&cut, facts.value_dim), self.plan.kv_heads[layer.0 as usize].clone())
                {
                    self.demand_groups(*q, &heads, width / facts.value_dim.max(1));
                    self.demand_groups(*k, &kv, facts.kv_heads);
                    v.iter().for_each(|v| self.demand_groups(*v, &kv, facts.kv_heads));
                }
            }
            Op::Gate { gate, up, .. } => {
                self.demand(*gate, Some(cut.clone()));
                self.demand(*up, Some(cut));
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

    /// Whether an op can make the parts of its result one by one.
    fn makes_parts(&self, op: &Op, cut: &Cut) -> bool {
        let width = self.width(op.out());
        let by_group = |groups: usize| cuts::in_units(cut, width / groups.max(1)).is_some();
        match op {
            Op::Linear { .. } => true,
            // A part of a slice is a slice.
            Op::Slice { groups, .. } => *groups == 1 || by_group(*groups),
            Op::GroupLinear { matrices, .. } => by_group(matrices.count),
            Op::Norm { groups, .. } | Op::Rotary { groups, .. } | Op::Concat { groups, .. } => {
                by_group(*groups)
            }
            _ => false,
        }
    }
}

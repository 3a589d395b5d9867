//! Dead-code elimination: removes ops whose result no op reads, and weights that no op names.

use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, Vector, WeightId};

/// Removes dead ops, their values, and unused weights. Renumbers ids densely in the same order.
pub(crate) fn prune(program: &mut Program) {
    let mut live = vec![false; program.values.len()];
    for (_, value) in &program.taps {
        live[value.0 as usize] = true;
    }
    if let Some(logits) = program.logits() {
        live[logits.0 as usize] = true;
    }
    let mut kept: Vec<Op> = Vec::with_capacity(program.ops.len());
    for op in std::mem::take(&mut program.ops).into_iter().rev() {
        // Attention writes the KV cache, so it is live even if its result is not read.
        if live[op.out().0 as usize] || matches!(op, Op::UpdateAndAttend { .. }) {
            live[op.out().0 as usize] = true;
            op.inputs().for_each(|value| live[value.0 as usize] = true);
            kept.push(op);
        }
    }
    kept.reverse();
    program.ops = kept;
    renumber_values(program, &live);
    remove_unused_weights(program);
}

fn renumber_values(program: &mut Program, live: &[bool]) {
    let mut next = 0;
    let new: Vec<u32> = live
        .iter()
        .map(|live| {
            next += u32::from(*live);
            next.saturating_sub(1)
        })
        .collect();
    let renumber = |value: ValueId| ValueId(new[value.0 as usize]);
    for op in &mut program.ops {
        let out = renumber(op.out());
        op.replace(renumber);
        op.set_out(out);
    }
    program.taps.iter_mut().for_each(|(_, value)| *value = renumber(*value));
    let mut live = live.iter();
    program.values.retain(|_| live.next().copied().unwrap_or(false));
}

fn remove_unused_weights(program: &mut Program) {
    let mut used = vec![false; program.weights.len()];
    for op in &program.ops {
        weights_of(op, &mut |first, last| used[first.0 as usize..=last.0 as usize].fill(true));
    }
    for id in (0..program.weights.len()).rev() {
        if used[id]
            && let Some(tie) = program.weights[id].tie
        {
            used[tie.0 as usize] = true;
        }
    }
    let mut next = 0;
    let new: Vec<u32> = used
        .iter()
        .map(|used| {
            next += u32::from(*used);
            next.saturating_sub(1)
        })
        .collect();
    let renumber = |id: &mut WeightId| *id = WeightId(new[id.0 as usize]);
    for op in &mut program.ops {
        renumber_weights(op, &renumber);
    }
    for weight in &mut program.weights {
        weight.tie.iter_mut().for_each(renumber);
    }
    let mut used = used.iter();
    program.weights.retain(|_| used.next().copied().unwrap_or(false));
}

/// Calls `take` with the inclusive ranges of weight ids that an op names. Ids of a family's
/// matrices are strided; the ids between them are kept, too, so that the stride stays valid.
fn weights_of(op: &Op, take: &mut dyn FnMut(WeightId, WeightId)) {
    let mut matrix = |first: &Matrix, last: &Matrix| {
        take(first.weight, last.weight);
        if let (Some(first), Some(last)) = (&first.bias, &last.bias) {
            take(first.weight, last.weight);
        }
    };
    let mut family = |of: &Matrices| matrix(&of.first, &of.nth(of.count.saturating_sub(1)));
    match op {
        Op::Linear { matrix: m, .. } | Op::Head { matrix: m, .. } => matrix(m, m),
        Op::GroupLinear { matrices, .. } => family(matrices),
        Op::Mixture { experts, .. } => {
            [&experts.gate, &experts.up, &experts.down].into_iter().for_each(family)
        }
        Op::Embed { table, .. } => take(*table, *table),
        Op::Norm { weight, bias, .. } => {
            take(*weight, *weight);
            bias.iter().for_each(|bias| take(*bias, *bias));
        }
        Op::UpdateAndAttend { sinks, .. } => {
            sinks.iter().for_each(|Vector { weight, .. }| take(*weight, *weight));
        }
        Op::Route { routing, .. } => routing.correction.iter().for_each(|id| take(*id, *id)),
        Op::Hidden { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Rotary { .. }
        | Op::SelectKeys { .. }
        | Op::Gate { .. }
        | Op::Add { .. }
        | Op::Collect { .. }
        | Op::Gather { .. } => {}
    }
}

/// Renumbers the weights that an op names.
fn renumber_weights(op: &mut Op, renumber: &dyn Fn(&mut WeightId)) {
    let matrix = |matrix: &mut Matrix| {
        renumber(&mut matrix.weight);
        matrix.bias.iter_mut().for_each(|bias| renumber(&mut bias.weight));
    };
    match op {
        Op::Linear { matrix: m, .. } | Op::Head { matrix: m, .. } => matrix(m),
        Op::GroupLinear { matrices, .. } => matrix(&mut matrices.first),
        Op::Mixture { experts, .. } => {
            [&mut experts.gate, &mut experts.up, &mut experts.down]
                .into_iter()
                .for_each(|family| matrix(&mut family.first));
        }
        Op::Embed { table, .. } => renumber(table),
        Op::Norm { weight, bias, .. } => {
            renumber(weight);
            bias.iter_mut().for_each(renumber);
        }
        Op::UpdateAndAttend { sinks, .. } => sinks.iter_mut().for_each(|sinks| renumber(&mut sinks.weight)),
        Op::Route { routing, .. } => routing.correction.iter_mut().for_each(renumber),
        Op::Hidden { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Rotary { .. }
        | Op::SelectKeys { .. }
        | Op::Gate { .. }
        | Op::Add { .. }
        | Op::Collect { .. }
        | Op::Gather { .. } => {}
    }
}

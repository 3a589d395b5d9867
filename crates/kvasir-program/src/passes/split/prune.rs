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
        // Ops that write the KV cache or a state are live even if their results are not read.
        let writes =
            matches!(op, Op::UpdateAndAttend { .. } | Op::CompressedAttend { .. }) || op.state().is_some();
        if live[op.out().0 as usize] || writes {
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

/// The new id of each kept item, if items that are not kept are removed.
fn dense_ids(is_kept: &[bool]) -> Vec<u32> {
    let mut next = 0;
    let number = |is_kept: &bool| {
        next += u32::from(*is_kept);
        next.saturating_sub(1)
    };
    is_kept.iter().map(number).collect()
}

fn renumber_values(program: &mut Program, live: &[bool]) {
    let new = dense_ids(live);
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
    for op in &mut program.ops {
        visit_weights(op, &mut |first, last| used[first.0 as usize..=last.0 as usize].fill(true));
    }
    for id in (0..program.weights.len()).rev() {
        if used[id]
            && let Some(tie) = program.weights[id].tie
        {
            used[tie.0 as usize] = true;
        }
    }
    let new = dense_ids(&used);
    let renumber = |id: &mut WeightId| *id = WeightId(new[id.0 as usize]);
    for op in &mut program.ops {
        visit_weights(op, &mut |first, _| renumber(first));
    }
    for weight in &mut program.weights {
        weight.tie.iter_mut().for_each(renumber);
    }
    let mut used = used.iter();
    program.weights.retain(|_| used.next().copied().unwrap_or(false));
}

/// Calls `visit` with each weight id that an op stores, and the last id that it stands for. That is
/// another one for a family of matrices: their ids are strided, and the ids between them are kept,
/// too, so that the stride stays valid.
fn visit_weights(op: &mut Op, visit: &mut dyn FnMut(&mut WeightId, WeightId)) {
    let mut matrix = |first: &mut Matrix, last: Matrix| {
        visit(&mut first.weight, last.weight);
        if let (Some(first), Some(last)) = (&mut first.bias, last.bias) {
            visit(&mut first.weight, last.weight);
        }
    };
    let mut family = |of: &mut Matrices| {
        let last = of.nth(of.count.saturating_sub(1));
        matrix(&mut of.first, last);
    };
    match op {
        Op::Linear { matrix: m, .. } | Op::Head { matrix: m, .. } => {
            let last = *m;
            matrix(m, last);
        }
        Op::GroupLinear { matrices, .. } => family(matrices),
        Op::Mixture { experts, .. } => {
            [&mut experts.gate, &mut experts.up, &mut experts.down].into_iter().for_each(family);
        }
        Op::Embed { table, .. } | Op::Lookup { table, .. } => visit_one(table, visit),
        Op::Norm { weight, bias, .. } => {
            weight.iter_mut().chain(bias).for_each(|id| visit_one(id, visit));
        }
        Op::ShortConv { weight, bias, .. } => {
            visit_one(weight, visit);
            bias.iter_mut().for_each(|bias| visit_one(bias, visit));
        }
        Op::GatedDelta { form, .. } => {
            [&mut form.decay, &mut form.dt_bias].into_iter().for_each(|id| visit_one(id, visit));
        }
        Op::SelectiveScan { form, .. } => {
            let ids = [&mut form.decay, &mut form.dt_bias, &mut form.skip];
            ids.into_iter().for_each(|id| visit_one(id, visit));
        }
        Op::HyperConnection { form, .. } => {
            [&mut form.scale, &mut form.base].into_iter().for_each(|id| visit_one(id, visit));
        }
        Op::CompressedAttend { sinks, pool, .. } => {
            pool.combine.weights_mut().into_iter().flatten().for_each(|id| visit_one(id, visit));
            visit_one(&mut sinks.weight, visit);
        }
        Op::NgramEmbed { form, .. } => {
            form.tables.iter_mut().for_each(|table| visit_one(table, visit));
        }
        Op::SelectKeys { pool, .. } => {
            let weights = pool.iter_mut().flat_map(|pool| pool.combine.weights_mut()).flatten();
            weights.for_each(|id| visit_one(id, visit));
        }
        Op::Scale { by, .. } => by.iter_mut().for_each(|id| visit_one(id, visit)),
        Op::UpdateAndAttend { sinks, .. } => {
            sinks.iter_mut().for_each(|Vector { weight, .. }| visit_one(weight, visit));
        }
        Op::Route { routing, .. } => {
            let ids = routing.correction.iter_mut().chain(&mut routing.expert_scale);
            let ids = ids.chain(&mut routing.token_table);
            ids.for_each(|id| visit_one(id, visit));
        }
        Op::Hidden { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Rotary { .. }
        | Op::Gate { .. }
        | Op::Elementwise { .. }
        | Op::GroupDot { .. }
        | Op::MixStreams { .. }
        | Op::Pool { .. }
        | Op::Add { .. }
        | Op::Collect { .. }
        | Op::Gather { .. } => {}
    }
}

fn visit_one(id: &mut WeightId, visit: &mut dyn FnMut(&mut WeightId, WeightId)) {
    let last = *id;
    visit(id, last);
}

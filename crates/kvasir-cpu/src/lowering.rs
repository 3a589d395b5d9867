use crate::model::OpWeights;
use crate::weights::Packed;
use kvasir_program::{Op, Program};

/// Which ops run inside the next one: their rows are made where they are taken, and never stored.
///
/// A norm or a gate whose result only matrices take makes each row just before it is quantised; a norm before a rotation makes its row in
/// the rotation's place. The arithmetic is the same, so the bits are.
pub(crate) fn merged(program: &Program, weights: &[OpWeights]) -> Vec<bool> {
    let fits = |at: usize| {
        let op = &program.ops[at];
        let taken = |by: &Op| by.inputs().any(|value| value == op.out());
        let Some(next) = program.ops.get(at + 1).filter(|next| taken(next)) else { return false };
        if !matches!(op, Op::Norm { .. } | Op::Gate { .. }) {
            return false;
        }
        let last = (at + 1..program.ops.len()).rfind(|i| taken(&program.ops[*i])).unwrap_or(at);
        if matches!(next, Op::Rotary { .. }) {
            return last == at + 1;
        }
        // What is prepared for the first matrix serves the others, if nothing else is prepared in between.
        let Some(form) = form(&weights[at + 1]) else { return false };
        (at + 1..=last).all(|i| {
            let matrix = matches!(program.ops[i], Op::Linear { .. } | Op::Head { .. });
            match (taken(&program.ops[i]), matrix) {
                (true, true) => self::form(&weights[i]) == Some(form),
                (takes, _) => !takes && matches!(weights[i], OpWeights::None),
            }
        })
    };
    (0..program.ops.len()).map(fits).collect()
}

/// In which form a matrix takes rows, if it takes them in another form than they are in.
fn form(weights: &OpWeights) -> Option<bool> {
    match weights {
        OpWeights::One(l) => match l.packed {
            Packed::Quant(_) => Some(true),
            Packed::Bf16(_) => Some(false),
            Packed::F32(_) => None,
        },
        _ => None,
    }
}

//! Programs as text: an op per line.

use crate::{Holds, Matrices, Matrix, NormKind, Op, Pairs, Program, Purpose, ValueId, WeightId};
use std::fmt::{self, Display, Formatter};

impl Display for ValueId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Purpose::Target => writeln!(f, "program {}", self.architecture)?,
            Purpose::Prediction { index } => {
                writeln!(f, "program {} prediction {index}", self.architecture)?;
            }
        }
        for op in &self.ops {
            let out = op.out();
            let width = match self.value(out).holds {
                Holds::Numbers(width) => width.to_string(),
                Holds::Routes(k) => format!("routes {k}"),
                Holds::Selection => "selection".to_owned(),
            };
            write!(f, "  {out} [{width}] = ")?;
            self.print_op(f, op)?;
            writeln!(f)?;
        }
        self.taps.iter().try_for_each(|(tap, value)| writeln!(f, "  tap {tap:?} {value}"))
    }
}

impl Program {
    fn name(&self, id: WeightId) -> &str {
        &self.weight(self.resolve(id)).name
    }

    fn print_op(&self, f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
        match op {
            Op::Embed { table, scale, .. } => write!(f, "embed {} scale {scale}", self.name(*table)),
            Op::Hidden { .. } => write!(f, "hidden"),
            Op::Norm { x, kind, weight, eps, groups, .. } => {
                let kind = match kind {
                    NormKind::Rms => "rms",
                    NormKind::RmsPlusOne => "rms 1+w",
                    NormKind::Layer => "layer",
                };
                write!(f, "norm {x} {} {kind} eps {eps} groups {groups}", self.name(*weight))
            }
            Op::Linear { x, matrix, .. } => write!(f, "linear {x} {}", self.matrix(matrix)),
            Op::GroupLinear { x, matrices, .. } => write!(f, "group_linear {x} {}", self.matrices(matrices)),
            Op::Slice { x, groups, start, width, .. } => {
                write!(f, "slice {x} {start}..{} groups {groups}", start + width)
            }
            Op::Concat { a, b, groups, .. } => write!(f, "concat {a} {b} groups {groups}"),
            Op::Rotary { x, groups, start, rope, pairs, .. } => {
                let dims = self.ropes[rope.0 as usize].dims();
                let pairs = if *pairs == Pairs::Half { "half" } else { "interleaved" };
                write!(f, "rotary {x} rope {} {start}..{} {pairs} groups {groups}", rope.0, start + dims)
            }
            Op::SelectKeys { q, k, weights, layer, top_k, .. } => {
                write!(f, "select_keys {q} {k} {weights} layer {} top {top_k}", layer.0)
            }
            Op::UpdateAndAttend { q, k, v, layer, scale, soft_cap, sinks, selection, .. } => {
                write!(f, "update_and_attend {q} {k}")?;
                v.iter().try_for_each(|v| write!(f, " {v}"))?;
                write!(f, " layer {} scale {scale}", layer.0)?;
                soft_cap.iter().try_for_each(|cap| write!(f, " soft_cap {cap}"))?;
                sinks.iter().try_for_each(|sinks| write!(f, " sinks {}", self.name(*sinks)))?;
                selection.iter().try_for_each(|s| write!(f, " of {s}"))
            }
            Op::Gate { gate, up, activation, .. } => write!(f, "gate {gate} {up} {activation:?}"),
            Op::Add { a, b, .. } => write!(f, "add {a} {b}"),
            Op::Route { scores, routing, .. } => {
                write!(
                    f,
                    "route {scores} {:?} top {} scale {}",
                    routing.score, routing.top_k, routing.scale
                )?;
                routing.groups.iter().try_for_each(|g| write!(f, " groups {} of {}", g.keep, g.count))?;
                routing.correction.iter().try_for_each(|c| write!(f, " correction {}", self.name(*c)))?;
                routing.renormalise.iter().try_for_each(|eps| write!(f, " renormalise {eps}"))
            }
            Op::Mixture { x, routes, experts, .. } => {
                write!(
                    f,
                    "mixture {x} {routes} {} gate {}",
                    experts.gate.count,
                    self.matrix(&experts.gate.first)
                )?;
                let (up, down) = (&experts.up.first, &experts.down.first);
                write!(f, " up {} down {} {:?}", self.matrix(up), self.matrix(down), experts.activation)
            }
            Op::Collect { x, how, .. } => write!(f, "collect {x} {how:?}"),
            Op::Gather { x, .. } => write!(f, "gather {x}"),
            Op::Head { x, matrix, soft_cap, .. } => {
                write!(f, "head {x} {}", self.matrix(matrix))?;
                soft_cap.iter().try_for_each(|cap| write!(f, " soft_cap {cap}"))
            }
        }
    }

    fn matrix(&self, matrix: &Matrix) -> String {
        let bias = if matrix.bias.is_some() { " + bias" } else { "" };
        format!("{} [{}, {}]{bias}", self.name(matrix.weight), matrix.outputs, matrix.inputs)
    }

    fn matrices(&self, matrices: &Matrices) -> String {
        format!("{} × {}", matrices.count, self.matrix(&matrices.first))
    }
}

//! `Display` for programs: a readable dump, one op per line (`%value [width] = op operands`).

use crate::ir::key_pool::{KeyPool, KeyPooling};
use crate::ir::moe::{Experts, Routing};
use crate::ir::op::{NormKind, Op, Pairs};
use crate::ir::program::{Program, Purpose, Shard};
use crate::ir::recurrent::{DecayGate, DeltaForm, ScanForm};
use crate::ir::rope::Rope;
use crate::ir::value::{Holds, ValueId};
use crate::ir::weight::{Matrices, Matrix, Vector, WeightId};
use std::borrow::Cow;
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
            Purpose::DraftHead => writeln!(f, "draft head of {}", self.architecture)?,
            Purpose::Prediction { index } => {
                writeln!(f, "program {} prediction {index}", self.architecture)?;
            }
        }
        if let Some(Shard { rank, ranks }) = self.shard {
            writeln!(f, "  rank {rank} of {ranks}")?;
        }
        for (number, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "  rope {number} [{}] {rope}", rope.dims())?;
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

/// The base and the position scaling if all frequencies follow from them; else the first and last
/// frequency.
impl Display for Rope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        frequencies(f, &self.inv_freq)?;
        if self.amplitude != 1.0 {
            write!(f, " amplitude {}", self.amplitude)?;
        }
        if let Some(long) = &self.long {
            write!(f, " beyond {} tokens ", long.after)?;
            frequencies(f, &long.inv_freq)?;
        }
        if let Some(temperature) = &self.temperature {
            write!(f, " growing by {} per ln of {} positions", temperature.beta, temperature.period)?;
        }
        Ok(())
    }
}

fn frequencies(f: &mut Formatter<'_>, inv_freq: &[f32]) -> fmt::Result {
    let (Some(first), Some(last)) = (inv_freq.first(), inv_freq.last()) else { return write!(f, "empty") };
    let (pairs, start) = (inv_freq.len(), f64::from(*first));
    let ratio = (f64::from(*last) / start).powf(1.0 / (pairs - 1).max(1) as f64);
    let even = |(i, v): (usize, &f32)| (start * ratio.powi(i as i32) / f64::from(*v) - 1.0).abs() < 1e-3;
    if !inv_freq.iter().enumerate().all(even) {
        return write!(f, "frequencies {first} to {last}, not all scaled alike");
    }
    // Frequencies are f32, so a base derived from them is accurate to four digits.
    let base = ratio.powi(-(pairs as i32));
    let unit = 10f64.powi(base.log10().ceil() as i32 - 4).max(1.0);
    write!(f, "base {}", (base / unit).round() * unit)?;
    if *first != 1.0 { write!(f, " positions / {}", 1.0 / first) } else { Ok(()) }
}

/// Prints head counts, head dimensions and decay granularity of a gated delta rule.
fn print_heads(f: &mut Formatter<'_>, form: &DeltaForm) -> fmt::Result {
    write!(f, " heads {} to {}", form.key_heads, form.value_heads)?;
    write!(f, " {:?} of [{}, {}]", form.head_map, form.key_dim, form.value_dim)?;
    if form.gate != DecayGate::Head { write!(f, " decay per {:?}", form.gate) } else { Ok(()) }
}

impl Program {
    /// The name of a weight, followed by its range of elements if it is a part of a tensor.
    fn name(&self, id: WeightId) -> Cow<'_, str> {
        let weight = self.weight(self.resolve(id));
        match &weight.part {
            Some(part) => format!("{}[{}..{}]", weight.name, part.start, part.end).into(),
            None => weight.name.as_str().into(),
        }
    }

    fn print_op(&self, f: &mut Formatter<'_>, op: &Op) -> fmt::Result {
        match op {
            Op::Embed { table, scale, .. } => write!(f, "embed {} scale {scale}", self.name(*table)),
            Op::Lookup { table, index, .. } => write!(f, "lookup {} {index:?}", self.name(*table)),
            Op::NgramEmbed { form, state, .. } => {
                write!(f, "ngram_embed")?;
                form.tables.iter().try_for_each(|table| write!(f, " {}", self.name(*table)))?;
                write!(f, " up to {} heads {} state {}", form.size, form.heads, state.0)
            }
            Op::Hidden { .. } => write!(f, "hidden"),
            Op::Norm { x, kind, weight, bias, eps, groups, .. } => {
                let kind = match kind {
                    NormKind::Rms => "rms",
                    NormKind::RmsPlusOne => "rms 1+w",
                    NormKind::Layer => "layer",
                };
                write!(f, "norm {x}")?;
                weight.iter().try_for_each(|weight| write!(f, " {}", self.name(*weight)))?;
                bias.iter().try_for_each(|bias| write!(f, " + {}", self.name(*bias)))?;
                write!(f, " {kind} eps {eps} groups {groups}")
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
            Op::SelectKeys { q, k, weights, layer, top_k, pool, .. } => {
                write!(f, "select_keys {q} {k}")?;
                weights.iter().try_for_each(|weights| write!(f, " {weights}"))?;
                write!(f, " layer {} top {top_k}", layer.0)?;
                pool.iter().try_for_each(|pool| self.print_pool(f, pool))
            }
            Op::UpdateAndAttend { q, k, v, layer, scale, soft_cap, sinks, selection, .. } => {
                write!(f, "update_and_attend {q}")?;
                k.iter().chain(v).try_for_each(|operand| write!(f, " {operand}"))?;
                write!(f, " layer {} scale {scale}", layer.0)?;
                soft_cap.iter().try_for_each(|cap| write!(f, " soft_cap {cap}"))?;
                sinks.iter().try_for_each(|sinks| self.print_sinks(f, sinks))?;
                selection.iter().try_for_each(|s| write!(f, " of {s}"))
            }
            Op::CompressedAttend { q, k, row, selection, layer, scale, sinks, window, pool, .. } => {
                write!(f, "compressed_attend {q} {k}")?;
                row.iter().try_for_each(|row| write!(f, " {row}"))?;
                write!(f, " layer {} scale {scale} sinks {}", layer.0, self.name(sinks.weight))?;
                write!(f, " window {window}")?;
                self.print_pool(f, pool)?;
                selection.iter().try_for_each(|s| write!(f, " of {s}"))
            }
            Op::ShortConv { x, weight, bias, kernel, dilation, silu, state, .. } => {
                write!(f, "short_conv {x} {}", self.name(*weight))?;
                bias.iter().try_for_each(|bias| write!(f, " + {}", self.name(*bias)))?;
                write!(f, " kernel {kernel}")?;
                if *dilation != 1 {
                    write!(f, " dilation {dilation}")?;
                }
                write!(f, "{} state {}", if *silu { " silu" } else { "" }, state.0)
            }
            Op::GatedDelta { q, k, v, decay, beta, form, state, .. } => {
                let (rate, dt_bias) = (self.name(form.decay), self.name(form.dt_bias));
                write!(f, "gated_delta {q} {k} {v} decay {decay} {rate} + {dt_bias} beta {beta}")?;
                print_heads(f, form)?;
                write!(f, " state {}", state.0)
            }
            Op::SelectiveScan { x, b, c, dt, form, state, .. } => {
                write!(f, "selective_scan {x} {b} {c} dt {dt}")?;
                self.print_scan(f, form)?;
                write!(f, " state {}", state.0)
            }
            Op::Gate { gate, up, activation, .. } => write!(f, "gate {gate} {up} {activation:?}"),
            Op::Scale { x, factor, by, .. } => {
                write!(f, "scale {x} {factor}")?;
                by.iter().try_for_each(|by| write!(f, " {}", self.name(*by)))
            }
            Op::Elementwise { x, function, .. } => write!(f, "elementwise {x} {function:?}"),
            Op::GroupDot { a, b, groups, .. } => write!(f, "group_dot {a} {b} groups {groups}"),
            Op::HyperConnection { x, form, .. } => {
                write!(f, "hyper_connection {x} scale {}", self.name(form.scale))?;
                write!(f, " + {} streams {}", self.name(form.base), form.streams)?;
                write!(f, " iterations {} eps {}", form.iterations, form.eps)
            }
            Op::MixStreams { x, weights, streams, .. } => {
                write!(f, "mix_streams {x} by {weights} streams {streams}")
            }
            Op::Add { a, b, .. } => write!(f, "add {a} {b}"),
            Op::Route { scores, routing, .. } => {
                write!(f, "route {scores}")?;
                self.print_routing(f, routing)
            }
            Op::Mixture { x, routes, experts, .. } => {
                write!(f, "mixture {x} {routes}")?;
                self.print_experts(f, experts)
            }
            Op::Collect { x, how, .. } => write!(f, "collect {x} {how:?}"),
            Op::Gather { x, .. } => write!(f, "gather {x}"),
            Op::Pool { x, pooling, .. } => write!(f, "pool {x} {}", pooling.name()),
            Op::Head { x, matrix, scale, soft_cap, .. } => {
                write!(f, "head {x} {}", self.matrix(matrix))?;
                if *scale != 1.0 {
                    write!(f, " scale {scale}")?;
                }
                soft_cap.iter().try_for_each(|cap| write!(f, " soft_cap {cap}"))
            }
        }
    }

    fn print_sinks(&self, f: &mut Formatter<'_>, sinks: &Vector) -> fmt::Result {
        write!(f, " sinks {}", self.name(sinks.weight))?;
        if sinks.offset != 0 { write!(f, " from {}", sinks.offset) } else { Ok(()) }
    }

    fn print_scan(&self, f: &mut Formatter<'_>, form: &ScanForm) -> fmt::Result {
        let [dt_bias, decay, skip] = [form.dt_bias, form.decay, form.skip].map(|id| self.name(id));
        write!(f, " + {dt_bias} decay {decay} skip {skip}")?;
        write!(f, " heads {} in {} groups", form.heads, form.groups)?;
        write!(f, " of [{}, {}]", form.head_dim, form.state_dim)
    }

    fn print_routing(&self, f: &mut Formatter<'_>, routing: &Routing) -> fmt::Result {
        write!(f, " {:?} top {} scale {}", routing.score, routing.top_k, routing.scale)?;
        routing.groups.iter().try_for_each(|g| write!(f, " groups {} of {}", g.keep, g.count))?;
        routing.correction.iter().try_for_each(|c| write!(f, " correction {}", self.name(*c)))?;
        routing.token_table.iter().try_for_each(|t| write!(f, " by token {}", self.name(*t)))?;
        routing.renormalize.iter().try_for_each(|eps| write!(f, " renormalize {eps}"))?;
        routing.expert_scale.iter().try_for_each(|w| write!(f, " expert scale {}", self.name(*w)))
    }

    fn print_experts(&self, f: &mut Formatter<'_>, experts: &Experts) -> fmt::Result {
        let parts = [("gate", &experts.gate), ("up", &experts.up), ("down", &experts.down)];
        parts.iter().try_for_each(|(name, part)| write!(f, " {name} {}", self.matrices(part)))?;
        write!(f, " {:?}", experts.activation)?;
        if experts.first != 0 { write!(f, " from expert {}", experts.first) } else { Ok(()) }
    }

    fn print_pool(&self, f: &mut Formatter<'_>, pool: &KeyPool) -> fmt::Result {
        write!(f, " in pools of {}", pool.size)?;
        match pool.combine {
            KeyPooling::Gated { bias } => write!(f, " gates + {}", self.name(bias)),
            KeyPooling::Mean { norm, plus, eps, rope } => {
                write!(f, " mean rms {} plus {plus} eps {eps} rope {}", self.name(norm), rope.0)
            }
            KeyPooling::Compressed { start, dim, parts, bias, norm, eps, rope } => {
                write!(f, " from {start} entries of {dim} by {parts} gates + {}", self.name(bias))?;
                write!(f, " rms {} eps {eps} rope {}", self.name(norm), rope.0)
            }
        }
    }

    fn matrix(&self, matrix: &Matrix) -> String {
        let mut text = format!("{} [{}, {}]", self.name(matrix.weight), matrix.outputs, matrix.inputs);
        if matrix.offset != 0 {
            text += &format!(" from {}", matrix.offset);
        }
        if (matrix.output_stride, matrix.input_stride) != (matrix.inputs, 1) {
            text += &format!(" strides [{}, {}]", matrix.output_stride, matrix.input_stride);
        }
        if let Some(bias) = &matrix.bias {
            text += &format!(" + {}", self.name(bias.weight));
            if bias.offset != 0 {
                text += &format!(" from {}", bias.offset);
            }
            if bias.stride != 1 {
                text += &format!(" stride {}", bias.stride);
            }
        }
        text
    }

    fn matrices(&self, matrices: &Matrices) -> String {
        let each = match (matrices.weight_stride, matrices.offset_stride) {
            (0, offset) => format!("{offset} apart"),
            (1, 0) => "a weight each".to_owned(),
            (weights, 0) => format!("every {weights} weights"),
            (weights, offset) => format!("every {weights} weights and {offset} apart"),
        };
        format!("{} × {} {each}", matrices.count, self.matrix(&matrices.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::rope::LongRope;

    #[test]
    fn printed_ropes_show_base_and_scaling() {
        let of = |base: f64, stretch: f64| -> Vec<f32> {
            (0..64).map(|i| (base.powf(f64::from(-i) / 64.0) / stretch) as f32).collect()
        };
        let rope = |inv_freq: Vec<f32>| Rope { inv_freq, amplitude: 1.0, long: None, temperature: None };
        assert_eq!(rope(of(1e6, 1.0)).to_string(), "base 1000000");
        assert_eq!(rope(of(5e5, 8.0)).to_string(), "base 500000 positions / 8");
        let mut uneven = of(1e4, 1.0);
        uneven[63] /= 32.0;
        assert!(rope(uneven).to_string().contains("not all scaled alike"));
        let long = Some(LongRope { after: 4096, inv_freq: of(1e4, 4.0) });
        let both = Rope { inv_freq: of(1e4, 1.0), amplitude: 1.25, long, temperature: None };
        assert_eq!(both.to_string(), "base 10000 amplitude 1.25 beyond 4096 tokens base 10000 positions / 4");
    }
}

//! MoE: router, top-k selection, and expert matrices, one tensor each or stacked in one.

use crate::builder::Builder;
use crate::error::Result;
use crate::ir::activation::Activation;
use crate::ir::moe::{Experts, Routing, Score};
use crate::ir::value::ValueId;
use crate::ir::weight::{Matrices, Matrix, Role};

/// A MoE block whose experts are separate tensors.
#[derive(Clone, Copy)]
pub(crate) struct Routed {
    pub(crate) count: usize,
    /// Intermediate width of an expert.
    pub(crate) inner: usize,
    /// Tensor names of the gate, up and down projections.
    pub(crate) names: [&'static str; 3],
    pub(crate) activation: Activation,
    /// Tensor name of the correction bias that is added for the selection, if there is one.
    pub(crate) correction: Option<&'static str>,
    pub(crate) routing: Routing,
}

impl Routed {
    /// The usual tensor names.
    pub(crate) const NAMES: [&'static str; 3] = ["gate_proj", "up_proj", "down_proj"];

    /// The tensor names of Mixtral.
    pub(crate) const MIXTRAL_NAMES: [&'static str; 3] = ["w1", "w3", "w2"];

    /// The usual tensor name of the correction bias.
    pub(crate) const CORRECTION: &'static str = "gate.e_score_correction_bias";

    /// Builds the block; its tensor names start with `p`.
    pub(crate) fn build(&self, b: &mut Builder<'_>, p: &str, x: ValueId) -> Result<ValueId> {
        let scores = scores(b, x, &format!("{p}gate"), self.count, false)?;
        let correction = match self.correction {
            Some(name) => Some(b.weight(&format!("{p}{name}"), &[self.count], Role::Router)?),
            None => None,
        };
        let routes = b.route(scores, Routing { correction, ..self.routing })?;
        let p = format!("{p}experts.");
        let experts = named_experts(b, &p, self.count, self.inner, self.names, self.activation, false)?;
        b.mixture(x, routes, experts)
    }
}

/// Softmax top-k routing.
pub(crate) fn by_softmax(top_k: usize, renormalize: bool) -> Routing {
    Routing {
        score: Score::Softmax,
        top_k,
        correction: None,
        groups: None,
        renormalize: renormalize.then_some(0.0),
        scale: 1.0,
        token_table: None,
        expert_scale: None,
    }
}

/// Router scores, one per expert.
pub(crate) fn scores(
    b: &mut Builder<'_>,
    x: ValueId,
    router: &str,
    experts: usize,
    bias: bool,
) -> Result<ValueId> {
    let router = b.matrix(router, experts, b.program.hidden, bias, Role::Router)?;
    b.linear(x, router)
}

/// Declares experts that are stacked in two tensors: `{p}gate_up_proj` [experts, 2 * inner,
/// hidden], the gate's rows first, and `{p}down_proj` [experts, hidden, inner].
pub(crate) fn stacked_experts(
    b: &mut Builder<'_>,
    p: &str,
    count: usize,
    inner: usize,
    activation: Activation,
) -> Result<Experts> {
    stacked_experts_in(b, [format!("{p}gate_up_proj"), format!("{p}down_proj")], count, inner, activation)
}

/// [`stacked_experts`] with the complete names of both tensors.
pub(crate) fn stacked_experts_in(
    b: &mut Builder<'_>,
    [gate_up, down]: [String; 2],
    count: usize,
    inner: usize,
    activation: Activation,
) -> Result<Experts> {
    let hidden = b.program.hidden;
    let gate_up = b.weight(&gate_up, &[count, 2 * inner, hidden], Role::Experts)?;
    let down = b.weight(&down, &[count, hidden, inner], Role::Experts)?;
    let all = |first: Matrix, offset_stride| Matrices {
        count,
        first,
        weight_stride: 0,
        offset_stride,
        bias_stride: 0,
    };
    let gate = Matrix::whole(gate_up, inner, hidden);
    let up = Matrix { offset: inner * hidden, ..gate };
    Ok(Experts {
        gate: all(gate, 2 * inner * hidden),
        up: all(up, 2 * inner * hidden),
        down: all(Matrix::whole(down, hidden, inner), hidden * inner),
        activation,
        first: 0,
    })
}

/// Declares experts as separate tensors `pN.GATE.weight` and so on; `names` are gate, up and down.
pub(crate) fn named_experts(
    b: &mut Builder<'_>,
    p: &str,
    count: usize,
    inner: usize,
    names: [&str; 3],
    activation: Activation,
    bias: bool,
) -> Result<Experts> {
    let hidden = b.program.hidden;
    let shapes = [(inner, hidden), (inner, hidden), (hidden, inner)];
    let mut first: Option<[Matrix; 3]> = None;
    for expert in 0..count {
        let mut one = |name: &str, (outputs, inputs)| {
            b.matrix(&format!("{p}{expert}.{name}"), outputs, inputs, bias, Role::Experts)
        };
        let [(gate, g), (up, u), (down, d)] = [0, 1, 2].map(|i| (names[i], shapes[i]));
        let matrices = [one(gate, g)?, one(up, u)?, one(down, d)?];
        first.get_or_insert(matrices);
    }
    let Some([gate, up, down]) = first else { return Err(b.config.bad("num_experts", "is 0")) };
    // Weight ids are assigned in order of declaration, so expert n's are this many ids after those
    // of n - 1.
    let weight_stride = if bias { 6 } else { 3 };
    let all = |first| Matrices { count, first, weight_stride, offset_stride: 0, bias_stride: 0 };
    Ok(Experts { gate: all(gate), up: all(up), down: all(down), activation, first: 0 })
}

//! Mixture of experts (MoE): router top-k, then gather, expert FFN and weighted scatter, expert by
//! expert.
//!
//! 1. `route` turns a token's router scores into `(expert, weight)` pairs (softmax, sigmoid
//!    or sqrt-softplus, group-limited top-k).
//! 2. For each expert with tokens: gather their rows, gate and up GEMM with activation, down GEMM,
//!    and `y[token] += weight * out`.
//!
//! Each expert's weights are read once per step. Experts run in ascending order, so a token's sum
//! does not depend on the rest of the batch.

use crate::gemm::bf16::activations::Bf16Terms;
use crate::gemm::linear::{GateAndUp, Operand, Prepared};
use crate::gemm::output::Output;
use crate::isa::features::Isa;
use crate::memory::buffer::Buffer;
use crate::rowwise::activate;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::{DisjointRows, for_each_row};
use crate::weights::linear::{Linear, Packed};
use kvasir_program::{Activation, Op, Program, Routing, Score, ValueId};
use std::io;

/// Selected experts of one token with their routing weights.
pub(crate) type Routes = Vec<(u32, f32)>;

/// Weights of a router.
#[derive(Clone, Copy)]
pub(crate) struct RoutingVectors<'a> {
    /// One per expert, added for the selection only, not to the routing weights.
    pub(crate) correction: Option<&'a [f32]>,
    /// One per expert, multiplied with the final routing weights.
    pub(crate) scales: Option<&'a [f32]>,
    /// Experts of the token (routing by token id), instead of those with the best scores.
    pub(crate) experts: Option<&'a [f32]>,
}

/// Selects a token's experts and computes their routing weights.
pub(crate) fn route(scores: &[f32], routing: &Routing, vectors: RoutingVectors<'_>) -> Routes {
    let mut probabilities = scores.to_vec();
    match routing.score {
        Score::Softmax => {
            let max = probabilities.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            probabilities.iter_mut().for_each(|s| *s = (*s - max).exp());
            let sum: f32 = probabilities.iter().sum();
            probabilities.iter_mut().for_each(|s| *s /= sum);
        }
        Score::Sigmoid => probabilities.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp())),
        Score::SqrtSoftplus => {
            let softplus = |x: f32| if x > 20.0 { x } else { x.exp().ln_1p() };
            probabilities.iter_mut().for_each(|s| *s = softplus(*s).sqrt());
        }
    }
    let selected = match vectors.experts {
        Some(experts) => experts.iter().map(|expert| *expert as usize).collect(),
        None => best_experts(&probabilities, routing, vectors.correction),
    };
    let mut routes: Routes = selected.into_iter().map(|e| (e as u32, probabilities[e])).collect();
    if let Some(eps) = routing.renormalize {
        let sum = routes.iter().map(|(_, weight)| weight).sum::<f32>() + eps;
        routes.iter_mut().for_each(|(_, weight)| *weight /= sum);
    }
    routes.iter_mut().for_each(|(_, weight)| *weight *= routing.scale);
    if let Some(scales) = vectors.scales {
        routes.iter_mut().for_each(|(expert, weight)| *weight *= scales[*expert as usize]);
    }
    routes
}

/// The experts with the best corrected probabilities, from the best groups.
fn best_experts(probabilities: &[f32], routing: &Routing, correction: Option<&[f32]>) -> Vec<usize> {
    let mut choice = probabilities.to_vec();
    if let Some(correction) = correction {
        choice.iter_mut().zip(correction).for_each(|(c, add)| *c += add);
    }
    if let Some(groups) = routing.groups {
        let size = (choice.len() / groups.count.max(1)).max(1);
        let worth = |group: &[f32]| best(group, 2).iter().map(|&i| group[i]).sum::<f32>();
        let worths: Vec<f32> = choice.chunks(size).map(worth).collect();
        let kept = best(&worths, groups.keep);
        for (group, choice) in choice.chunks_mut(size).enumerate() {
            if !kept.contains(&group) {
                choice.fill(f32::NEG_INFINITY);
            }
        }
    }
    best(&choice, routing.top_k)
}

/// Indices of the `k` largest values, largest first; the lower index wins ties.
fn best(values: &[f32], k: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..values.len()).collect();
    ids.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    ids.truncate(k);
    ids
}

/// Scratch buffers for the tokens of one expert.
pub(crate) struct MixtureMemory {
    x: Buffer,
    gate: Buffer,
    up: Buffer,
    inner: Buffer,
    out: Buffer,
    prepared: Prepared,
    /// Expert parallelism: ids of each token's experts.
    pub(crate) expert_ids: Vec<u32>,
    /// Expert parallelism: the output of each expert in `expert_ids`.
    pub(crate) outputs: Vec<f32>,
}

impl MixtureMemory {
    /// Buffers for up to `tokens` tokens in any MoE layer of the program.
    pub(crate) fn new(isa: Isa, program: &Program, tokens: usize, terms: Bf16Terms) -> io::Result<Self> {
        let sizes = program.ops.iter().filter_map(|op| match op {
            Op::Mixture { experts, .. } => Some((experts.gate.first.inputs, experts.gate.first.outputs)),
            _ => None,
        });
        let (outer, inner) = sizes.fold((0, 0), |(a, b), (outer, inner)| (a.max(outer), b.max(inner)));
        let rows = |width: usize| Buffer::new(width * tokens * 4);
        Ok(Self {
            x: rows(outer)?,
            gate: rows(inner)?,
            up: rows(inner)?,
            inner: rows(inner)?,
            out: rows(outer)?,
            prepared: Prepared::new(isa, if outer == 0 { 0 } else { tokens }, outer.max(inner), terms)?,
            expert_ids: Vec::new(),
            outputs: Vec::new(),
        })
    }
}

/// Reserved value ids of an expert's operands, so that each operand is quantized only once.
const GATHERED: ValueId = ValueId(u32::MAX);
const ACTIVATED: ValueId = ValueId(u32::MAX - 1);

/// The local experts of one MoE layer, with the thread pool and instruction set that compute them.
pub(crate) struct Experts<'w> {
    pub(crate) threads: &'w ThreadPool,
    pub(crate) isa: Isa,
    pub(crate) gate: &'w [Linear],
    /// Empty for experts whose gate matrices are their up matrices: `down(act(gate x, gate x))`.
    pub(crate) up: &'w [Linear],
    pub(crate) down: &'w [Linear],
    pub(crate) activation: Activation,
    /// Router index of the first local expert.
    pub(crate) first: usize,
}

/// Input rows of one expert.
pub(crate) struct ExpertRows<'a> {
    /// Rows of all tokens, concatenated.
    pub(crate) x: &'a [f32],
    /// Index in `x` of the expert's `i`-th row.
    pub(crate) row_of: &'a (dyn Fn(usize) -> usize + Sync),
    /// Number of rows of the expert.
    pub(crate) count: usize,
}

/// Receives the output of one expert for its `i`-th row: `i`, then the output. Threads call it
/// concurrently, for different rows.
type OutputSink<'a> = dyn Fn(usize, &[f32]) + Sync + 'a;

impl Experts<'_> {
    /// Computes `down(act(gate x, up x))` of a local expert, and passes each output to `sink`.
    pub(crate) fn compute(
        &self,
        expert: usize,
        rows: &ExpertRows<'_>,
        m: &mut MixtureMemory,
        sink: &OutputSink<'_>,
    ) {
        let ExpertRows { x, row_of, count: n } = *rows;
        let (threads, isa, activation) = (self.threads, self.isa, self.activation);
        let (gate, up, down) = (&self.gate[expert], self.up.get(expert), &self.down[expert]);
        let (outer, inner) = (gate.inputs, gate.outputs);
        let rows_x = m.x.floats_mut();
        let gathered = DisjointRows::new(rows_x, outer);
        for_each_row(threads, n, &|_, row| {
            // SAFETY: each row is written by one thread.
            unsafe { gathered.row(row) }.copy_from_slice(&x[row_of(row) * outer..][..outer]);
        });
        m.prepared.invalidate();
        // Fused gate and up projection whose activation is already quantized for the down
        // projection, if there are no biases.
        let x = || Operand::Rows(rows_x, outer);
        let fused = up.is_some_and(|up| {
            let matrices = GateAndUp { gate, up, activation };
            let can_fuse =
                gate.bias.is_none() && up.bias.is_none() && matches!(down.packed, Packed::Quant(_));
            can_fuse && m.prepared.gate(threads, matrices, GATHERED, &x(), n, ACTIVATED)
        });
        if !fused {
            let gates = Some((gate, Output::new(m.gate.floats_mut(), n, inner, inner)));
            let ups = up.map(|up| (up, Output::new(m.up.floats_mut(), n, inner, inner)));
            m.prepared.multiply(threads, &mut [gates, ups], Some(GATHERED), &x());
            let (g, u) = (m.gate.floats_mut(), m.up.floats_mut());
            let (g, u) = (&*g, if up.is_some() { &*u } else { &*g });
            let activated = DisjointRows::new(m.inner.floats_mut(), inner);
            for_each_row(threads, n, &|_, row| {
                let at = row * inner..(row + 1) * inner;
                // SAFETY: as above.
                activate(isa, &g[at.clone()], &u[at], activation, unsafe { activated.row(row) });
            });
        }
        let activated = Operand::Rows(m.inner.floats_mut(), inner);
        let name = fused.then_some(ACTIVATED);
        let out = Output::new(m.out.floats_mut(), n, outer, outer);
        m.prepared.multiply(threads, &mut [Some((down, out))], name, &activated);
        let out = m.out.floats_mut();
        for_each_row(threads, n, &|_, row| sink(row, &out[row * outer..(row + 1) * outer]));
    }

    /// Number of local experts.
    pub(crate) fn count(&self) -> usize {
        self.gate.len()
    }
}

/// MoE FFN: `y[token] = sum of weight * down(act(gate x, up x))` over the token's local
/// experts. Experts run in ascending order, so a token's sum does not depend on other tokens.
pub(crate) fn mixture(
    experts: &Experts<'_>,
    x: &[f32],
    routes: &[Routes],
    m: &mut MixtureMemory,
    y: &mut [f32],
) {
    y.fill(0.0);
    let Some(outer) = experts.gate.first().map(|gate| gate.inputs) else { return };
    let sums = DisjointRows::new(y, outer);
    for expert in 0..experts.count() {
        let routed = routes.iter().enumerate().flat_map(|(token, routes)| {
            let is_routed = |(e, _): &&(u32, f32)| *e as usize == experts.first + expert;
            routes.iter().filter(is_routed).map(move |(_, weight)| (token, *weight))
        });
        let routed: Vec<(usize, f32)> = routed.collect();
        if routed.is_empty() {
            continue;
        }
        let rows = ExpertRows { x, row_of: &|row| routed[row].0, count: routed.len() };
        experts.compute(expert, &rows, m, &|row, out| {
            let (token, weight) = routed[row];
            // SAFETY: one thread has each row's output; a token selects an expert at most once.
            let sum = unsafe { sums.row(token) };
            sum.iter_mut().zip(out).for_each(|(y, v)| *y += weight * v);
        });
    }
}

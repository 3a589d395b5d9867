//! Reference MoE: router scores to expert weights, and the weighted sum of the experts' outputs.
//!
//! Routing: score (softmax, sigmoid or sqrt-softplus), add the correction bias, mask out all but
//! the best groups, take the top k, renormalize, scale. The correction bias affects the selection
//! only. Routing by token id takes the experts from a table instead of the top k.

use crate::math::{add_scaled, gelu, largest, sigmoid, softmax, softplus};
use crate::weights::Weights;
use kvasir_kv::Token;
use kvasir_program::{Activation, Experts, Routing, Score};

/// The experts of one token with their weights, in descending order of selection score.
pub(crate) type Routes = Vec<(u32, f32)>;

/// MoE routing of one token: selects its experts and computes their weights.
pub(crate) fn route(scores: &[f32], token: Token, routing: &Routing, weights: &Weights) -> Routes {
    let mut probabilities = scores.to_vec();
    match routing.score {
        Score::Softmax => softmax(&mut probabilities, None),
        Score::Sigmoid => probabilities.iter_mut().for_each(|s| *s = sigmoid(*s)),
        Score::SqrtSoftplus => probabilities.iter_mut().for_each(|s| *s = softplus(*s).sqrt()),
    }
    let mut choice = probabilities.clone();
    if let Some(correction) = routing.correction {
        add_scaled(&mut choice, 1.0, weights.get(correction));
    }
    if let Some(groups) = routing.groups {
        let size = choice.len() / groups.count;
        let worth = |group: &[f32]| largest(group, 2).iter().map(|i| group[*i as usize]).sum::<f32>();
        let worths: Vec<f32> = choice.chunks(size).map(worth).collect();
        let kept = largest(&worths, groups.keep);
        for (group, choice) in (0..).zip(choice.chunks_mut(size)) {
            if !kept.contains(&group) {
                choice.fill(f32::NEG_INFINITY);
            }
        }
    }
    let chosen = match routing.token_table {
        None => largest(&choice, routing.top_k),
        Some(table) => {
            let row = weights.row(table, token as usize, routing.top_k);
            row.iter().map(|expert| *expert as u32).collect()
        }
    };
    let mut routes: Routes = chosen.into_iter().map(|e| (e, probabilities[e as usize])).collect();
    if let Some(eps) = routing.renormalize {
        let sum = routes.iter().map(|(_, weight)| weight).sum::<f32>() + eps;
        routes.iter_mut().for_each(|(_, weight)| *weight /= sum);
    }
    routes.iter_mut().for_each(|(_, weight)| *weight *= routing.scale);
    if let Some(scales) = routing.expert_scale {
        let scales = weights.get(scales);
        routes.iter_mut().for_each(|(expert, weight)| *weight *= scales[*expert as usize]);
    }
    routes
}

/// Computes Σ weight * down(act(gate(x)) * up(x)) over the token's local experts.
pub(crate) fn mixture(x: &[f32], routes: &Routes, experts: &Experts, weights: &Weights, out: &mut [f32]) {
    out.fill(0.0);
    for (expert, weight) in routes {
        if let Some(local) = local_index(*expert, experts) {
            add_scaled(out, *weight, &expert_output(x, local, experts, weights));
        }
    }
}

/// Index of an expert among the local experts; `None` if another rank or replica has it.
pub(crate) fn local_index(expert: u32, experts: &Experts) -> Option<usize> {
    (expert as usize).checked_sub(experts.first).filter(|n| *n < experts.gate.count)
}

/// Computes down(act(gate(x)) * up(x)) of a local expert.
pub(crate) fn expert_output(x: &[f32], expert: usize, experts: &Experts, weights: &Weights) -> Vec<f32> {
    let project = |matrices: &kvasir_program::Matrices, x: &[f32]| {
        let matrix = matrices.nth(expert);
        let mut y = vec![0.0; matrix.outputs];
        weights.multiply(&matrix, x, matrix.inputs, &mut y, matrix.outputs);
        y
    };
    let (gate, up) = (project(&experts.gate, x), project(&experts.up, x));
    let inner: Vec<f32> =
        gate.iter().zip(&up).map(|(gate, up)| gated(*gate, *up, experts.activation)).collect();
    project(&experts.down, &inner)
}

/// `act(gate) * up` for one element.
pub(crate) fn gated(gate: f32, up: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => gate * sigmoid(gate) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (gate + 0.044715 * gate * gate * gate);
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::Sigmoid => sigmoid(gate) * up,
        Activation::Identity => gate * up,
        Activation::Relu => gate.max(0.0) * up,
        Activation::Gelu => gelu(gate) * up,
        Activation::ClampedSwiglu { alpha, limit } => {
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * sigmoid(alpha * gate) * (up + 1.0)
        }
        Activation::LimitedSwiglu { limit } => {
            let gate = gate.min(limit);
            gate * sigmoid(gate) * up.clamp(-limit, limit)
        }
    }
}

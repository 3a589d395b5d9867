//! [`Recurrence`]: the reference recurrences, one token at a time: short convolution, gated delta
//! rule, selective scan, embeddings of hashed n-grams.
//!
//! A state matrix is row-major `S[i][j]`; i is the reduced index. A product
//! `Σ_i S[i][j] x[i]` has four partial sums by i mod 4, fused multiply-adds in ascending i, then
//! `(s0 + s1) + (s2 + s3)`. A decay is a rounded product, an update one fused multiply-add. So
//! results do not depend on how a sequence is divided into steps.
//!
//! The *input* of a token is the row of the operands that update the state, in the order of
//! `StateLayout`, or the token's id; a tail row stores it. The *readout operand*, q or C, affects
//! the result but not the state.

use crate::math::{sigmoid, softplus};
use crate::ngram::{ngram_rows, recent_tokens};
use crate::weights::Weights;
use kvasir_program::{DecayGate, DeltaForm, NgramForm, Op, ScanForm, StateId, ValueId};

/// The recurrence of an op, with its weights.
pub(crate) enum Recurrence<'a> {
    /// `y[t] = act(bias + Σ_j weight[j] x[t - (kernel - 1 - j) dilation])` per channel.
    ShortConv { weights: ConvWeights<'a>, silu: bool },
    /// The gated delta rule; `decay` has one weight per value head, `dt_bias` one per decay.
    GatedDelta { form: &'a DeltaForm, decay: &'a [f32], dt_bias: &'a [f32] },
    /// The selective scan; the weights are one per head.
    SelectiveScan { form: &'a ScanForm, decay: &'a [f32], dt_bias: &'a [f32], skip: &'a [f32] },
    /// Embeddings of the n-grams that end at a token.
    NgramEmbed { form: &'a NgramForm, weights: &'a Weights },
}

/// Weights of a convolution.
#[derive(Clone, Copy)]
pub(crate) struct ConvWeights<'a> {
    /// `kernel` elements per channel, the oldest token first.
    weight: &'a [f32],
    /// One element per channel.
    bias: Option<&'a [f32]>,
    kernel: usize,
    dilation: usize,
}

/// The source of a token's input.
pub(crate) enum Inputs {
    /// The token's rows of these values, concatenated.
    Values(Vec<ValueId>),
    /// The token's id.
    TokenId,
}

/// The operands of a recurrent op.
pub(crate) struct RecurrentOperands {
    pub(crate) state: StateId,
    pub(crate) inputs: Inputs,
    /// q or C; `None` for other recurrences.
    pub(crate) readout: Option<ValueId>,
}

impl RecurrentOperands {
    /// `None` for other ops.
    pub(crate) fn of(op: &Op) -> Option<Self> {
        let (state, inputs, readout) = match op {
            Op::ShortConv { x, state, .. } => (state, Inputs::Values(vec![*x]), None),
            Op::GatedDelta { q, k, v, decay, beta, state, .. } => {
                (state, Inputs::Values(vec![*k, *v, *decay, *beta]), Some(*q))
            }
            Op::SelectiveScan { x, b, c, dt, state, .. } => {
                (state, Inputs::Values(vec![*x, *b, *dt]), Some(*c))
            }
            Op::NgramEmbed { state, .. } => (state, Inputs::TokenId, None),
            _ => return None,
        };
        Some(Self { state: *state, inputs, readout })
    }
}

/// Operand and destination of one token's result.
pub(crate) struct Readout<'a> {
    /// q or C of the token; empty for other recurrences.
    pub(crate) operand: &'a [f32],
    pub(crate) y: &'a mut [f32],
}

impl<'a> Recurrence<'a> {
    /// `None` for other ops.
    pub(crate) fn of(op: &'a Op, weights: &'a Weights) -> Option<Self> {
        let get = |id| weights.get(id);
        Some(match op {
            Op::ShortConv { weight, bias, kernel, dilation, silu, .. } => {
                let (weight, bias) = (get(*weight), bias.map(get));
                let weights = ConvWeights { weight, bias, kernel: *kernel, dilation: *dilation };
                Self::ShortConv { weights, silu: *silu }
            }
            Op::NgramEmbed { form, .. } => Self::NgramEmbed { form, weights },
            Op::GatedDelta { form, .. } => {
                Self::GatedDelta { form, decay: get(form.decay), dt_bias: get(form.dt_bias) }
            }
            Op::SelectiveScan { form, .. } => {
                let (decay, dt_bias, skip) = (get(form.decay), get(form.dt_bias), get(form.skip));
                Self::SelectiveScan { form, decay, dt_bias, skip }
            }
            _ => return None,
        })
    }

    /// Applies one input to a state and computes the token's result. A replayed input has no
    /// readout.
    pub(crate) fn apply(&self, input: &[f32], state: &mut [f32], mut readout: Option<Readout<'_>>) {
        match *self {
            Self::ShortConv { weights, silu } => {
                if let Some(Readout { y, .. }) = readout {
                    convolve(state, input, weights, y);
                    if silu {
                        y.iter_mut().for_each(|y| *y *= sigmoid(*y));
                    }
                }
                let width = input.len();
                if weights.kernel > 1 {
                    state.copy_within(width.., 0);
                    let newest = state.len() - width;
                    state[newest..].copy_from_slice(input);
                }
            }
            Self::NgramEmbed { form, weights } => {
                if let Some(Readout { y, .. }) = readout {
                    ngram_rows(form, &recent_tokens(state, input[0]), weights, y);
                }
                // The state stores id + 1, the newest token first; 0 marks no token.
                let oldest = state.len() - 1;
                state.copy_within(..oldest, 1);
                state[0] = input[0] + 1.0;
            }
            Self::GatedDelta { form, decay, dt_bias } => {
                let input = DeltaInput::of(form, input);
                for (head, &decay) in decay.iter().enumerate() {
                    let weights = DeltaWeights { decay, dt_bias };
                    input.apply_to_head(form, head, weights, state, readout.as_mut());
                }
            }
            Self::SelectiveScan { form, decay, dt_bias, skip } => {
                let input = ScanInput::of(form, input);
                for head in 0..form.heads {
                    let weights =
                        ScanWeights { decay: decay[head], dt_bias: dt_bias[head], skip: skip[head] };
                    input.apply_to_head(form, head, weights, state, readout.as_mut());
                }
            }
        }
    }
}

/// A convolution that reads every `dilation`-th input of `state`, which has the last
/// `(kernel - 1) * dilation` inputs, the oldest first, and then `input`, the newest.
fn convolve(state: &[f32], input: &[f32], weights: ConvWeights<'_>, y: &mut [f32]) {
    let ConvWeights { weight, bias, kernel, dilation } = weights;
    let width = input.len();
    for (channel, y) in y.iter_mut().enumerate() {
        let weight = &weight[channel * kernel..(channel + 1) * kernel];
        let inputs = state.iter().chain(input).skip(channel).step_by(width * dilation);
        let bias = bias.map_or(0.0, |bias| bias[channel]);
        *y = weight.iter().zip(inputs).fold(bias, |sum, (weight, x)| weight.mul_add(*x, sum));
    }
}

/// The operands in an input of a gated delta rule.
struct DeltaInput<'a> {
    k: &'a [f32],
    v: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
}

/// Decay weight of one value head, and the decay biases of all heads.
#[derive(Clone, Copy)]
struct DeltaWeights<'a> {
    decay: f32,
    dt_bias: &'a [f32],
}

impl<'a> DeltaInput<'a> {
    fn of(form: &DeltaForm, input: &'a [f32]) -> Self {
        let (k, rest) = input.split_at(form.key_heads * form.key_dim);
        let (v, rest) = rest.split_at(form.value_heads * form.value_dim);
        let (decay, beta) = rest.split_at(form.decays());
        Self { k, v, decay, beta }
    }

    /// Applies the input to the state of one value head.
    fn apply_to_head(
        &self,
        form: &DeltaForm,
        head: usize,
        weights: DeltaWeights<'_>,
        state: &mut [f32],
        readout: Option<&mut Readout<'_>>,
    ) {
        let size = form.key_dim * form.value_dim;
        let state = &mut state[head * size..][..size];
        let key = form.key_head(head) * form.key_dim;
        let k = l2_normalize(&self.k[key..][..form.key_dim]);
        let beta = sigmoid(self.beta[head]);
        let factors = decay_factors(self.decay, weights, form, head);
        for (row, factor) in state.chunks_exact_mut(form.value_dim).zip(factors) {
            row.iter_mut().for_each(|s| *s *= factor);
        }
        let v = &self.v[head * form.value_dim..][..form.value_dim];
        for (j, v) in v.iter().enumerate() {
            let delta = beta * (v - column_dot(state, form.value_dim, j, &k));
            let cells = state.iter_mut().skip(j).step_by(form.value_dim);
            cells.zip(&k).for_each(|(s, k)| *s = k.mul_add(delta, *s));
        }
        if let Some(Readout { operand, y }) = readout {
            let mut q = l2_normalize(&operand[key..][..form.key_dim]);
            let scale = (form.key_dim as f32).sqrt();
            q.iter_mut().for_each(|q| *q /= scale);
            let y = &mut y[head * form.value_dim..][..form.value_dim];
            y.iter_mut().enumerate().for_each(|(j, y)| *y = column_dot(state, form.value_dim, j, &q));
        }
    }
}

/// The decay of each row of a value head's state: `exp(g)`.
fn decay_factors(x: &[f32], weights: DeltaWeights<'_>, form: &DeltaForm, head: usize) -> Vec<f32> {
    let DeltaWeights { decay, dt_bias } = weights;
    let rate = form.decay_rate.of(decay);
    let unbounded = |at: usize| (rate * softplus(x[at] + dt_bias[at])).exp();
    let channels = head * form.key_dim..(head + 1) * form.key_dim;
    match form.gate {
        DecayGate::Head => vec![unbounded(head); form.key_dim],
        DecayGate::Channel => channels.map(unbounded).collect(),
        DecayGate::BoundedChannel { lower_bound } => {
            let g = |at: usize| lower_bound * sigmoid(-rate * (x[at] + dt_bias[at]));
            channels.map(|at| g(at).exp()).collect()
        }
    }
}

/// The operands in an input of a selective scan.
struct ScanInput<'a> {
    x: &'a [f32],
    b: &'a [f32],
    dt: &'a [f32],
}

/// Weights of one head of a selective scan.
#[derive(Clone, Copy)]
struct ScanWeights {
    decay: f32,
    dt_bias: f32,
    skip: f32,
}

impl<'a> ScanInput<'a> {
    fn of(form: &ScanForm, input: &'a [f32]) -> Self {
        let (x, rest) = input.split_at(form.heads * form.head_dim);
        let (b, dt) = rest.split_at(form.groups * form.state_dim);
        Self { x, b, dt }
    }

    /// Applies the input to the state of one head.
    fn apply_to_head(
        &self,
        form: &ScanForm,
        head: usize,
        weights: ScanWeights,
        state: &mut [f32],
        readout: Option<&mut Readout<'_>>,
    ) {
        let size = form.state_dim * form.head_dim;
        let state = &mut state[head * size..][..size];
        let group = form.group(head) * form.state_dim;
        let dt = softplus(self.dt[head] + weights.dt_bias);
        let limits = form.dt_limits;
        let dt = limits.max.map_or(dt, |max| dt.min(max)).max(limits.min);
        let decay_factor = (form.decay_rate.of(weights.decay) * dt).exp();
        state.iter_mut().for_each(|s| *s *= decay_factor);
        let x = &self.x[head * form.head_dim..][..form.head_dim];
        let b = &self.b[group..][..form.state_dim];
        for (j, x) in x.iter().enumerate() {
            let input = dt * x;
            let cells = state.iter_mut().skip(j).step_by(form.head_dim);
            cells.zip(b).for_each(|(s, b)| *s = b.mul_add(input, *s));
        }
        if let Some(Readout { operand, y }) = readout {
            let c = &operand[group..][..form.state_dim];
            let y = &mut y[head * form.head_dim..][..form.head_dim];
            for (j, (y, x)) in y.iter_mut().zip(x).enumerate() {
                *y = weights.skip.mul_add(*x, column_dot(state, form.head_dim, j, c));
            }
        }
    }
}

/// `Σ_i state[i][j] x[i]`, for a row-major state with rows of `width` elements.
fn column_dot(state: &[f32], width: usize, j: usize, x: &[f32]) -> f32 {
    let mut sums = [0.0f32; 4];
    for (i, (s, x)) in state.iter().skip(j).step_by(width).zip(x).enumerate() {
        sums[i % 4] = s.mul_add(*x, sums[i % 4]);
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

/// `x / sqrt(Σ x² + 1e-6)`, with 16 partial sums that are reduced pairwise.
fn l2_normalize(x: &[f32]) -> Vec<f32> {
    let mut sums = [0.0f32; 16];
    x.iter().enumerate().for_each(|(i, x)| sums[i % 16] += x * x);
    for half in [8, 4, 2, 1] {
        (0..half).for_each(|i| sums[i] += sums[i + half]);
    }
    let factor = 1.0 / (sums[0] + 1e-6).sqrt();
    x.iter().map(|x| x * factor).collect()
}

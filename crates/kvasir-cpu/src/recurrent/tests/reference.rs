//! The recurrences in f64, token by token.

use crate::recurrent::tests::case::{Case, Form};
use kvasir_program::DecayGate;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

fn normalized(x: &[f64]) -> Vec<f64> {
    let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
    x.iter().map(|x| x / norm).collect()
}

/// `Σ_i S[i][j] x[i]` for each j.
fn product(state: &[f64], x: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).map(|j| x.iter().enumerate().map(|(i, x)| state[i * columns + j] * x).sum()).collect()
}

impl Case {
    /// Outputs of a whole sequence.
    pub(super) fn reference_outputs(&self, tokens: &[u64]) -> Vec<f64> {
        let x: Vec<Vec<f64>> = self.operands(tokens).iter().map(|x| to_f64(x)).collect();
        let [rates, dt_bias, skip] =
            [&self.heads.rates, &self.heads.dt_bias, &self.heads.skip].map(|x| to_f64(x));
        let width = self.output_width();
        let mut y = vec![0.0; tokens.len() * width];
        match &self.form {
            Form::Conv(conv) => {
                let (taps, bias) = (to_f64(&self.conv.taps), to_f64(&self.conv.bias));
                for t in 0..tokens.len() {
                    for channel in 0..width {
                        let terms = (0..conv.kernel).filter_map(|j| {
                            let input = t.checked_sub((conv.kernel - 1 - j) * conv.dilation)?;
                            Some(taps[j * width + channel] * x[0][input * width + channel])
                        });
                        let sum = bias[channel] + terms.sum::<f64>();
                        y[t * width + channel] = if conv.silu { sum * sigmoid(sum) } else { sum };
                    }
                }
            }
            Form::Delta(form) => {
                let (keys, heads) = (form.key_heads * form.key_dim, form.value_heads);
                for head in 0..heads {
                    let mut state = vec![0.0; form.key_dim * form.value_dim];
                    for t in 0..tokens.len() {
                        let key = t * keys + form.key_head(head) * form.key_dim;
                        let q = normalized(&x[0][key..][..form.key_dim]);
                        let k = normalized(&x[1][key..][..form.key_dim]);
                        let v = &x[2][t * width + head * form.value_dim..][..form.value_dim];
                        let decays = form.decays() / heads;
                        let factor = |i: usize| {
                            let at = head * decays + i % decays;
                            let x = x[3][t * form.decays() + at] + dt_bias[at];
                            match form.gate {
                                DecayGate::Head | DecayGate::Channel => (rates[head] * softplus(x)).exp(),
                                DecayGate::BoundedChannel { lower_bound } => {
                                    (f64::from(lower_bound) * sigmoid(-rates[head] * x)).exp()
                                }
                            }
                        };
                        let beta = sigmoid(x[4][t * heads + head]);
                        state.iter_mut().enumerate().for_each(|(at, s)| *s *= factor(at / form.value_dim));
                        let dots = product(&state, &k, form.value_dim);
                        for (at, s) in state.iter_mut().enumerate() {
                            let (i, j) = (at / form.value_dim, at % form.value_dim);
                            *s += k[i] * beta * (v[j] - dots[j]);
                        }
                        let out = &mut y[t * width + head * form.value_dim..][..form.value_dim];
                        let scale = (form.key_dim as f64).sqrt();
                        let outputs = product(&state, &q, form.value_dim);
                        out.iter_mut().zip(outputs).for_each(|(y, o)| *y = o / scale);
                    }
                }
            }
            Form::Scan(form) => {
                let groups = form.groups * form.state_dim;
                for head in 0..form.heads {
                    let mut state = vec![0.0; form.state_dim * form.head_dim];
                    for t in 0..tokens.len() {
                        let group = t * groups + form.group(head) * form.state_dim;
                        let (b, c) = (&x[1][group..][..form.state_dim], &x[2][group..][..form.state_dim]);
                        let dt = softplus(x[3][t * form.heads + head] + dt_bias[head]);
                        let limits = form.dt_limits;
                        let dt =
                            dt.min(limits.max.map_or(f64::INFINITY, f64::from)).max(f64::from(limits.min));
                        let x = &x[0][t * width + head * form.head_dim..][..form.head_dim];
                        for (at, s) in state.iter_mut().enumerate() {
                            let (i, j) = (at / form.head_dim, at % form.head_dim);
                            *s = *s * (rates[head] * dt).exp() + b[i] * dt * x[j];
                        }
                        let outputs = product(&state, c, form.head_dim);
                        let out = &mut y[t * width + head * form.head_dim..][..form.head_dim];
                        out.iter_mut().zip(outputs).zip(x).for_each(|((y, o), x)| *y = o + skip[head] * x);
                    }
                }
            }
        }
        y
    }
}

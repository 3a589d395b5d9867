//! The gated delta rule (Gated DeltaNet). Per value head, with a state S `[key_dim, value_dim]`:
//!
//! ```text
//! S = a S        d = β (v − kᵀ S)        S = S + k ⊗ d        o = qᵀ S
//! ```
//!
//! A decay a is one number per value head, or one per row of S (Kimi Delta Attention).
//!
//! 1. `prepare`: per token, normalized q and k of each key head, and a and β of each value head.
//! 2. `run`: the recurrence by blocks of columns. A token's update and output, and the next token's
//!    decay and `kᵀ S`, are one pass over the block.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::memory::state_pool::StatePool;
use crate::recurrent::columns::{
    Block, MAX_VECTORS, Matrices, STRIPE, Task, column_kernels, each_row, each_vector, for_each_block,
};
use crate::recurrent::inputs::{Source, StateInputs};
use crate::recurrent::weights::HeadWeights;
use crate::rowwise::{exp, sigmoid, softplus, sum_of_squares};
use crate::threads::pool::ThreadPool;
use crate::threads::rows::{DisjointRows, Strided, StridedMut, for_each_row};
use kvasir_program::{DecayGate, DeltaForm, StateId};

/// Operands of the op, a row per token of the step.
#[derive(Clone, Copy)]
pub(crate) struct DeltaOperands<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
}

/// Where the parts of a prepared input and of a tail row are.
#[derive(Clone, Copy)]
struct Places {
    /// Numbers of q or k.
    keys: usize,
    /// Numbers of v.
    values: usize,
    /// Numbers of the decay projection.
    decays: usize,
    heads: usize,
}

impl Places {
    fn of(form: &DeltaForm) -> Self {
        let (keys, values) = (form.key_heads * form.key_dim, form.value_heads * form.value_dim);
        Self { keys, values, decays: form.decays(), heads: form.value_heads }
    }

    /// Numbers of a prepared input: q, k, decay factors, β.
    fn prepared(self) -> usize {
        2 * self.keys + self.decays + self.heads
    }
}

/// Numbers that `run` needs per input.
pub(crate) fn prepared_width(form: &DeltaForm) -> usize {
    Places::of(form).prepared()
}

/// The raw operands of one input. Without q the output is not needed.
pub(crate) struct RawInput<'a> {
    q: Option<&'a [f32]>,
    k: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
}

#[inline(always)]
fn prepare_body(raw: &RawInput<'_>, form: &DeltaForm, weights: &HeadWeights, to: &mut [f32]) {
    let Places { keys, decays, .. } = Places::of(form);
    let (to_q, rest) = to.split_at_mut(keys);
    let (to_k, rest) = rest.split_at_mut(keys);
    let (to_decay, to_beta) = rest.split_at_mut(decays);
    let scale = (form.key_dim as f32).sqrt();
    match raw.q {
        None => to_q.fill(0.0),
        Some(q) => {
            for (to, q) in to_q.chunks_exact_mut(form.key_dim).zip(q.chunks_exact(form.key_dim)) {
                let factor = 1.0 / (sum_of_squares(q) + 1e-6).sqrt();
                to.iter_mut().zip(q).for_each(|(to, q)| *to = q * factor / scale);
            }
        }
    }
    for (to, k) in to_k.chunks_exact_mut(form.key_dim).zip(raw.k.chunks_exact(form.key_dim)) {
        let factor = 1.0 / (sum_of_squares(k) + 1e-6).sqrt();
        to.iter_mut().zip(k).for_each(|(to, k)| *to = k * factor);
    }
    let of_head = decays / form.value_heads.max(1);
    let raw_decays = raw.decay.chunks_exact(of_head).zip(weights.dt_bias.chunks_exact(of_head));
    for ((to, rate), (decay, bias)) in to_decay.chunks_exact_mut(of_head).zip(&weights.rates).zip(raw_decays)
    {
        let decays = to.iter_mut().zip(decay.iter().zip(bias));
        match form.gate {
            DecayGate::Head | DecayGate::Channel => {
                decays.for_each(|(to, (x, bias))| *to = exp(rate * softplus(x + bias)));
            }
            DecayGate::BoundedChannel { lower_bound } => {
                decays.for_each(|(to, (x, bias))| *to = exp(lower_bound * sigmoid(-rate * (x + bias))));
            }
        }
    }
    to_beta.iter_mut().zip(raw.beta).for_each(|(to, beta)| *to = sigmoid(*beta));
}

per_isa! {
    /// Prepares one input.
    prepare(raw: &RawInput<'_>, form: &DeltaForm, weights: &HeadWeights, to: &mut [f32]) => prepare_body
}

/// Consecutive inputs of one head: `q`, `k`, `decay` and `beta` are prepared, and `v` and `y` begin
/// at the first column of the block.
pub(crate) struct DeltaInputs {
    pub(crate) q: Strided,
    pub(crate) k: Strided,
    /// The decay, or the decays of all rows of the state.
    pub(crate) decay: Strided,
    pub(crate) decay_per_row: bool,
    pub(crate) beta: Strided,
    pub(crate) v: Strided,
    pub(crate) y: StridedMut,
    pub(crate) count: usize,
    pub(crate) key_dim: usize,
}

macro_rules! delta_kernel {
    ($lanes:ident,) => {
        delta_kernel! { @ #[inline(always)] $lanes }
    };
    ($lanes:ident, $features:literal) => {
        delta_kernel! { @ #[target_feature(enable = $features)] $lanes }
    };
    (@ #[$attribute:meta] $lanes:ident) => {
        #[$attribute]
        unsafe fn $lanes<const V: usize>(inputs: &DeltaInputs, block: &Block) {
            #[$attribute]
            unsafe fn run<const V: usize, const DECAY_PER_ROW: bool>(inputs: &DeltaInputs, block: &Block) {
                use crate::prefetch::hint::{CacheLevel, prefetch_line};
                use crate::recurrent::lanes::$lanes::*;
                let width = V * WORDS;
                let rows = inputs.key_dim;
                // SAFETY: the caller's block and inputs have these rows and columns.
                unsafe {
                    // The first token's decay and kᵀ S, as four partial sums.
                    let mut dots = [[zero_floats(); MAX_VECTORS]; 4];
                    let (decays, k) = (inputs.decay.row(0), inputs.k.row(0));
                    let shared_decay = splat_floats(*decays);
                    each_row!(rows, |i, c| {
                        let decay = if DECAY_PER_ROW { splat_floats(*decays.add(i)) } else { shared_decay };
                        let from = block.from.wrapping_add(i * block.from_stride);
                        let ahead = block.prefetch.wrapping_add(i * block.from_stride);
                        prefetch_line(CacheLevel::L2, ahead.cast());
                        prefetch_line(CacheLevel::L2, ahead.wrapping_add(16).cast());
                        let key = splat_floats(*k.add(i));
                        each_vector!(V, |n| {
                            let s = mul(load_floats(from.add(n * WORDS)), decay);
                            store_floats(block.work.add(i * width + n * WORDS), s);
                            dots[c][n] = fma(s, key, dots[c][n]);
                        });
                    });
                    for t in 0..inputs.count {
                        let beta = splat_floats(*inputs.beta.row(t));
                        let mut delta = [zero_floats(); MAX_VECTORS];
                        each_vector!(V, |n| {
                            let dot = add(add(dots[0][n], dots[1][n]), add(dots[2][n], dots[3][n]));
                            delta[n] = mul(beta, sub(load_floats(inputs.v.row(t).add(n * WORDS)), dot));
                        });
                        let (q, k) = (inputs.q.row(t), inputs.k.row(t));
                        let mut outputs = [[zero_floats(); MAX_VECTORS]; 4];
                        dots = [[zero_floats(); MAX_VECTORS]; 4];
                        if t + 1 < inputs.count {
                            // The update and output of this token, the decay and kᵀ S of the next.
                            let (decays, next) = (inputs.decay.row(t + 1), inputs.k.row(t + 1));
                            let shared_decay = splat_floats(*decays);
                            each_row!(rows, |i, c| {
                                let decay =
                                    if DECAY_PER_ROW { splat_floats(*decays.add(i)) } else { shared_decay };
                                let work = block.work.add(i * width);
                                let (query, key) = (splat_floats(*q.add(i)), splat_floats(*k.add(i)));
                                let next_key = splat_floats(*next.add(i));
                                each_vector!(V, |n| {
                                    let s = fma(key, delta[n], load_floats(work.add(n * WORDS)));
                                    outputs[c][n] = fma(s, query, outputs[c][n]);
                                    let s = mul(s, decay);
                                    store_floats(work.add(n * WORDS), s);
                                    dots[c][n] = fma(s, next_key, dots[c][n]);
                                });
                            });
                        } else {
                            each_row!(rows, |i, c| {
                                let work = block.work.add(i * width);
                                let to = block.to.wrapping_add(i * block.to_stride);
                                let (query, key) = (splat_floats(*q.add(i)), splat_floats(*k.add(i)));
                                each_vector!(V, |n| {
                                    let s = fma(key, delta[n], load_floats(work.add(n * WORDS)));
                                    outputs[c][n] = fma(s, query, outputs[c][n]);
                                    store_floats(to.add(n * WORDS), s);
                                });
                            });
                        }
                        each_vector!(V, |n| {
                            let output =
                                add(add(outputs[0][n], outputs[1][n]), add(outputs[2][n], outputs[3][n]));
                            store_floats(inputs.y.row(t).add(n * WORDS), output);
                        });
                    }
                }
            }
            // SAFETY: as the caller vouches.
            unsafe {
                if inputs.decay_per_row {
                    run::<V, true>(inputs, block)
                } else {
                    run::<V, false>(inputs, block)
                }
            }
        }
    };
}

column_kernels! {
    /// Runs the recurrence of at least one input over a block of `columns` columns.
    ///
    /// # Safety
    /// `columns` must be a width that the kernel has, and all addresses must be valid for the rows
    /// and columns of `inputs` and `block`.
    delta_block(DeltaInputs), delta_kernel
}

/// Runs the op over all rows of a step. `prepared` has room for [`prepared_width`] numbers per input.
///
/// # Safety
/// As for [`for_each_block`]; the tails of `rows` must exist, too.
pub(crate) unsafe fn run(
    (threads, isa): (&ThreadPool, Isa),
    (pool, state): (&StatePool, StateId),
    rows: &StateInputs,
    (form, weights): (&DeltaForm, &HeadWeights),
    operands: DeltaOperands<'_>,
    prepared: &mut [f32],
    y: &DisjointRows<'_>,
) {
    let places = Places::of(form);
    let Places { keys, values, decays, heads } = places;
    let stride = places.prepared();
    let parts = DisjointRows::new(&mut prepared[..rows.inputs * stride], stride);
    for_each_row(threads, rows.inputs, &|_, input| {
        let row = rows.row_of(input);
        let raw = match row.source(input - row.first_input) {
            Source::Token(token) => RawInput {
                q: Some(&operands.q[token * keys..][..keys]),
                k: &operands.k[token * keys..][..keys],
                decay: &operands.decay[token * decays..][..decays],
                beta: &operands.beta[token * heads..][..heads],
            },
            Source::Tail(at) => {
                // SAFETY: the row exists, and nothing writes it before the recurrence has run.
                let tail = unsafe { pool.tail_numbers(row.tail, at, state) };
                let (k, rest) = tail.split_at(keys);
                let (decay, beta) = rest[values..].split_at(decays);
                RawInput { q: None, k, decay, beta }
            }
        };
        // SAFETY: each input goes to one thread.
        prepare(isa, &raw, form, weights, unsafe { parts.row(input) });
    });
    let prepared = &*prepared;
    let of_head = decays / heads.max(1);
    let matrices = Matrices { heads, rows: form.key_dim, columns: form.value_dim };
    let kernel = |family, task: &Task<'_>| {
        let first = task.row.first_input + task.segment.inputs.start;
        let key = form.key_head(task.head) * form.key_dim;
        let part = |at: usize| Strided::new(prepared, stride, first, at);
        let column = task.head * form.value_dim + task.columns.start;
        let mut discarded = [0.0f32; STRIPE];
        let (v, y) = match task.segment.source {
            Source::Token(token) => {
                (Strided::new(operands.v, values, token, column), y.column(token, column))
            }
            Source::Tail(at) => {
                let v = pool.tail_row(task.row.tail, at, state).cast_const().wrapping_add(keys + column);
                let y = StridedMut { at: discarded.as_mut_ptr(), stride: 0 };
                (Strided { at: v, stride: pool.row_stride() }, y)
            }
        };
        let inputs = DeltaInputs {
            q: part(key),
            k: part(keys + key),
            decay: part(2 * keys + task.head * of_head),
            decay_per_row: form.gate != DecayGate::Head,
            beta: part(2 * keys + decays + task.head),
            v,
            y,
            count: task.segment.inputs.len(),
            key_dim: form.key_dim,
        };
        // SAFETY: the inputs and results of these tokens exist, and only this task writes the
        // columns.
        unsafe { delta_block(family, task.columns.len(), &inputs, &task.block) };
    };
    // SAFETY: as the caller vouches.
    unsafe { for_each_block((threads, isa), (pool, state), matrices, rows, &kernel) };
    for row in &rows.rows {
        for (at, token) in row.drafts() {
            let mut to = pool.tail_row(row.tail, at, state);
            let DeltaOperands { k, v, decay, beta, .. } = operands;
            for (x, width) in [(k, keys), (v, values), (decay, decays), (beta, heads)] {
                let x = &x[token * width..][..width];
                // SAFETY: the tail is this row's, and its replay has been read.
                unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), to, width) };
                to = to.wrapping_add(width);
            }
        }
    }
}

//! The gated delta rule (Gated DeltaNet). Per value head, with a state S `[key_dim, value_dim]`:
//!
//! ```text
//! S = a S        d = β (v − kᵀ S)        S = S + k ⊗ d        o = qᵀ S
//! ```
//!
//! The decay a is one factor per value head, or one per row of S (Kimi Delta Attention).
//!
//! 1. `prepare`: normalized q and k of each input and key head, and a and β of each value head.
//! 2. `run`: the recurrence by blocks of columns. One pass over the block computes the update and
//!    output of an input, and the decay and `kᵀ S` of the next.

use crate::isa::dispatch::per_isa;
use crate::recurrent::columns::{
    Block, BlockTask, ITEM_COLUMNS, MAX_VECTORS, Matrices, column_kernels, each_row, each_vector,
    for_each_block,
};
use crate::recurrent::inputs::Source;
use crate::recurrent::op_context::OpContext;
use crate::recurrent::weights::HeadWeights;
use crate::rowwise::{exp, sigmoid, softplus, sum_of_squares};
use crate::threads::rows::{DisjointRows, StridedRows, StridedRowsMut, for_each_row};
use kvasir_program::{DecayGate, DeltaForm};

/// Operands of the op, a row per token of the step.
#[derive(Clone, Copy)]
pub(crate) struct DeltaOperands<'a> {
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) beta: &'a [f32],
}

/// Added to the sum of squares when q and k are normalized.
const NORM_EPSILON: f32 = 1e-6;

/// Elements per token of the operands.
#[derive(Clone, Copy)]
struct OperandWidths {
    /// Elements of q, and of k.
    keys: usize,
    /// Elements of v.
    values: usize,
    /// Elements of the decay projection.
    decays: usize,
    /// Value heads: elements of β.
    heads: usize,
}

impl OperandWidths {
    fn of(form: &DeltaForm) -> Self {
        let (keys, values) = (form.key_heads * form.key_dim, form.value_heads * form.value_dim);
        Self { keys, values, decays: form.decays(), heads: form.value_heads }
    }

    /// Elements of a prepared input: q, k, decays, β.
    fn prepared_input(self) -> usize {
        2 * self.keys + self.decays + self.heads
    }
}

/// Elements of `prepared` that `run` needs per input.
pub(crate) fn prepared_width(form: &DeltaForm) -> usize {
    OperandWidths::of(form).prepared_input()
}

/// The operands of one input as the op gets them. `q` is `None` for a replayed input, whose output
/// is discarded.
pub(crate) struct RawInput<'a> {
    q: Option<&'a [f32]>,
    k: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
}

#[inline(always)]
fn prepare_body(raw: &RawInput<'_>, form: &DeltaForm, weights: &HeadWeights, to: &mut [f32]) {
    let OperandWidths { keys, decays, .. } = OperandWidths::of(form);
    let (to_q, rest) = to.split_at_mut(keys);
    let (to_k, rest) = rest.split_at_mut(keys);
    let (to_decay, to_beta) = rest.split_at_mut(decays);
    let scale = (form.key_dim as f32).sqrt();
    match raw.q {
        None => to_q.fill(0.0),
        Some(q) => {
            for (to, q) in to_q.chunks_exact_mut(form.key_dim).zip(q.chunks_exact(form.key_dim)) {
                let factor = 1.0 / (sum_of_squares(q) + NORM_EPSILON).sqrt();
                to.iter_mut().zip(q).for_each(|(to, q)| *to = q * factor / scale);
            }
        }
    }
    for (to, k) in to_k.chunks_exact_mut(form.key_dim).zip(raw.k.chunks_exact(form.key_dim)) {
        let factor = 1.0 / (sum_of_squares(k) + NORM_EPSILON).sqrt();
        to.iter_mut().zip(k).for_each(|(to, k)| *to = k * factor);
    }
    let per_head = decays / form.value_heads.max(1);
    let raw_decays = raw.decay.chunks_exact(per_head).zip(weights.dt_bias.chunks_exact(per_head));
    let heads = to_decay.chunks_exact_mut(per_head).zip(&weights.rates).zip(raw_decays);
    for ((to, rate), (decay, bias)) in heads {
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
    /// Normalizes q and k, and computes the decays and β, of one input.
    prepare(raw: &RawInput<'_>, form: &DeltaForm, weights: &HeadWeights, to: &mut [f32]) => prepare_body
}

/// Consecutive inputs of one head: `q`, `k`, `decay` and `beta` are prepared, and `v` and `y` begin
/// at the first column of the block.
pub(crate) struct DeltaInputs {
    pub(crate) q: StridedRows,
    pub(crate) k: StridedRows,
    /// One decay per input, or one per row of the state if `decay_per_row`.
    pub(crate) decay: StridedRows,
    pub(crate) decay_per_row: bool,
    pub(crate) beta: StridedRows,
    pub(crate) v: StridedRows,
    pub(crate) y: StridedRowsMut,
    pub(crate) count: usize,
    pub(crate) key_dim: usize,
}

macro_rules! delta_kernel {
    ($vectors:ident,) => {
        delta_kernel! { @ #[inline(always)] $vectors }
    };
    ($vectors:ident, $features:literal) => {
        delta_kernel! { @ #[target_feature(enable = $features)] $vectors }
    };
    (@ #[$attribute:meta] $vectors:ident) => {
        #[$attribute]
        unsafe fn $vectors<const V: usize>(inputs: &DeltaInputs, block: &Block) {
            #[$attribute]
            unsafe fn run<const V: usize, const DECAY_PER_ROW: bool>(inputs: &DeltaInputs, block: &Block) {
                use crate::prefetch::hint::{CacheLevel, prefetch_line};
                use crate::recurrent::vectors::$vectors::*;
                let width = V * WORDS;
                let rows = inputs.key_dim;
                // SAFETY: the caller's block and inputs have these rows and columns.
                unsafe {
                    // The decay and kᵀ S of the first input, as four partial sums.
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
                            // Update and output of this input, decay and kᵀ S of the next.
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
            // SAFETY: upheld by the caller.
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
    /// Runs the recurrence of at least one input over a block of [`RecurrentKernel::columns`]
    /// columns.
    ///
    /// # Safety
    /// The CPU must have the instruction set of `kernel`. All addresses must be valid for the rows
    /// and columns of `inputs` and `block`.
    ///
    /// [`RecurrentKernel::columns`]: crate::kernels::RecurrentKernel::columns
    delta_block(DeltaInputs), delta_kernel
}

/// Runs the op over all rows of a step. `prepared` must have [`prepared_width`] elements per input.
///
/// # Safety
/// As for [`for_each_block`]. The tails of `context.inputs` must exist, and no two rows may share
/// one.
pub(crate) unsafe fn run(
    context: &OpContext<'_>,
    form: &DeltaForm,
    weights: &HeadWeights,
    operands: DeltaOperands<'_>,
    prepared: &mut [f32],
    y: &DisjointRows<'_>,
) {
    let OpContext { threads, isa, pool, state, inputs, .. } = *context;
    let OperandWidths { keys, values, decays, heads } = OperandWidths::of(form);
    let stride = prepared_width(form);
    let prepared_rows = DisjointRows::new(&mut prepared[..inputs.count * stride], stride);
    for_each_row(threads, inputs.count, &|_, input| {
        let row = inputs.row_of(input);
        let raw = match row.source(input - row.first_input) {
            Source::Token(token) => RawInput {
                q: Some(&operands.q[token * keys..][..keys]),
                k: &operands.k[token * keys..][..keys],
                decay: &operands.decay[token * decays..][..decays],
                beta: &operands.beta[token * heads..][..heads],
            },
            Source::Tail(at) => {
                // SAFETY: the row exists, and nothing writes it before the recurrence has run.
                let tail = unsafe { pool.tail_inputs(row.tail, at, state) };
                let (k, rest) = tail.split_at(keys);
                let (decay, beta) = rest[values..].split_at(decays);
                RawInput { q: None, k, decay, beta }
            }
        };
        // SAFETY: one thread prepares each input.
        prepare(isa, &raw, form, weights, unsafe { prepared_rows.row(input) });
    });
    let prepared = &*prepared;
    let decays_per_head = decays / heads.max(1);
    let matrices = Matrices { heads, rows: form.key_dim, columns: form.value_dim };
    let run_block = |kernel, task: &BlockTask<'_>| {
        let first = task.row.first_input + task.segment.inputs.start;
        let key = form.key_head(task.head) * form.key_dim;
        let part = |at: usize| StridedRows::new(prepared, stride, first, at);
        let column = task.head * form.value_dim + task.column;
        let mut discarded = [0.0f32; ITEM_COLUMNS];
        let (v, y) = match task.segment.source {
            Source::Token(token) => {
                (StridedRows::new(operands.v, values, token, column), y.strided_rows(token, column))
            }
            Source::Tail(at) => {
                let v = pool.tail_row(task.row.tail, at, state).cast_const().wrapping_add(keys + column);
                let y = StridedRowsMut { base: discarded.as_mut_ptr(), stride: 0 };
                (StridedRows { base: v, stride: pool.row_stride() }, y)
            }
        };
        let inputs = DeltaInputs {
            q: part(key),
            k: part(keys + key),
            decay: part(2 * keys + task.head * decays_per_head),
            decay_per_row: form.gate != DecayGate::Head,
            beta: part(2 * keys + decays + task.head),
            v,
            y,
            count: task.segment.inputs.len(),
            key_dim: form.key_dim,
        };
        // SAFETY: the inputs and outputs of these tokens exist, and only this task writes these
        // columns.
        unsafe { delta_block(kernel, &inputs, &task.block) };
    };
    // SAFETY: upheld by the caller.
    unsafe { for_each_block(context, matrices, &run_block) };
    let DeltaOperands { k, v, decay, beta, .. } = operands;
    // SAFETY: upheld by the caller; the replayed inputs have been read.
    unsafe { context.write_tails(&[(k, keys), (v, values), (decay, decays), (beta, heads)]) };
}

//! The selective scan of Mamba-2. Per head, with a state S `[state_dim, head_dim]`:
//!
//! ```text
//! S = a S + B ⊗ (dt x)        y = C S + D x
//! ```
//!
//! 1. `prepare`: per token, dt and a of each head.
//! 2. `run`: the recurrence by blocks of columns, one pass over the block per token.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::memory::state_pool::StatePool;
use crate::recurrent::columns::{
    Block, MAX_VECTORS, Matrices, STRIPE, Task, column_kernels, each_row, each_vector, for_each_block,
};
use crate::recurrent::inputs::{Source, StateInputs};
use crate::recurrent::weights::HeadWeights;
use crate::rowwise::{exp, softplus};
use crate::threads::pool::ThreadPool;
use crate::threads::rows::{DisjointRows, Strided, StridedMut, for_each_row};
use kvasir_program::{ScanForm, StateId};

/// Operands of the op, a row per token of the step.
#[derive(Clone, Copy)]
pub(crate) struct ScanOperands<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    pub(crate) dt: &'a [f32],
}

/// Numbers that `run` needs per input: dt and decay factor of each head.
pub(crate) fn prepared_width(form: &ScanForm) -> usize {
    2 * form.heads
}

#[inline(always)]
fn prepare_body(raw: &[f32], form: &ScanForm, weights: &HeadWeights, to: &mut [f32]) {
    let (to_dt, to_decay) = to.split_at_mut(form.heads);
    let (min, max) = (form.dt_limits.min, form.dt_limits.max.unwrap_or(f32::INFINITY));
    for ((to, raw), bias) in to_dt.iter_mut().zip(raw).zip(&weights.dt_bias) {
        *to = softplus(raw + bias).min(max).max(min);
    }
    for ((to, dt), rate) in to_decay.iter_mut().zip(&*to_dt).zip(&weights.rates) {
        *to = exp(rate * dt);
    }
}

per_isa! {
    /// Prepares one input.
    prepare(raw: &[f32], form: &ScanForm, weights: &HeadWeights, to: &mut [f32]) => prepare_body
}

/// Consecutive inputs of one head: `x` and `y` begin at the first column of the block.
pub(crate) struct ScanInputs {
    pub(crate) dt: Strided,
    pub(crate) decay: Strided,
    pub(crate) b: Strided,
    pub(crate) c: Strided,
    pub(crate) x: Strided,
    pub(crate) y: StridedMut,
    /// Skip weight D of the head.
    pub(crate) skip: f32,
    pub(crate) count: usize,
    pub(crate) state_dim: usize,
}

macro_rules! scan_kernel {
    ($lanes:ident,) => {
        scan_kernel! { @ #[inline(always)] $lanes }
    };
    ($lanes:ident, $features:literal) => {
        scan_kernel! { @ #[target_feature(enable = $features)] $lanes }
    };
    (@ #[$attribute:meta] $lanes:ident) => {
        #[$attribute]
        unsafe fn $lanes<const V: usize>(inputs: &ScanInputs, block: &Block) {
            use crate::prefetch::hint::{CacheLevel, prefetch_line};
            use crate::recurrent::lanes::$lanes::*;
            let (width, rows) = (V * WORDS, inputs.state_dim);
            let (mut from, mut from_stride) = (block.from, block.from_stride);
            // SAFETY: the caller's block and inputs have these rows and columns.
            unsafe {
                let skip = splat_floats(inputs.skip);
                for t in 0..inputs.count {
                    let is_last = t + 1 == inputs.count;
                    let (to, to_stride) =
                        if is_last { (block.to, block.to_stride) } else { (block.work, width) };
                    let (dt, decay) = (splat_floats(*inputs.dt.row(t)), splat_floats(*inputs.decay.row(t)));
                    let (b, c_row) = (inputs.b.row(t), inputs.c.row(t));
                    let (mut x, mut input) = ([zero_floats(); MAX_VECTORS], [zero_floats(); MAX_VECTORS]);
                    each_vector!(V, |n| {
                        x[n] = load_floats(inputs.x.row(t).add(n * WORDS));
                        input[n] = mul(dt, x[n]);
                    });
                    let mut outputs = [[zero_floats(); MAX_VECTORS]; 4];
                    let ahead = if t == 0 { block.prefetch } else { from };
                    each_row!(rows, |i, c| {
                        let from = from.wrapping_add(i * from_stride);
                        let to = to.wrapping_add(i * to_stride);
                        let ahead = ahead.wrapping_add(i * from_stride);
                        prefetch_line(CacheLevel::L2, ahead.cast());
                        prefetch_line(CacheLevel::L2, ahead.wrapping_add(16).cast());
                        let (b, c_i) = (splat_floats(*b.add(i)), splat_floats(*c_row.add(i)));
                        each_vector!(V, |n| {
                            let s = mul(load_floats(from.add(n * WORDS)), decay);
                            let s = fma(b, input[n], s);
                            outputs[c][n] = fma(s, c_i, outputs[c][n]);
                            store_floats(to.add(n * WORDS), s);
                        });
                    });
                    each_vector!(V, |n| {
                        let sum = add(add(outputs[0][n], outputs[1][n]), add(outputs[2][n], outputs[3][n]));
                        store_floats(inputs.y.row(t).add(n * WORDS), fma(skip, x[n], sum));
                    });
                    (from, from_stride) = (block.work.cast_const(), width);
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
    scan_block(ScanInputs), scan_kernel
}

/// Runs the op over all rows of a step. `prepared` has room for [`prepared_width`] numbers per input.
///
/// # Safety
/// As for [`for_each_block`]; the tails of `rows` must exist, too.
pub(crate) unsafe fn run(
    (threads, isa): (&ThreadPool, Isa),
    (pool, state): (&StatePool, StateId),
    rows: &StateInputs,
    (form, weights): (&ScanForm, &HeadWeights),
    operands: ScanOperands<'_>,
    prepared: &mut [f32],
    y: &DisjointRows<'_>,
) {
    let (heads, width, groups) = (form.heads, form.heads * form.head_dim, form.groups * form.state_dim);
    let stride = prepared_width(form);
    let parts = DisjointRows::new(&mut prepared[..rows.inputs * stride], stride);
    for_each_row(threads, rows.inputs, &|_, input| {
        let row = rows.row_of(input);
        let raw = match row.source(input - row.first_input) {
            Source::Token(token) => &operands.dt[token * heads..][..heads],
            // SAFETY: the row exists, and nothing writes it before the recurrence has run.
            Source::Tail(at) => unsafe { &pool.tail_numbers(row.tail, at, state)[width + groups..] },
        };
        // SAFETY: each input goes to one thread.
        prepare(isa, raw, form, weights, unsafe { parts.row(input) });
    });
    let prepared = &*prepared;
    let matrices = Matrices { heads, rows: form.state_dim, columns: form.head_dim };
    let kernel = |family, task: &Task<'_>| {
        let first = task.row.first_input + task.segment.inputs.start;
        let group = form.group(task.head) * form.state_dim;
        let part = |at: usize| Strided::new(prepared, stride, first, at);
        let column = task.head * form.head_dim + task.columns.start;
        let mut discarded = [0.0f32; STRIPE];
        let (x, b, c, y) = match task.segment.source {
            Source::Token(token) => {
                let of_group = |x| Strided::new(x, groups, token, group);
                let x = Strided::new(operands.x, width, token, column);
                (x, of_group(operands.b), of_group(operands.c), y.column(token, column))
            }
            Source::Tail(at) => {
                let tail = pool.tail_row(task.row.tail, at, state).cast_const();
                let of_tail = |at: usize| Strided { at: tail.wrapping_add(at), stride: pool.row_stride() };
                let b = of_tail(width + group);
                // The output is discarded, so any numbers serve as C.
                (of_tail(column), b, b, StridedMut { at: discarded.as_mut_ptr(), stride: 0 })
            }
        };
        let inputs = ScanInputs {
            dt: part(task.head),
            decay: part(heads + task.head),
            b,
            c,
            x,
            y,
            skip: weights.skip[task.head],
            count: task.segment.inputs.len(),
            state_dim: form.state_dim,
        };
        // SAFETY: the inputs and results of these tokens exist, and only this task writes the
        // columns.
        unsafe { scan_block(family, task.columns.len(), &inputs, &task.block) };
    };
    // SAFETY: as the caller vouches.
    unsafe { for_each_block((threads, isa), (pool, state), matrices, rows, &kernel) };
    for row in &rows.rows {
        for (at, token) in row.drafts() {
            let mut to = pool.tail_row(row.tail, at, state);
            let ScanOperands { x, b, dt, .. } = operands;
            for (x, width) in [(x, width), (b, groups), (dt, heads)] {
                let x = &x[token * width..][..width];
                // SAFETY: the tail is this row's, and its replay has been read.
                unsafe { std::ptr::copy_nonoverlapping(x.as_ptr(), to, width) };
                to = to.wrapping_add(width);
            }
        }
    }
}

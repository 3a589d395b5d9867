//! The selective scan of Mamba-2. Per head, with a state S `[state_dim, head_dim]`:
//!
//! ```text
//! S = a S + B ⊗ (dt x)        y = C S + D x
//! ```
//!
//! 1. `prepare`: dt and the decay a of each input and head.
//! 2. `run`: the recurrence by blocks of columns, one pass over the block per input.

use crate::isa::dispatch::per_isa;
use crate::recurrent::columns::{
    Block, BlockTask, ITEM_COLUMNS, MAX_VECTORS, Matrices, column_kernels, each_row, each_vector,
    for_each_block,
};
use crate::recurrent::inputs::Source;
use crate::recurrent::op_context::OpContext;
use crate::recurrent::weights::HeadWeights;
use crate::rowwise::{exp, softplus};
use crate::threads::rows::{DisjointRows, StridedRows, StridedRowsMut, for_each_row};
use kvasir_program::ScanForm;

/// Operands of the op, a row per token of the step.
#[derive(Clone, Copy)]
pub(crate) struct ScanOperands<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    pub(crate) dt: &'a [f32],
}

/// Elements of `prepared` that `run` needs per input: dt and the decay of each head.
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
    /// Computes dt and the decay of each head, for one input.
    prepare(raw: &[f32], form: &ScanForm, weights: &HeadWeights, to: &mut [f32]) => prepare_body
}

/// Consecutive inputs of one head: `x` and `y` begin at the first column of the block.
pub(crate) struct ScanInputs {
    pub(crate) dt: StridedRows,
    pub(crate) decay: StridedRows,
    pub(crate) b: StridedRows,
    pub(crate) c: StridedRows,
    pub(crate) x: StridedRows,
    pub(crate) y: StridedRowsMut,
    /// Skip weight D of the head.
    pub(crate) skip: f32,
    pub(crate) count: usize,
    pub(crate) state_dim: usize,
}

macro_rules! scan_kernel {
    ($vectors:ident,) => {
        scan_kernel! { @ #[inline(always)] $vectors }
    };
    ($vectors:ident, $features:literal) => {
        scan_kernel! { @ #[target_feature(enable = $features)] $vectors }
    };
    (@ #[$attribute:meta] $vectors:ident) => {
        #[$attribute]
        unsafe fn $vectors<const V: usize>(inputs: &ScanInputs, block: &Block) {
            use crate::prefetch::hint::{CacheLevel, prefetch_line};
            use crate::recurrent::vectors::$vectors::*;
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
    /// Runs the recurrence of at least one input over a block of [`RecurrentKernel::columns`]
    /// columns.
    ///
    /// # Safety
    /// The CPU must have the instruction set of `kernel`. All addresses must be valid for the rows
    /// and columns of `inputs` and `block`.
    ///
    /// [`RecurrentKernel::columns`]: crate::kernels::RecurrentKernel::columns
    scan_block(ScanInputs), scan_kernel
}

/// Runs the op over all rows of a step. `prepared` must have [`prepared_width`] elements per input.
///
/// # Safety
/// As for [`for_each_block`]. The tails of `context.inputs` must exist, and no two rows may share
/// one.
pub(crate) unsafe fn run(
    context: &OpContext<'_>,
    form: &ScanForm,
    weights: &HeadWeights,
    operands: ScanOperands<'_>,
    prepared: &mut [f32],
    y: &DisjointRows<'_>,
) {
    let (heads, width, groups) = (form.heads, form.heads * form.head_dim, form.groups * form.state_dim);
    let OpContext { threads, isa, pool, state, inputs, .. } = *context;
    let stride = prepared_width(form);
    let prepared_rows = DisjointRows::new(&mut prepared[..inputs.count * stride], stride);
    for_each_row(threads, inputs.count, &|_, input| {
        let row = inputs.row_of(input);
        let raw = match row.source(input - row.first_input) {
            Source::Token(token) => &operands.dt[token * heads..][..heads],
            // SAFETY: the row exists, and nothing writes it before the recurrence has run.
            Source::Tail(at) => unsafe { &pool.tail_inputs(row.tail, at, state)[width + groups..] },
        };
        // SAFETY: one thread prepares each input.
        prepare(isa, raw, form, weights, unsafe { prepared_rows.row(input) });
    });
    let prepared = &*prepared;
    let matrices = Matrices { heads, rows: form.state_dim, columns: form.head_dim };
    let run_block = |kernel, task: &BlockTask<'_>| {
        let first = task.row.first_input + task.segment.inputs.start;
        let group = form.group(task.head) * form.state_dim;
        let part = |at: usize| StridedRows::new(prepared, stride, first, at);
        let column = task.head * form.head_dim + task.column;
        let mut discarded = [0.0f32; ITEM_COLUMNS];
        let (x, b, c, y) = match task.segment.source {
            Source::Token(token) => {
                let of_group = |x| StridedRows::new(x, groups, token, group);
                let x = StridedRows::new(operands.x, width, token, column);
                (x, of_group(operands.b), of_group(operands.c), y.strided_rows(token, column))
            }
            Source::Tail(at) => {
                let tail = pool.tail_row(task.row.tail, at, state).cast_const();
                let of_tail =
                    |at: usize| StridedRows { base: tail.wrapping_add(at), stride: pool.row_stride() };
                let b = of_tail(width + group);
                // The output is discarded, so B can stand in for C.
                (of_tail(column), b, b, StridedRowsMut { base: discarded.as_mut_ptr(), stride: 0 })
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
        // SAFETY: the inputs and outputs of these tokens exist, and only this task writes these
        // columns.
        unsafe { scan_block(kernel, &inputs, &task.block) };
    };
    // SAFETY: upheld by the caller.
    unsafe { for_each_block(context, matrices, &run_block) };
    let ScanOperands { x, b, dt, .. } = operands;
    // SAFETY: upheld by the caller; the replayed inputs have been read.
    unsafe { context.write_tails(&[(x, width), (b, groups), (dt, heads)]) };
}

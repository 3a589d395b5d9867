//! Blocks of columns of a state matrix, the unit of work of the recurrent kernels.
//!
//! A work item is a stripe of columns of one head and sequence. Its kernel keeps a block of columns
//! in L1 while all tokens of the sequence pass:
//!
//! 1. The first token reads the block from the state slot (`from`) into contiguous scratch memory
//!    (`work`).
//! 2. Further tokens update it there.
//! 3. The last token writes the block to a state slot (`to`), if the state is stored.
//!
//! The width of a block is the kernel's; narrower blocks handle the rest of a stripe.

use crate::isa::features::Isa;
use crate::kernels::RecurrentKernel;
use crate::memory::aligned::AlignedVec;
use crate::memory::state_pool::StatePool;
use crate::recurrent::inputs::{RowInputs, Segment, StateInputs};
use crate::threads::pool::ThreadPool;
use kvasir_program::StateId;
use std::ops::Range;

/// Columns of a stripe: two cache lines, so that a kernel of any width reads whole lines.
pub(crate) const STRIPE: usize = 32;

/// The addresses of a block of columns, at row 0 of the matrix.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Where the first token reads the state.
    pub(crate) from: *const f32,
    pub(crate) from_stride: usize,
    /// Scratch memory; its rows are as long as the block is wide.
    pub(crate) work: *mut f32,
    /// Where the last token writes the state.
    pub(crate) to: *mut f32,
    pub(crate) to_stride: usize,
    /// Rows at `from_stride` that are prefetched while the state is read.
    pub(crate) prefetch: *const f32,
}

/// The state matrices of an op: one `[rows, columns]` per head, row-major.
#[derive(Clone, Copy)]
pub(crate) struct Matrices {
    pub(crate) heads: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// A block of columns of one head and sequence, with the tokens that run.
pub(crate) struct Task<'a> {
    pub(crate) row: &'a RowInputs,
    pub(crate) head: usize,
    pub(crate) columns: Range<usize>,
    pub(crate) segment: Segment,
    pub(crate) block: Block,
}

/// Scratch memory of a worker: a block of columns, and results that are discarded.
#[derive(Default)]
struct ColumnScratch {
    work: AlignedVec<f32>,
}

/// Runs `kernel` on every block of columns of every sequence, over each of its segments in order,
/// and stores the states.
///
/// # Safety
/// The slots of `rows` must exist, and a slot that is written must belong to one row. No other
/// thread may access them. `kernel` must do what [`Block`] says.
pub(crate) unsafe fn for_each_block(
    (threads, isa): (&ThreadPool, Isa),
    (pool, state): (&StatePool, StateId),
    matrices: Matrices,
    rows: &StateInputs,
    kernel: &(dyn Fn(RecurrentKernel, &Task<'_>) + Sync),
) {
    let Matrices { heads, rows: height, columns } = matrices;
    let stripes = columns.div_ceil(STRIPE);
    let of_row = heads * stripes;
    let family = RecurrentKernel::of(isa);
    let start = |row: &RowInputs, item: usize| {
        let (head, stripe) = (item / stripes, item % stripes);
        let at = head * height * columns + stripe * STRIPE;
        row.from.map(|slot| pool.state(slot, state).cast_const().wrapping_add(at))
    };
    threads.each_in_order(rows.rows.len() * of_row, &|worker, item| {
        let (row, item) = (&rows.rows[item / of_row], item % of_row);
        let (head, first) = (item / stripes, item % stripes * STRIPE);
        let next = (item + 1 < of_row).then(|| start(row, item + 1)).flatten();
        let ColumnScratch { work } = worker.scratch();
        work.grow(height * STRIPE);
        let end = columns.min(first + STRIPE);
        let mut column = first;
        while column < end {
            let width = family.block_columns(end - column);
            let offset = head * height * columns + column;
            let at = |slot| pool.state(slot, state).wrapping_add(offset);
            let work = work.as_mut_ptr();
            let (mut from, mut from_stride) = match row.from {
                Some(slot) => (at(slot).cast_const(), columns),
                None => {
                    // SAFETY: the scratch memory holds that many numbers.
                    unsafe { std::slice::from_raw_parts_mut(work, height * width) }.fill(0.0);
                    (work.cast_const(), width)
                }
            };
            let prefetch = next.filter(|_| column == first).unwrap_or(from);
            for segment in rows.segments(row) {
                let stores = segment.stores;
                // The state goes to its slot directly if no later token needs it.
                let direct = match stores {
                    [None, Some(slot)] | [Some(slot), None] if segment.inputs.end == row.count => {
                        Some(at(slot))
                    }
                    _ => None,
                };
                let (to, to_stride) = direct.map_or((work, width), |to| (to, columns));
                let block = Block { from, from_stride, work, to, to_stride, prefetch };
                kernel(family, &Task { row, head, columns: column..column + width, segment, block });
                if direct.is_none() {
                    for slot in stores.into_iter().flatten() {
                        // SAFETY: the slot exists and is this row's; this item has the columns.
                        unsafe { copy_block(work, width, at(slot), columns, height) };
                    }
                }
                (from, from_stride) = (work.cast_const(), width);
            }
            column += width;
        }
    });
}

/// Copies a block from scratch memory to a matrix.
///
/// # Safety
/// `height` rows of `width` numbers must be readable and writable, and not overlap.
unsafe fn copy_block(work: *const f32, width: usize, to: *mut f32, stride: usize, height: usize) {
    for i in 0..height {
        // SAFETY: as the caller vouches.
        unsafe {
            std::ptr::copy_nonoverlapping(work.wrapping_add(i * width), to.wrapping_add(i * stride), width)
        };
    }
}

/// Runs `$body` for each `$i` in `0..$count`, with `$c` = `$i` mod 4 known to the compiler. Unrolled
/// by hand: an array whose index the compiler does not know is kept in memory.
macro_rules! each_row {
    (@ $i:ident = $row:expr, $c:ident = $phase:literal, $body:block) => {{
        let ($i, $c) = ($row, $phase);
        $body
    }};
    ($count:expr, |$i:ident, $c:ident| $body:block) => {{
        let (count, mut first) = ($count, 0usize);
        while first + 4 <= count {
            $crate::recurrent::columns::each_row!(@ $i = first, $c = 0, $body);
            $crate::recurrent::columns::each_row!(@ $i = first + 1, $c = 1, $body);
            $crate::recurrent::columns::each_row!(@ $i = first + 2, $c = 2, $body);
            $crate::recurrent::columns::each_row!(@ $i = first + 3, $c = 3, $body);
            first += 4;
        }
        if first < count {
            $crate::recurrent::columns::each_row!(@ $i = first, $c = 0, $body);
        }
        if first + 1 < count {
            $crate::recurrent::columns::each_row!(@ $i = first + 1, $c = 1, $body);
        }
        if first + 2 < count {
            $crate::recurrent::columns::each_row!(@ $i = first + 2, $c = 2, $body);
        }
    }};
}
pub(crate) use each_row;

/// Vectors of the widest block.
pub(crate) const MAX_VECTORS: usize = 2;

/// Runs `$body` for each `$n` in `0..$vectors`, at most [`MAX_VECTORS`]; unrolled like [`each_row`].
macro_rules! each_vector {
    ($vectors:expr, |$n:ident| $body:block) => {{
        {
            let $n = 0usize;
            $body
        }
        if $vectors > 1 {
            let $n = 1usize;
            $body
        }
    }};
}
pub(crate) use each_vector;

/// Defines `$name(kernel, columns, inputs, block)`: the kernel of a block of that many columns, by
/// instruction set. `$define!` defines one kernel for the vectors of a module of `lanes`.
macro_rules! column_kernels {
    ($(#[$doc:meta])* $name:ident($inputs:ty), $define:ident) => {
        $define! { scalars, }
        $define! { arrays, }
        #[cfg(target_arch = "x86_64")]
        $define! { v256, "avx2,fma,f16c" }
        #[cfg(target_arch = "x86_64")]
        $define! { v512, "avx512f,avx512bw,avx512vl,avx512dq" }

        /// The kernel of one column, with fused multiply-add instructions.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn fused_scalars(inputs: &$inputs, block: &$crate::recurrent::columns::Block) {
            // SAFETY: as the caller vouches.
            unsafe { scalars::<1>(inputs, block) }
        }

        $(#[$doc])*
        pub(crate) unsafe fn $name(
            kernel: $crate::kernels::RecurrentKernel,
            columns: usize,
            inputs: &$inputs,
            block: &$crate::recurrent::columns::Block,
        ) {
            use $crate::kernels::RecurrentKernel;
            // SAFETY: the kernel implies its instructions; as the caller vouches.
            unsafe {
                match (kernel, columns) {
                    (RecurrentKernel::Arrays, 8) => arrays::<2>(inputs, block),
                    (RecurrentKernel::Arrays, 4) => arrays::<1>(inputs, block),
                    (RecurrentKernel::Arrays, _) => scalars::<1>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    (RecurrentKernel::Avx2, 8) => v256::<1>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    (RecurrentKernel::Avx512, 32) => v512::<2>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    (RecurrentKernel::Avx512, 16) => v512::<1>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    (RecurrentKernel::Avx2 | RecurrentKernel::Avx512, _) => fused_scalars(inputs, block),
                }
            }
        }
    };
}
pub(crate) use column_kernels;

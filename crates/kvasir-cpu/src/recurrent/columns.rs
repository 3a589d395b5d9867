//! Blocks of columns of a state matrix, the unit of work of the recurrent kernels.
//!
//! A work item is up to [`ITEM_COLUMNS`] columns of one head and sequence. It is divided into
//! blocks of columns that stay in L1 while the kernel applies the inputs of the sequence:
//!
//! 1. The first input reads the block from the state slot (`from`) and writes it to contiguous
//!    scratch memory (`work`).
//! 2. Further inputs update it there.
//! 3. The last input of a segment writes the block to a state slot (`to`), if the state is stored.
//!
//! The instruction set determines the width of a block; narrower blocks cover the remaining columns
//! of a work item.

use crate::kernels::RecurrentKernel;
use crate::memory::aligned::AlignedVec;
use crate::recurrent::inputs::{RowInputs, Segment};
use crate::recurrent::op_context::OpContext;

/// Columns of a work item: two cache lines, so that a kernel of any width reads whole lines.
pub(crate) const ITEM_COLUMNS: usize = 32;

/// The addresses of a block of columns, at row 0 of the matrix.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Where the first input reads the state.
    pub(crate) from: *const f32,
    pub(crate) from_stride: usize,
    /// Scratch memory. The stride of its rows is the width of the block.
    pub(crate) work: *mut f32,
    /// Where the last input writes the state.
    pub(crate) to: *mut f32,
    pub(crate) to_stride: usize,
    /// Block that is prefetched while the state is read; its rows have the stride `from_stride`.
    pub(crate) prefetch: *const f32,
}

/// The state matrices of an op: one `[rows, columns]` per head, row-major.
#[derive(Clone, Copy)]
pub(crate) struct Matrices {
    pub(crate) heads: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// One call of a kernel: a block of columns of one head, and a segment of one sequence's inputs.
pub(crate) struct BlockTask<'a> {
    pub(crate) row: &'a RowInputs,
    pub(crate) head: usize,
    /// First column of the block.
    pub(crate) column: usize,
    pub(crate) segment: Segment,
    pub(crate) block: Block,
}

/// Scratch memory of a worker for one block of columns.
#[derive(Default)]
struct BlockScratch {
    work: AlignedVec<f32>,
}

/// Calls `run_block` for every block of columns of every sequence, over the segments of the
/// sequence in order, and stores the states.
///
/// # Safety
/// The slots of `context.inputs` must exist, and a slot that is written must belong to one row. No
/// other thread may access them, except to read those of frozen pools. `run_block` must read and
/// write state only through its [`Block`].
pub(crate) unsafe fn for_each_block(
    context: &OpContext<'_>,
    matrices: Matrices,
    run_block: &(dyn Fn(RecurrentKernel, &BlockTask<'_>) + Sync),
) {
    let OpContext { threads, isa, pool, state, inputs, .. } = *context;
    let Matrices { heads, rows: height, columns } = matrices;
    let items_per_head = columns.div_ceil(ITEM_COLUMNS);
    let items_per_row = heads * items_per_head;
    // Address of an item's columns in the state that the row reads.
    let state_of_item = |row: &RowInputs, item: usize| {
        let (head, first) = (item / items_per_head, item % items_per_head * ITEM_COLUMNS);
        let offset = head * height * columns + first;
        row.from.map(|from| context.state_from(from).wrapping_add(offset))
    };
    threads.each_in_order(inputs.rows.len() * items_per_row, &|worker, item| {
        let (row, item) = (&inputs.rows[item / items_per_row], item % items_per_row);
        let (head, first) = (item / items_per_head, item % items_per_head * ITEM_COLUMNS);
        let next = (item + 1 < items_per_row).then(|| state_of_item(row, item + 1)).flatten();
        let BlockScratch { work } = worker.scratch();
        work.grow(height * ITEM_COLUMNS);
        let end = columns.min(first + ITEM_COLUMNS);
        let mut column = first;
        while column < end {
            let kernel = RecurrentKernel::widest(isa, end - column);
            let width = kernel.columns();
            let offset = head * height * columns + column;
            let at = |slot| pool.state(slot, state).wrapping_add(offset);
            let work = work.as_mut_ptr();
            let (mut from, mut from_stride) = match row.from {
                Some(from) => (context.state_from(from).wrapping_add(offset), columns),
                None => {
                    // SAFETY: the scratch memory holds that many elements.
                    unsafe { std::slice::from_raw_parts_mut(work, height * width) }.fill(0.0);
                    (work.cast_const(), width)
                }
            };
            let mut prefetch = next.filter(|_| column == first).unwrap_or(from);
            for segment in inputs.segments(row) {
                let stores = segment.stores;
                // The kernel writes the slot directly if no later input needs the state in `work`.
                let direct = match stores {
                    [None, Some(slot)] | [Some(slot), None] if segment.inputs.end == row.count => {
                        Some(at(slot))
                    }
                    _ => None,
                };
                let (to, to_stride) = direct.map_or((work, width), |to| (to, columns));
                let block = Block { from, from_stride, work, to, to_stride, prefetch };
                run_block(kernel, &BlockTask { row, head, column, segment, block });
                if direct.is_none() {
                    for slot in stores.into_iter().flatten() {
                        // SAFETY: the slot exists, and only this item accesses these columns of it.
                        unsafe { copy_block(work, width, at(slot), columns, height) };
                    }
                }
                (from, from_stride) = (work.cast_const(), width);
                prefetch = from;
            }
            column += width;
        }
    });
}

/// Copies a block from scratch memory to a matrix.
///
/// # Safety
/// `height` rows of `width` elements must be readable and writable, and not overlap.
unsafe fn copy_block(work: *const f32, width: usize, to: *mut f32, stride: usize, height: usize) {
    for i in 0..height {
        // SAFETY: upheld by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(work.wrapping_add(i * width), to.wrapping_add(i * stride), width)
        };
    }
}

/// Runs `$body` for each row `$i` in `0..$count`, with `$c` = `$i` mod 4 as a constant: the index
/// of the row's partial sum. Unrolled, because the compiler keeps an array that is indexed by a
/// variable in memory instead of registers.
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

/// Vectors per row of the widest block.
pub(crate) const MAX_VECTORS: usize = 2;

/// Runs `$body` for each `$n` in `0..$vectors`, at most [`MAX_VECTORS`]; unrolled, too.
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

/// Defines `$name(kernel, inputs, block)`, which calls a kernel. `$define!` defines the kernels of
/// one module of `vectors`.
macro_rules! column_kernels {
    ($(#[$doc:meta])* $name:ident($inputs:ty), $define:ident) => {
        $define! { scalars, }
        $define! { arrays, }
        #[cfg(target_arch = "x86_64")]
        $define! { v256, "avx2,fma,f16c" }
        #[cfg(target_arch = "x86_64")]
        $define! { v512, "avx512f,avx512bw,avx512vl,avx512dq" }

        /// The kernel of one column, compiled with fused multiply-add instructions.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn fused_scalars(inputs: &$inputs, block: &$crate::recurrent::columns::Block) {
            // SAFETY: upheld by the caller.
            unsafe { scalars::<1>(inputs, block) }
        }

        $(#[$doc])*
        pub(crate) unsafe fn $name(
            kernel: $crate::kernels::RecurrentKernel,
            inputs: &$inputs,
            block: &$crate::recurrent::columns::Block,
        ) {
            use $crate::kernels::RecurrentKernel;
            // SAFETY: `kernel` implies its instruction set; the rest is upheld by the caller.
            unsafe {
                match kernel {
                    RecurrentKernel::Scalar => scalars::<1>(inputs, block),
                    RecurrentKernel::Arrays => arrays::<1>(inputs, block),
                    RecurrentKernel::ArrayPairs => arrays::<2>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    RecurrentKernel::FusedScalar => fused_scalars(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    RecurrentKernel::Avx2 => v256::<1>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    RecurrentKernel::Avx512 => v512::<1>(inputs, block),
                    #[cfg(target_arch = "x86_64")]
                    RecurrentKernel::Avx512Pairs => v512::<2>(inputs, block),
                }
            }
        }
    };
}
pub(crate) use column_kernels;

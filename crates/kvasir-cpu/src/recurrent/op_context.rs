//! [`OpContext`]: what every recurrent op of a step needs besides its operands and weights.

use crate::isa::features::Isa;
use crate::memory::state_pool::StatePool;
use crate::recurrent::inputs::StateInputs;
use crate::threads::pool::ThreadPool;
use kvasir_program::StateId;

/// Where one recurrent op runs, and the states that it reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct OpContext<'a> {
    pub(crate) threads: &'a ThreadPool,
    pub(crate) isa: Isa,
    pub(crate) pool: &'a StatePool,
    /// The state of the op in every slot and tail.
    pub(crate) state: StateId,
    pub(crate) inputs: &'a StateInputs,
}

impl OpContext<'_> {
    /// Writes the operands of all draft tokens to the tails. Each operand is a matrix with a row
    /// per token of the step, and its width; their order is that of a tail row.
    ///
    /// # Safety
    /// The tails of `inputs` must exist, no two rows may share one, and their replayed rows must
    /// have been read. No other thread may access them.
    pub(crate) unsafe fn write_tails(&self, operands: &[(&[f32], usize)]) {
        for row in &self.inputs.rows {
            for (tail_row, token) in row.drafts() {
                let mut to = self.pool.tail_row(row.tail, tail_row, self.state);
                for (operand, width) in operands {
                    let from = &operand[token * width..][..*width];
                    // SAFETY: a tail row holds all operands; the caller excludes other accesses.
                    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, *width) };
                    to = to.wrapping_add(*width);
                }
            }
        }
    }
}

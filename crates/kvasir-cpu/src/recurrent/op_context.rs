//! [`OpContext`]: what every recurrent op of a step needs besides its operands and weights.

use crate::isa::features::Isa;
use crate::memory::state_pool::StatePool;
use crate::recurrent::inputs::StateInputs;
use crate::threads::pool::ThreadPool;
use kvasir_kv::{PoolId, Slot};
use kvasir_program::StateId;
use std::sync::Arc;

/// Where one recurrent op runs, and the states that it reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct OpContext<'a> {
    pub(crate) threads: &'a ThreadPool,
    pub(crate) isa: Isa,
    pub(crate) pool: &'a StatePool,
    /// The pools of shared prefixes by id, from id 1 on.
    pub(crate) frozen: &'a [Arc<StatePool>],
    /// The state of the op in every slot and tail.
    pub(crate) state: StateId,
    pub(crate) inputs: &'a StateInputs,
}

impl OpContext<'_> {
    /// Address of the op's state in a slot of the executor's own pool (id 0) or of a frozen one.
    pub(crate) fn state_from(&self, (pool, slot): (PoolId, Slot)) -> *const f32 {
        let place = (pool.0 as usize).checked_sub(1);
        let pool = place.map_or(self.pool, |place| &*self.frozen[place]);
        pool.state(slot, self.state).cast_const()
    }

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

//! Compaction of the `cells` KV cache: moves the slots of the only running sequence to the start of
//! the pool, so that its plan is contiguous again.

use crate::{sequence::Moves, world::World};

impl World {
    /// Brings the cells of the only one who still runs back into one run from the pool's start, so that it takes the fused path
    /// again. Only while nothing is in flight; the row moves go out with the next step.
    pub(crate) fn tidy(&mut self) {
        if !self.scattered || self.in_flight > 0 {
            return;
        }
        let alone = match self.running.as_slice() {
            [] => return self.scattered = false,
            [alone] => *alone,
            _ => return,
        };
        self.scattered = false;
        // Rows of somebody whom the engine does not run would be lost unnoticed if the step that moves them failed, and a device
        // of fixed shapes moves none.
        let only_ours = self.cache.room().held == self.slab[alone].claimed;
        if !only_ours || !self.record.rectangle.is_empty() {
            return;
        }
        if self.cache.compact().is_ok_and(|moved| moved > 0) {
            self.slab[alone].moves = Moves::Due;
            self.moves_due = true;
        }
    }
}

//! Compaction of the `cells` KV cache: moves the slots of the only running sequence to the start of
//! the pool, so that its plan is contiguous again.

use crate::request::sequence::Moves;
use crate::scheduler::state::World;

impl World {
    /// Compacts the cache when a single sequence is left on scattered cells, so that its attention
    /// takes the contiguous path again. Only while nothing is in flight; the row moves are carried
    /// by the next step.
    pub(crate) fn compact(&mut self) {
        if !self.scattered || self.in_flight > 0 {
            return;
        }
        let alone = match self.running.as_slice() {
            [] => return self.scattered = false,
            [alone] => *alone,
            _ => return,
        };
        self.scattered = false;
        // Only if this sequence owns every held slot: retained sequences would silently lose rows
        // if the step that carries the moves failed. Static-shape devices make no moves.
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

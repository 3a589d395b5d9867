//! The pool of recurrent states: a state per slot, and the inputs of draft tokens per tail.
//!
//! All elements are f32. A slot holds one state of each recurrent layer, in the order of
//! `StateLayout`; slots start on cache lines. The tails follow the slots, each with
//! `tail_rows` rows. Invariants:
//!
//! - Addresses never change. Address space is reserved at once; memory is committed when a slot is
//!   first written.
//! - States are never copied from slot to slot. A step reads a state from one slot and writes the
//!   result to the same slot or to others.
//!
//! The pool does not know which sequence owns a slot; caches and plans decide that.

use crate::memory::buffer::Buffer;
use kvasir_kv::{Slot, StateConfig};
use kvasir_program::{StateId, StateLayout};
use std::io;

/// f32 elements of a cache line.
const LINE_ELEMENTS: usize = 16;

/// The state slots and tails of one executor.
pub(crate) struct StatePool {
    layout: StateLayout,
    slots: usize,
    tails: usize,
    tail_rows: usize,
    /// Elements from one slot to the next.
    slot_stride: usize,
    /// Elements from one tail row to the next.
    row_stride: usize,
    bytes: Buffer,
}

impl StatePool {
    /// Reserves address space for all slots and tails. Fails if the size overflows or cannot be
    /// mapped.
    pub(crate) fn new(layout: StateLayout, config: StateConfig) -> io::Result<Self> {
        let too_large =
            || io::Error::new(io::ErrorKind::OutOfMemory, "the size of the recurrent state pool overflows");
        let [slots, tails, tail_rows] = [config.slots(), config.live, config.tail_rows].map(|n| n as usize);
        let stride = |elements: usize| elements.checked_next_multiple_of(LINE_ELEMENTS).ok_or_else(too_large);
        let (slot_stride, row_stride) = (stride(layout.slot_elements)?, stride(layout.tail_elements)?);
        let states = slot_stride.checked_mul(slots);
        let inputs = row_stride.checked_mul(tails).and_then(|elements| elements.checked_mul(tail_rows));
        let elements = states.zip(inputs).and_then(|(states, inputs)| states.checked_add(inputs));
        let bytes = elements.and_then(|elements| elements.checked_mul(4)).ok_or_else(too_large)?;
        let bytes = Buffer::new(bytes)?;
        bytes.advise_huge_pages(0..bytes.len());
        Ok(Self { layout, slots, tails, tail_rows, slot_stride, row_stride, bytes })
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots as u32
    }

    /// Whether the slots of another pool have the same layout.
    pub(crate) fn has_layout_of(&self, other: &Self) -> bool {
        self.layout == other.layout
    }

    /// Address of a state in a slot.
    pub(crate) fn state(&self, slot: Slot, state: StateId) -> *mut f32 {
        assert!((slot as usize) < self.slots, "a state slot lies outside the pool");
        self.at(slot as usize * self.slot_stride + self.layout.span(state).slot.start)
    }

    /// Address of the inputs to a state in a row of a tail.
    pub(crate) fn tail_row(&self, tail: Slot, row: usize, state: StateId) -> *mut f32 {
        assert!((tail as usize) < self.tails && row < self.tail_rows, "a tail row lies outside the pool");
        let row = tail as usize * self.tail_rows + row;
        let span = &self.layout.span(state).tail;
        self.at(self.slots * self.slot_stride + row * self.row_stride + span.start)
    }

    /// The inputs to a state in a row of a tail.
    ///
    /// # Safety
    /// Nothing may write the row while the result is used.
    pub(crate) unsafe fn tail_inputs(&self, tail: Slot, row: usize, state: StateId) -> &[f32] {
        // SAFETY: the row has that many elements; the caller excludes writes.
        unsafe {
            std::slice::from_raw_parts(self.tail_row(tail, row, state), self.layout.span(state).tail.len())
        }
    }

    /// Elements from one row of a tail to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.row_stride
    }

    fn at(&self, element: usize) -> *mut f32 {
        debug_assert!(element * 4 <= self.bytes.len());
        self.bytes.ptr().cast_mut().cast::<f32>().wrapping_add(element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_program::StateSpan;

    #[test]
    fn states_and_tail_rows_do_not_overlap() {
        let span = |slot: std::ops::Range<usize>, tail| StateSpan { slot, tail };
        let spans = vec![span(0..7, 0..2), span(7..40, 2..5)];
        let layout = StateLayout { spans: spans.clone(), slot_elements: 40, tail_elements: 5 };
        let config = StateConfig { live: 3, checkpoints: 2, tail_rows: 4, interval: 0 };
        let pool = StatePool::new(layout, config).unwrap();
        let mut parts = Vec::new();
        for (id, span) in (0..).map(StateId).zip(&spans) {
            parts.extend((0..5).map(|slot| (pool.state(slot, id).addr(), span.slot.len())));
            let rows = (0..3).flat_map(|tail| (0..4).map(move |row| (tail, row)));
            parts.extend(rows.map(|(tail, row)| (pool.tail_row(tail, row, id).addr(), span.tail.len())));
        }
        parts.sort_unstable();
        assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 * 4 <= two[1].0));
        let (last, len) = *parts.last().unwrap();
        assert!(last + len * 4 <= pool.at(0).addr() + pool.bytes.len());
    }

    #[test]
    fn a_pool_whose_size_overflows_is_refused() {
        let layout = StateLayout { spans: Vec::new(), slot_elements: usize::MAX / 8, tail_elements: 0 };
        let config = StateConfig { live: 9, checkpoints: 0, tail_rows: 0, interval: 0 };
        assert!(StatePool::new(layout, config).is_err());
    }
}

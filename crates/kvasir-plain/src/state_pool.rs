//! [`StatePool`]: memory of recurrent states and of tails, in f32.
//!
//! A slot holds one state of each recurrent op. A tail holds the recurrence inputs of one
//! sequence's draft tokens. `StateLayout` defines the layout of both. A slot or tail that was never
//! written reads as zeros.

use kvasir_kv::{Slot, StateConfig};
use kvasir_program::{StateId, StateLayout};

/// The states and tails of an executor.
pub(crate) struct StatePool {
    layout: StateLayout,
    tail_rows: usize,
    /// By slot; a slot has no memory before its first write.
    slots: Vec<Vec<f32>>,
    /// By tail, row-major; a tail has no memory before its first write.
    tails: Vec<Vec<f32>>,
}

impl StatePool {
    /// Creates a pool of the sizes in `config`. Allocates slots and tails on their first write.
    pub(crate) fn new(layout: StateLayout, config: StateConfig) -> Self {
        let empty = |count: u32| vec![Vec::new(); count as usize];
        let (slots, tails) = (empty(config.slots()), empty(config.live));
        Self { layout, tail_rows: config.tail_rows as usize, slots, tails }
    }

    /// Number of slots.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn state(&self, slot: Slot, state: StateId) -> Vec<f32> {
        let span = self.layout.span(state).slot.clone();
        let slot = &self.slots[slot as usize];
        slot.get(span.clone()).map_or_else(|| vec![0.0; span.len()], <[f32]>::to_vec)
    }

    pub(crate) fn write_state(&mut self, slot: Slot, state: StateId, from: &[f32]) {
        let slot = &mut self.slots[slot as usize];
        slot.resize(self.layout.slot_elements, 0.0);
        slot[self.layout.span(state).slot.clone()].copy_from_slice(from);
    }

    /// Returns the inputs of a recurrent op in the first `count` rows of a tail.
    pub(crate) fn tail(&self, tail: Slot, count: u32, state: StateId) -> Vec<Vec<f32>> {
        let (span, width) = (self.layout.span(state).tail.clone(), self.layout.tail_elements);
        let tail = &self.tails[tail as usize];
        let row = |row: usize| tail.get(row * width + span.start..row * width + span.end);
        (0..count as usize).map(|at| row(at).map_or_else(|| vec![0.0; span.len()], <[f32]>::to_vec)).collect()
    }

    /// Writes the inputs of a recurrent op to the first rows of a tail.
    pub(crate) fn write_tail(&mut self, tail: Slot, state: StateId, inputs: &[Vec<f32>]) {
        let (span, width) = (self.layout.span(state).tail.clone(), self.layout.tail_elements);
        let tail = &mut self.tails[tail as usize];
        tail.resize(self.tail_rows * width, 0.0);
        for (row, input) in inputs.iter().enumerate() {
            tail[row * width..][span.clone()].copy_from_slice(input);
        }
    }
}

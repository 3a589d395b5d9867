//! [`KvSizes`]: the bytes of K/V per layer group, and the slots that an amount of memory holds.
//!
//! If the full group has `s` slots, window group `i` has `c_i = min(n W_i + S, s)`. `n` is the
//! number of sequences, `W_i` the number of slots that each holds between steps, and `S` the number
//! of rows of the steps in flight. All K/V takes `s full + sum c_i window_i` bytes.

use crate::config::facts::Facts;
use crate::config::memory_division::FreeMemory;
use kvasir_kv::{GroupKind, WindowConfig};

/// Sizes of a window group.
#[derive(Clone, Copy, Debug)]
struct WindowSizes {
    window: u32,
    slot_bytes: u64,
    /// `W`: slots that a sequence holds between steps, at most.
    per_sequence: u32,
}

/// Bytes of a slot per layer group, and the slots that sequences and steps need in window groups.
#[derive(Clone, Debug)]
pub(super) struct KvSizes {
    /// Bytes of a slot of the full group, including the window layers that joined it.
    full_slot_bytes: u64,
    /// From narrow to wide, so `per_sequence` ascends.
    windows: Vec<WindowSizes>,
    longest_draft: u32,
    /// `S`: rows of the steps in flight.
    in_flight_rows: u32,
    block_size: u32,
}

impl KvSizes {
    /// The sizes of a cache with blocks of `block_size` slots, if the steps in flight write
    /// `step_rows` rows.
    pub(super) fn new(facts: &Facts, is_joined: bool, block_size: u32, step_rows: u32) -> Self {
        let kv_groups = facts.groups.iter().filter(|group| group.kind != GroupKind::State);
        let (mut full_slot_bytes, mut windows) = (0_u64, Vec::new());
        for group in kv_groups {
            match group.kind {
                GroupKind::Window(window) if !is_joined => {
                    let config = WindowConfig { window, capacity: 0, longest_draft: facts.longest_draft };
                    let per_sequence = config.slots_per_sequence(block_size);
                    windows.push(WindowSizes { window, slot_bytes: group.slot_bytes, per_sequence });
                }
                _ => full_slot_bytes = full_slot_bytes.saturating_add(group.slot_bytes),
            }
        }
        windows.sort_unstable_by_key(|window| window.window);
        let in_flight_rows = step_rows.max(1).checked_next_multiple_of(block_size).unwrap_or(u32::MAX);
        let longest_draft = facts.longest_draft;
        if windows.is_empty() {
            // Without any layer, memory still bounds the number of slots.
            full_slot_bytes = full_slot_bytes.max(1);
        }
        Self { full_slot_bytes, windows, longest_draft, in_flight_rows, block_size }
    }

    /// Bytes of a slot of the full group.
    pub(super) fn full_slot_bytes(&self) -> u64 {
        self.full_slot_bytes
    }

    /// Bytes of K and V of a token in all groups.
    pub(super) fn token_bytes(&self) -> u64 {
        let windows = self.windows.iter();
        windows.fold(self.full_slot_bytes, |sum, window| sum.saturating_add(window.slot_bytes))
    }

    /// Bytes of the windows of a sequence of `tokens` tokens.
    pub(super) fn window_bytes(&self, tokens: u32) -> u64 {
        let bytes = self
            .windows
            .iter()
            .map(|window| u64::from(window.per_sequence.min(tokens)).saturating_mul(window.slot_bytes));
        bytes.fold(0, u64::saturating_add)
    }

    /// Bytes of the window rows of the steps in flight.
    pub(super) fn in_flight_bytes(&self) -> u64 {
        let window_slot_bytes = self.token_bytes() - self.full_slot_bytes;
        window_slot_bytes.saturating_mul(self.in_flight_rows.into())
    }

    /// Slots that a window group needs for `sequences` sequences: `n W + S`, not yet limited to the
    /// slots of the full group.
    fn window_slots(&self, window: &WindowSizes, sequences: u32) -> u32 {
        window.per_sequence.saturating_mul(sequences).saturating_add(self.in_flight_rows)
    }

    /// Slots of the full group, at most `max`, that fit into `memory` together with the window
    /// groups of `sequences` sequences.
    pub(super) fn slots_fitting(&self, memory: FreeMemory, sequences: u32, max: u32) -> u32 {
        let (mut memory, mut bytes) = (memory, self.token_bytes());
        for window in &self.windows {
            let slots = self.window_slots(window, sequences);
            if slots >= memory.count_fitting(bytes, max) {
                // This group and all wider ones have as many slots as the full group.
                break;
            }
            memory = memory.minus(window.slot_bytes.saturating_mul(slots.into()));
            bytes -= window.slot_bytes;
        }
        memory.count_fitting(bytes, max)
    }

    /// The window groups for `sequences` sequences if the full group has `slots` slots, each with
    /// the bytes of its slots.
    pub(super) fn window_configs(
        &self,
        sequences: u32,
        slots: u32,
    ) -> impl Iterator<Item = (WindowConfig, u64)> + '_ {
        self.windows.iter().map(move |sizes| {
            let capacity = self.window_slots(sizes, sequences).min(slots);
            let capacity = capacity / self.block_size * self.block_size;
            let config = WindowConfig { window: sizes.window, capacity, longest_draft: self.longest_draft };
            (config, sizes.slot_bytes)
        })
    }
}

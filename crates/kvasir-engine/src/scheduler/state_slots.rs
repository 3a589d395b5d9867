//! Counter of fixed-size recurrent-state slots (state-space and linear-attention layers), one per
//! running sequence that needs one.

/// Fixed-size state slots besides the KV cache, one per sequence with recurrent state. They cost no
/// KV slots.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateSlots {
    /// None is unbounded.
    limit: Option<u32>,
    taken: u32,
}

impl StateSlots {
    /// `limit` slots, or unbounded.
    pub fn new(limit: Option<u32>) -> Self {
        Self { limit, taken: 0 }
    }

    /// Whether a slot is free.
    pub fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.taken < limit)
    }

    /// Slots in use.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes a slot. False, and nothing changes, if none is free.
    pub fn take(&mut self) -> bool {
        let has_room = self.has_room();
        self.taken += u32::from(has_room);
        has_room
    }

    /// Releases a slot.
    pub fn give_back(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut slots = StateSlots::new(Some(1));
        assert!(slots.take() && !slots.take());
        slots.give_back();
        assert!(slots.has_room() && slots.taken() == 0);
        let mut any = StateSlots::new(None);
        assert!((0..9).all(|_| any.take()));
    }
}

//! Counter of fixed-size recurrent-state slots (state-space and linear-attention layers), one per
//! running sequence that needs one.

/// Places for state of fixed size beside K and V, one per sequence that keeps some: a resource of its own, which costs
/// no slot of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateSlots {
    /// None sets no bound.
    limit: Option<u32>,
    taken: u32,
}

impl StateSlots {
    /// So many places, or any number.
    pub fn new(limit: Option<u32>) -> Self {
        Self { limit, taken: 0 }
    }

    /// Whether one can be had.
    pub fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.taken < limit)
    }

    /// Places that are taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// Takes one. False if none is left; that changes nothing.
    pub fn take(&mut self) -> bool {
        let has_room = self.has_room();
        self.taken += u32::from(has_room);
        has_room
    }

    /// Gives one back.
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

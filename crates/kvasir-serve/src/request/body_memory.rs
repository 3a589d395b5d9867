//! Process-wide memory budget of request bodies, raw and parsed (a semaphore; returned on drop).

use crate::error::ApiError;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum bytes of all bodies together; a request beyond it gets 503.
const MAX_HELD: usize = 512 << 20;
/// Granularity of the budget, in bytes.
const UNIT: usize = 64 << 10;
static HELD: Semaphore = Semaphore::const_new(MAX_HELD / UNIT);

/// One body's share of the budget, returned on drop.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    budget: &'static Semaphore,
    held: Option<SemaphorePermit<'static>>,
}

impl Default for BodyMemory {
    fn default() -> Self {
        Self { budget: &HELD, held: None }
    }
}

impl BodyMemory {
    /// Grows the share to at least `bytes`. On error it is unchanged.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        let have = self.held.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = bytes.div_ceil(UNIT).saturating_sub(have) as u32;
        if more == 0 {
            return Ok(());
        }
        let full = |_| ApiError::unavailable("too many large requests are being read; try again");
        let more = self.budget.try_acquire_many(more).map_err(full)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }

    /// Shrinks the share to `bytes`, rounded down to units: what is smaller is bounded by the limit of
    /// open answers.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(held) = &mut self.held {
            drop(held.split(held.num_permits().saturating_sub(bytes / UNIT)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_share_one_memory_budget() {
        let budget: &'static Semaphore = Box::leak(Box::new(Semaphore::new(8)));
        let part = || BodyMemory { budget, held: None };
        let (mut one, mut other) = (part(), part());
        one.grow_to(1).unwrap();
        one.grow_to(UNIT).unwrap();
        assert_eq!(budget.available_permits(), 7);
        one.grow_to(7 * UNIT).unwrap();
        assert_eq!(other.grow_to(UNIT + 1).unwrap_err().status, 503);
        other.grow_to(UNIT).unwrap();
        assert_eq!(budget.available_permits(), 0);
        one.shrink_to(2 * UNIT + 1);
        assert_eq!(budget.available_permits(), 5);
        one.shrink_to(UNIT - 1);
        assert_eq!(budget.available_permits(), 7);
        drop((one, other));
        assert_eq!(budget.available_permits(), 8);
    }
}

//! Progress of a conversion, and its cancellation.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts converted weights and reports them to a callback, which may stop the conversion.
pub(super) struct Watch<'a> {
    done: AtomicU64,
    total: u64,
    report: &'a (dyn Fn(u64, u64) -> bool + Sync),
}

impl<'a> Watch<'a> {
    /// `report` gets the weights done and in total; false stops the conversion.
    pub(super) fn new(total: u64, report: &'a (dyn Fn(u64, u64) -> bool + Sync)) -> Self {
        Self { done: AtomicU64::new(0), total, report }
    }

    /// Counts weights that a thread has quantized.
    pub(super) fn advance(&self, weights: usize) -> Result<()> {
        let before = self.done.fetch_add(weights as u64, Ordering::Relaxed);
        self.tell(before + weights as u64)
    }

    /// Corrects the count after a tensor, whose weights may have been copied without counting them.
    pub(super) fn reach(&self, weights: u64) -> Result<()> {
        self.done.store(weights, Ordering::Relaxed);
        self.tell(weights)
    }

    fn tell(&self, done: u64) -> Result<()> {
        if (self.report)(done.min(self.total), self.total) {
            Ok(())
        } else {
            Err(Error::at("conversion", "stopped"))
        }
    }
}

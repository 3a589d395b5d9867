//! Maximum of an answer that was clamped, for the header `x-kvasir-clamped` and the log.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// A clamped maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClampedLimit {
    /// The client's name of the maximum.
    pub field: &'static str,
    /// Its value in the request.
    pub requested: u32,
    /// The value in force.
    pub limit: u32,
}

impl fmt::Display for ClampedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.field, self.limit)
    }
}

/// Record of a request's clamped maximum. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ClampRecord(Arc<Mutex<Option<ClampedLimit>>>);

impl ClampRecord {
    /// Records a clamped maximum; of several prompts, the smallest one stays.
    pub(crate) fn record(&self, clamped: ClampedLimit) {
        let mut recorded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *recorded = recorded.filter(|earlier| earlier.limit <= clamped.limit).or(Some(clamped));
    }

    /// The recorded maximum.
    pub(crate) fn get(&self) -> Option<ClampedLimit> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_of_several_limits_is_recorded() {
        let record = ClampRecord::default();
        for limit in [30, 10, 20] {
            record.record(ClampedLimit { field: "max_tokens", requested: 100, limit });
        }
        assert_eq!(record.get().map(|clamped| clamped.to_string()), Some("max_tokens=10".into()));
    }
}

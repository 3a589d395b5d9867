//! The check of a rewind's target, which all caches share.

use crate::contract::error::CacheError;
use std::ops::RangeInclusive;

/// Returns the target `to` of a rewind if it is in `possible`: from the lowest length that is still
/// held to the current length. Fails with `RewindOutOfRange` otherwise.
pub(crate) fn check_rewind_target(to: u32, possible: RangeInclusive<u32>) -> Result<u32, CacheError> {
    if possible.contains(&to) {
        return Ok(to);
    }
    let (lowest, length) = possible.into_inner();
    Err(CacheError::RewindOutOfRange { to, lowest, length })
}

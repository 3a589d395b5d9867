//! Rules that option values keep; an error names the option.

use crate::io::failure::Failure;

/// Fails as a usage error unless the rule holds.
pub(crate) fn rule(holds: bool, why: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::usage(why())) }
}

//! Rules that option values keep; an error names the option.

use crate::io::failure::Failure;

/// Fails as a usage error unless the rule holds.
pub(crate) fn rule(holds: bool, why: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::usage(why())) }
}

/// The value of an option that must be at least 1, or its default.
pub(crate) fn positive(name: &str, value: Option<u32>, default: u32) -> Result<u32, Failure> {
    rule(value != Some(0), || format!("--{name} must be at least 1"))?;
    Ok(value.unwrap_or(default))
}

/// The value of an option that must lie between 0 and 1, or its default.
pub(crate) fn share(name: &str, value: Option<f64>, default: f64) -> Result<f64, Failure> {
    let value = value.unwrap_or(default);
    rule((0.0..=1.0).contains(&value), || format!("--{name} {value} is not between 0 and 1"))?;
    Ok(value)
}

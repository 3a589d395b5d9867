//! `ConfigError`: why a configuration was refused.

use std::fmt::{self, Display};

/// Maximum tokens of a sequence or a step.
pub(super) const MAX_TOKENS: u32 = 1 << 30;

/// A parameter and its value, as an error cites them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Name of the parameter.
    pub parameter: &'static str,
    /// Its value.
    pub value: String,
}

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A value is out of range, or impossible for this model or device.
    Invalid {
        /// The parameter.
        argument: Argument,
        /// What is wrong with it, as a predicate: `is not 1 to 256`.
        reason: String,
    },
    /// Two values exclude each other.
    Conflict {
        /// The more specific parameter.
        a: Argument,
        /// The parameter that it conflicts with.
        b: Argument,
        /// Why they exclude each other.
        reason: String,
    },
}

impl ConfigError {
    /// Reports an invalid value.
    pub fn invalid(parameter: &'static str, value: &dyn Display, reason: impl Into<String>) -> Self {
        Self::Invalid { argument: Argument::new(parameter, value), reason: reason.into() }
    }

    /// Reports two values that exclude each other.
    pub fn conflict(
        (a, a_value): (&'static str, &dyn Display),
        (b, b_value): (&'static str, &dyn Display),
        reason: impl Into<String>,
    ) -> Self {
        let (a, b) = (Argument::new(a, a_value), Argument::new(b, b_value));
        Self::Conflict { a, b, reason: reason.into() }
    }

    /// The message, with each parameter under the name that `name` gives it, such as its flag.
    pub fn message(&self, name: impl Fn(&'static str) -> String) -> String {
        let cite = |argument: &Argument| format!("{} {}", name(argument.parameter), argument.value);
        match self {
            Self::Invalid { argument, reason } => format!("{} {reason}", cite(argument)),
            Self::Conflict { a, b, reason } => {
                format!("{} cannot be combined with {}: {reason}", cite(a), cite(b))
            }
        }
    }
}

impl Argument {
    fn new(parameter: &'static str, value: &dyn Display) -> Self {
        Self { parameter, value: value.to_string() }
    }
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(str::to_owned))
    }
}

impl std::error::Error for ConfigError {}

/// Fails unless the condition holds.
pub(super) fn ensure(holds: bool, error: impl FnOnce() -> ConfigError) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(error()) }
}

/// Returns the value or its default; fails unless it is in `1..=most`.
pub(super) fn checked_count(
    parameter: &'static str,
    value: Option<u32>,
    default: u32,
    most: u32,
) -> Result<u32, ConfigError> {
    let value = value.unwrap_or(default);
    ensure(value > 0, || ConfigError::invalid(parameter, &value, "must be at least 1"))?;
    ensure(value <= most, || ConfigError::invalid(parameter, &value, format!("is more than {most}")))?;
    Ok(value)
}

/// Returns the value; fails unless it is in `0.0..=1.0`.
pub(super) fn checked_share(parameter: &'static str, value: f64) -> Result<f64, ConfigError> {
    let is_share = (0.0..=1.0).contains(&value);
    ensure(is_share, || ConfigError::invalid(parameter, &value, "is not between 0 and 1"))?;
    Ok(value)
}

//! `Figure`: a number of the cost model with its source.

use std::fmt;

/// The origin of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Measured by this project, on such a machine.
    Measured,
    /// Published by others, named here.
    Published(&'static str),
    /// Measured by this project on another machine, named here, for lack of a figure of this one.
    MeasuredOn(&'static str),
    /// Given by the user (`fixed:5ms`) or by convention.
    User,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured => write!(f, "measured"),
            Self::Published(by) => write!(f, "published: {by}"),
            Self::MeasuredOn(machine) => write!(f, "measured on {machine}"),
            Self::User => write!(f, "given"),
        }
    }
}

/// A number with its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The value, in the unit of the field that holds it.
    pub value: f64,
    /// Its source.
    pub source: Source,
}

pub(crate) const fn measured(value: f64) -> Figure {
    Figure { value, source: Source::Measured }
}

pub(crate) const fn published(value: f64, by: &'static str) -> Figure {
    Figure { value, source: Source::Published(by) }
}

impl Figure {
    pub(crate) const fn given(value: f64) -> Self {
        Self { value, source: Source::User }
    }
}

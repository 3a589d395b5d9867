//! `Outcome`: the verdict on a case, and the function that runs one.

use crate::case::{Case, CaseError};
use crate::compare::Mismatch;
use serde::Serialize;

/// Verdict of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Outcome {
    /// All assertions hold.
    Passed,
    /// The first difference.
    Failed(Box<Mismatch>),
    /// The case is malformed: a missing field or an unknown operation.
    Invalid {
        /// The reason.
        why: String,
    },
    /// Not run. The reason names the unit test or decision record that covers it.
    Skipped {
        /// The reason.
        reason: String,
    },
}

/// Runs one case. `Err` means a malformed case: a missing field or an unknown operation.
pub type Runner = fn(&Case) -> Result<Outcome, CaseError>;

//! `kvasir replay`: recorded operation sequences run against our caches and policies.
//!
//! A case file is `{"format": "kvasir-conformance/1", "suite", "meta", "cases": [..]}`. Each kind of case has a
//! runner in [`FAMILIES`]; a file of this module holds the runners of one family.

mod blocks;
mod case;
mod compare;
mod engine;
mod kv;
mod names;
mod spyre;

pub use case::{Case, CaseError, Suite};
use compare::expand_ranges;
pub use compare::{Mismatch, compare};
use names::BlockNames;

use serde::Serialize;

/// What became of one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Outcome {
    /// Everything that was asserted holds.
    Passed,
    /// Something differs; the first difference.
    Failed(Box<Mismatch>),
    /// The case makes no sense: a field is missing, or an operation is not known.
    Senseless {
        /// Which.
        why: String,
    },
    /// Not run, with the reason: the unit test that covers a table, or a decision record.
    Skipped {
        /// Why.
        reason: String,
    },
}

/// Runs one case. An `Err` is a case that makes no sense: a missing field, an unknown operation.
pub type Runner = fn(&Case) -> Result<Outcome, CaseError>;

/// Every kind that can be replayed, family by family.
pub const FAMILIES: &[&[(&str, Runner)]] = &[blocks::KINDS, engine::KINDS, kv::KINDS, spyre::KINDS];

/// A case's verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The case.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Runs every case of a suite, or the one named if it is there. One that makes no sense does not keep the others from running.
pub fn run(suite: &Suite, only: Option<&str>) -> Result<Vec<Report>, CaseError> {
    let mut reports = Vec::new();
    for case in suite.cases.iter().filter(|case| only.is_none_or(|id| id == case.id)) {
        let Some((_, runner)) = FAMILIES.iter().copied().flatten().find(|(kind, _)| *kind == case.kind)
        else {
            return Err(case.error(format!("unknown kind `{}`", case.kind)));
        };
        let outcome = runner(case).unwrap_or_else(|error| Outcome::Senseless { why: error.why().to_owned() });
        reports.push(Report { id: case.id.clone(), kind: case.kind.clone(), outcome });
    }
    Ok(reports)
}

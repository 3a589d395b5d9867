//! `kvasir replay`: conformance replay of recorded operation sequences against our KV caches and
//! schedulers.
//!
//! A case file is `{"format": "kvasir-conformance/1", "suite", "meta", "cases": [..]}`. Each case
//! kind has a runner in [`FAMILIES`]; each submodule holds the runners of one family:
//!
//! - `blocks`: paged and radix caches (ATOM block manager, Mini-SGLang radix tree, nano-vLLM
//!   hashes).
//! - `engine`: schedulers, sequences, routing and whole toy workloads.
//! - `kv`: llama.cpp-style KV cache operations.
//! - `spyre`: rectangular (static shape) scheduling.
//!
//! Guarded by `tests/replay_*.rs`; `tests/mutations.rs` checks that wrong cases fail.

#![forbid(unsafe_code)]

mod blocks;
mod case;
mod compare;
mod engine;
mod kv;
mod names;
mod outcome;
mod spyre;

pub use crate::case::{Case, CaseError, Suite};
pub use crate::compare::{Mismatch, compare};
pub use crate::outcome::{Outcome, Runner};

use serde::Serialize;

/// All supported case kinds and their runners, by family.
pub const FAMILIES: &[&[(&str, Runner)]] = &[blocks::KINDS, engine::KINDS, kv::KINDS, spyre::KINDS];

/// The verdict on one case.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Case id.
    pub id: String,
    /// Case kind.
    pub kind: String,
    /// Verdict.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Runs every case of a suite, or only the one with the id `only`.
///
/// A malformed case is reported as `Invalid` and does not stop the others. An unknown kind is an
/// error.
pub fn run(suite: &Suite, only: Option<&str>) -> Result<Vec<Report>, CaseError> {
    let mut reports = Vec::new();
    for case in suite.cases.iter().filter(|case| only.is_none_or(|id| id == case.id)) {
        let Some((_, runner)) = FAMILIES.iter().copied().flatten().find(|(kind, _)| *kind == case.kind)
        else {
            return Err(case.error(format!("unknown kind `{}`", case.kind)));
        };
        let outcome = runner(case).unwrap_or_else(|error| Outcome::Invalid { why: error.why().to_owned() });
        reports.push(Report { id: case.id.clone(), kind: case.kind.clone(), outcome });
    }
    Ok(reports)
}

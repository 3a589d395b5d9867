//! Every recorded case that the project has, of every kind that can be replayed.

#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_lab::replay::{self, KINDS, Outcome, Suite};
use std::path::Path;

/// Runs a file's cases of known kinds; returns how many passed.
fn passes(file: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(file);
    let mut suite = Suite::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    suite.cases.retain(|case| KINDS.iter().any(|(kind, _)| *kind == case.kind));
    let reports = replay::run(&suite, None).unwrap();
    for report in &reports {
        if let Outcome::Failed(mismatch) = &report.outcome {
            panic!("{}: {mismatch:?}", report.id);
        }
    }
    reports.iter().filter(|report| report.outcome == Outcome::Passed).count()
}

#[test]
fn atom() {
    assert!(passes("atom.json") >= 43);
}

#[test]
fn minisgl() {
    assert!(passes("minisgl.json") >= 49);
}

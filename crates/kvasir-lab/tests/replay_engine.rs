//! Recorded schedules, workloads and tables, replayed against the engine.
#![allow(clippy::unwrap_used)]

use kvasir_lab::replay::{Outcome, Suite, run};

/// Kinds that a core or its routing answers for.
const KINDS: &[&str] = &[
    "atom.scheduler",
    "atom.sequence",
    "atom.toy_engine",
    "atom.dp_load_balance",
    "atom.prefill_delayer",
    "atom.function",
    "minisgl.scheduler",
    "nano.scheduler",
];

fn replay(text: &str) {
    let mut suite = Suite::parse(text).unwrap();
    suite.cases.retain(|case| KINDS.contains(&case.kind.as_str()));
    let reports = run(&suite, None).unwrap();
    let failed: Vec<_> =
        reports.iter().filter(|report| matches!(report.outcome, Outcome::Failed(_))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let passed = reports.iter().filter(|report| report.outcome == Outcome::Passed).count();
    assert!(passed > 30, "only {passed} cases ran");
}

#[test]
fn atom() {
    replay(include_str!("../cases/atom.json"));
}

#[test]
fn minisgl_and_nano() {
    replay(include_str!("../cases/minisgl.json"));
}

//! Recorded operations on blocks, pages and radix trees, replayed against the block caches.

use kvasir_lab::replay::{Outcome, Suite, run};

/// Kinds that the block caches answer for.
const KINDS: &[&str] = &[
    "atom.block_manager",
    "atom.block_pool",
    "atom.hash",
    "minisgl.cache_manager",
    "minisgl.naive",
    "minisgl.page_allocator",
    "minisgl.radix",
    "nano.hash",
];

#[allow(clippy::unwrap_used)]
fn replay(text: &str, at_least: usize) {
    let mut suite = Suite::parse(text).unwrap();
    suite.cases.retain(|case| KINDS.contains(&case.kind.as_str()));
    let reports = run(&suite, None).unwrap();
    let failed: Vec<_> =
        reports.iter().filter(|report| matches!(report.outcome, Outcome::Failed(_))).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let passed = reports.iter().filter(|report| report.outcome == Outcome::Passed).count();
    assert!(passed >= at_least, "only {passed} cases ran");
}

#[test]
fn atom() {
    replay(include_str!("../cases/atom.json"), 43);
}

#[test]
fn minisgl_and_nano() {
    replay(include_str!("../cases/minisgl.json"), 49);
}

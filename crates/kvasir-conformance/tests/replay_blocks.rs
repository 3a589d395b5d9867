//! Replays recorded block manager, page allocator and radix tree operations against the block
//! caches.

use kvasir_conformance::{Outcome, Suite, run};

/// Case kinds covered by the block caches.
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

/// Sequence fields that block operations do not depend on, which the recorded block cases rarely
/// read.
#[test]
#[allow(clippy::unwrap_used)]
fn a_sequence_of_blocks_has_every_field() {
    let text = r#"{"format": "kvasir-conformance/1", "suite": "fields",
        "meta": {"defaults": {"block_size": 4, "num_blocks": 10, "prefix_caching": true, "sampling": {"max_tokens": 9}}},
        "cases": [{"id": "fields", "kind": "atom.block_manager",
          "given": {"config": {}, "seqs": {"A": {"prompt": [1, 2, 3, 4, 5], "temperature": 0.5}}, "ops": [
            {"op": "allocate", "seq": "A"}, {"op": "get", "seq": "A", "field": "temperature"},
            {"op": "get", "seq": "A", "field": "max_tokens"}, {"op": "set", "seq": "A", "field": "max_tokens", "value": 3},
            {"op": "get", "seq": "A", "field": "max_tokens"}, {"op": "append", "seq": "A", "tokens": [6, 7]},
            {"op": "get", "seq": "A", "field": "completion_token_ids"}, {"op": "get", "seq": "A", "field": "last_block_num_tokens"},
            {"op": "get", "seq": "A", "field": "num_blocks"}, {"op": "get", "seq": "A", "field": "is_finished"}]},
          "expected": [{}, {"returns": 0.5}, {"returns": 9}, {"returns": null}, {"returns": 3}, {}, {"returns": [6, 7]},
            {"returns": 3}, {"returns": 2}, {"returns": false}]}]}"#;
    let reports = run(&Suite::parse(text).unwrap(), None).unwrap();
    assert_eq!(reports[0].outcome, Outcome::Passed, "{reports:#?}");
}

//! Replays recorded schedules, toy workloads, routing and tables against the engine core.
#![allow(clippy::unwrap_used)]

use kvasir_conformance::{Outcome, Suite, run};

/// Case kinds covered by the engine core and its router.
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

/// State slots (for recurrent layers) are a second resource beside blocks; no recorded case covers
/// them.
#[test]
fn sequences_with_state_take_a_place_each() {
    let seqs =
        r#"{"A": {"prompt": [1, 2, 3, 4], "stateful": true}, "B": {"prompt": [5, 6, 7], "stateful": true}}"#;
    let text = format!(
        r#"{{"format": "kvasir-conformance/1", "suite": "state", "meta": {{"defaults": {{"block_size": 4, "num_blocks": 10, "prefix_caching": false}}}},
        "cases": [
          {{"id": "manager", "kind": "atom.block_manager", "given": {{"config": {{"state_slots": 1}}, "seqs": {seqs}, "ops": [
              {{"op": "can_allocate", "seq": "B"}}, {{"op": "allocate", "seq": "A"}}, {{"op": "can_allocate", "seq": "B"}},
              {{"op": "allocate", "seq": "B"}}, {{"op": "deallocate", "seq": "A"}}, {{"op": "allocate", "seq": "B"}}]}},
            "expected": [{{"returns": {{"ok": true}}}}, {{"state": {{"free_blocks": 9}}}}, {{"returns": {{"ok": false}}}},
              {{"raises": "no slot"}}, {{"state": {{"free_blocks": 10}}}}, {{"state": {{"free_blocks": 9}}}}]}},
          {{"id": "scheduler", "kind": "atom.scheduler", "given": {{"config": {{"state_slots": 1}}, "seqs": {seqs}, "ops": [
              {{"op": "add", "seq": ["A", "B"]}}, {{"op": "schedule"}}, {{"op": "preempt", "seq": "A"}}, {{"op": "counts"}}]}},
            "expected": [{{}}, {{"returns": {{"seqs": ["A"]}}, "state": {{"waiting": ["B"], "running": ["A"]}}}},
              {{"state": {{"waiting": ["A", "B"]}}}}, {{"returns": {{"running": 0, "waiting": 2}}}}]}}]}}"#
    );
    let reports = run(&Suite::parse(&text).unwrap(), None).unwrap();
    let wrong: Vec<_> = reports.iter().filter(|report| report.outcome != Outcome::Passed).collect();
    assert!(wrong.is_empty() && reports.len() == 2, "{wrong:#?}");
}

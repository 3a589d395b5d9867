//! Replays our own cases: format features that no recorded case uses.
#![allow(clippy::unwrap_used)]

use kvasir_conformance::{Outcome, Suite, run};

#[test]
fn all_hold() {
    let suite = Suite::parse(include_str!("../cases/own.json")).unwrap();
    let reports = run(&suite, None).unwrap();
    let wrong: Vec<_> = reports.iter().filter(|report| report.outcome != Outcome::Passed).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Deferred output with drafts: scheduling before the token is known is outside our design, and is
/// skipped as such.
#[test]
fn intended_differences_are_skipped() {
    let case = |id: &str, seqs: &str| {
        format!(
            r#"{{"id": "{id}", "kind": "atom.scheduler", "given": {{"config": {{"mtp_k": 1}}, "seqs": {{"A": {{"prompt": [5, 6]}}}}, "ops": [
              {{"op": "add", "seq": "A"}}, {{"op": "schedule"}}, {{"op": "postprocess", "outputs": {{}}, "deferred": true}}, {{"op": "schedule"}}]}},
              "expected": [{{}}, {{"returns": {{"seqs": ["{seqs}"]}}}}, {{}}, {{"returns": {{"seqs": ["A"]}}}}]}}"#
        )
    };
    let text = format!(
        r#"{{"format": "kvasir-conformance/1", "meta": {{"defaults": {{}}}}, "cases": [{}, {}]}}"#,
        case("late", "A"),
        case("wrong before that", "B")
    );
    let reports = run(&Suite::parse(&text).unwrap(), None).unwrap();
    assert!(
        matches!(&reports[0].outcome, Outcome::Skipped { reason } if reason.contains("0010")),
        "{reports:#?}"
    );
    assert!(matches!(reports[1].outcome, Outcome::Failed(_)), "{reports:#?}");
}

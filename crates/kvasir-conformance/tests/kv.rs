//! Replays the recorded cases of the contiguous, cells and tree caches, shared prefixes and KV
//! geometry.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_conformance::{Outcome, Suite, run};
use serde_json::{Value, json};

fn suite() -> Suite {
    Suite::parse(include_str!("../cases/kv.json")).unwrap()
}

#[test]
fn every_recorded_case_holds() {
    let reports = run(&suite(), None).unwrap();
    assert_eq!(reports.len(), 158);
    for report in reports {
        assert_eq!(report.outcome, Outcome::Passed, "{}", report.id);
    }
}

/// Mutation test: changing any expected number or flag (of every fourth operation) must make the
/// case fail.
#[test]
fn no_expectation_is_overlooked() {
    let suite = suite();
    let mut changed = 0;
    for case in suite.cases.iter().filter(|case| case.body["expected"].is_array()) {
        let rows = case.body["expected"].as_array().unwrap();
        for at in (0..rows.len()).step_by(4) {
            let wrong_rows = corruptions(&rows[at]);
            let step = wrong_rows.len() / 8 + 1;
            for wrong_row in wrong_rows.into_iter().step_by(step) {
                let mut wrong = case.clone();
                wrong.body["expected"][at] = wrong_row;
                let suite = Suite { name: suite.name.clone(), cases: vec![wrong.clone()] };
                let report = &run(&suite, None).unwrap()[0];
                assert!(
                    matches!(report.outcome, Outcome::Failed(_)),
                    "{} {}",
                    report.id,
                    wrong.body["expected"][at]
                );
                changed += 1;
            }
        }
    }
    assert!(changed > 1000, "{changed}");
}

/// Variants of a row with one value changed.
fn corruptions(row: &Value) -> Vec<Value> {
    let mut rows = Vec::new();
    for (key, value) in row.as_object().unwrap() {
        let wrong = match value {
            Value::Number(number) => json!(number.as_i64().unwrap() + 1),
            Value::Bool(truth) => json!(!truth),
            Value::String(_) => json!("something else"),
            Value::Array(list) => json!([list.as_slice(), &[json!(0)]].concat()),
            Value::Object(_) => {
                for inner in corruptions(value) {
                    let mut row = row.clone();
                    row[key] = inner;
                    rows.push(row);
                }
                continue;
            }
            Value::Null => continue,
        };
        let mut row = row.clone();
        row[key] = wrong;
        rows.push(row);
    }
    // An entry that does not exist.
    if let Some(forks) = row.get("forks") {
        let mut forks = forks.clone();
        forks["nobody"] = json!(1);
        let mut row = row.clone();
        row["forks"] = forks;
        rows.push(row);
    }
    rows
}

//! Replays the recorded cases of the rectangular (Spyre) scheduler, and mutation-tests them.

use kvasir_conformance::{Outcome, Suite, run};

#[test]
fn every_recorded_case_holds() {
    let suite = Suite::parse(include_str!("../cases/spyre.json")).unwrap();
    let reports = run(&suite, None).unwrap();
    assert_eq!(reports.len(), 39);
    for report in reports {
        assert_eq!(report.outcome, Outcome::Passed, "{}", report.id);
    }
}

const COUNTED: [&str; 6] =
    ["tkv", "n_used_blocks", "n_reserved_blocks", "n_cached_blocks", "n_free_blocks", "n_sampled"];

/// Mutation test: incrementing any asserted counter (of every third row) must make the case fail.
#[test]
fn no_asserted_field_is_overlooked() {
    let suite = Suite::parse(include_str!("../cases/spyre.json")).unwrap();
    let mut changed = 0;
    for case in suite.cases.iter().filter(|case| case.body.contains_key("steps")) {
        let rows = case.body["steps"].as_array().unwrap();
        for (at, row) in rows.iter().enumerate().skip(1).step_by(3) {
            let asserted =
                |key: &str| match row.get("not_asserted_by_source").and_then(|keys| keys.as_array()) {
                    Some(keys) => keys.iter().all(|name| name != key),
                    None => true,
                };
            for key in COUNTED.into_iter().filter(|key| asserted(key)) {
                let Some(value) = row.get(key).and_then(|value| value.as_u64()) else { continue };
                let mut wrong = case.clone();
                wrong.body["steps"][at][key] = (value + 1).into();
                let suite = Suite { name: suite.name.clone(), cases: vec![wrong] };
                let report = &run(&suite, None).unwrap()[0];
                assert!(matches!(report.outcome, Outcome::Failed(_)), "{} row {at} {key}", report.id);
                changed += 1;
            }
        }
    }
    assert!(changed > 200, "{changed}");
}

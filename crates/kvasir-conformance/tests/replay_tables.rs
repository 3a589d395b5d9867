//! Every replay table that is skipped in favor of a unit test names a test that exists.
#![allow(clippy::unwrap_used)]

use kvasir_conformance::{Outcome, Suite, run};
use std::path::Path;

/// Appends the text of all Rust files below `folder`.
fn sources(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn skipped_tables_name_a_unit_test_or_a_reason() {
    let mut code = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut code);
    let suites = [include_str!("../cases/atom.json"), include_str!("../cases/minisgl.json")];
    let mut tables = 0;
    for suite in suites {
        let mut suite = Suite::parse(suite).unwrap();
        let is_table = |kind: &str| {
            kind.ends_with("_params")
                || ["atom.f", "atom.request", "minisgl."].iter().any(|a| kind.starts_with(a))
        };
        suite.cases.retain(|case| is_table(&case.kind));
        for report in run(&suite, None).unwrap() {
            let Outcome::Skipped { reason } = report.outcome else { continue };
            tables += 1;
            if reason.starts_with("outside the design") {
                continue;
            }
            let (_, named) = reason.split_once("; test").unwrap_or_else(|| panic!("{}: {reason}", report.id));
            for name in named.trim_start_matches('s').split(" and ") {
                let name = name.trim().rsplit("::").find(|part| *part != "tests").unwrap();
                assert!(
                    code.contains(&format!("fn {name}(")) || code.contains(&format!("mod {name}")),
                    "{name}"
                );
            }
        }
    }
    assert!(tables > 10, "only {tables} tables were skipped");
}

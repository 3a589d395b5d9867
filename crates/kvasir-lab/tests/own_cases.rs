//! Cases of our own: what the formats define and no recorded case uses.
#![allow(clippy::unwrap_used)]

use kvasir_lab::replay::{Outcome, Suite, run};

#[test]
fn all_hold() {
    let suite = Suite::parse(include_str!("../cases/own.json")).unwrap();
    let reports = run(&suite, None).unwrap();
    let wrong: Vec<_> = reports.iter().filter(|report| report.outcome != Outcome::Passed).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

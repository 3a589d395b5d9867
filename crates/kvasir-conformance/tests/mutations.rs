//! Mutation test of the replay runners: a case with a changed expectation must fail.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_conformance::{Outcome, Suite, run};
use serde_json::{Value, json};

/// Collects the paths of all numbers, booleans and strings.
fn leaves(value: &Value, at: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                at.push(key.clone());
                leaves(value, at, out);
                at.pop();
            }
        }
        Value::Array(items) => {
            for (i, value) in items.iter().enumerate() {
                at.push(i.to_string());
                leaves(value, at, out);
                at.pop();
            }
        }
        Value::Null => {}
        _ => out.push(at.clone()),
    }
}

fn find<'a>(value: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(value, |value, key| match value {
        Value::Array(items) => &mut items[key.parse::<usize>().unwrap()],
        other => &mut other[key.as_str()],
    })
}

fn other(value: &Value) -> Value {
    match value {
        Value::Bool(truth) => json!(!truth),
        Value::Number(n) => n.as_u64().map_or(json!(-7), |n| json!(n + 1)),
        _ => json!("something else"),
    }
}

/// Mutates every `every`-th leaf of the expectations, one at a time.
///
/// Only paths listed in `free` (case kind and keys) may change unnoticed.
fn check(text: &str, every: usize, free: &[&str]) {
    let suite = Suite::parse(text).unwrap();
    let (mut changed, mut n) = (0, 0);
    for case in &suite.cases {
        let outcome = |case| {
            let alone = Suite { name: suite.name.clone(), cases: vec![case] };
            run(&alone, None).map(|mut reports| reports.remove(0).outcome)
        };
        let Some(expected) = case.body.get("expected") else { continue };
        let mut paths = Vec::new();
        leaves(expected, &mut Vec::new(), &mut paths);
        let name = |path: &[String]| {
            let keys = path.iter().filter(|key| key.parse::<u32>().is_err()).map(String::as_str);
            keys.collect::<Vec<_>>().join(".")
        };
        let asserted = |path: &Vec<String>| {
            let name = format!("{} {}", case.kind, name(path));
            !free.iter().any(|free| name.starts_with(free))
        };
        for path in paths.into_iter().filter(asserted) {
            n += 1;
            if n % every != 0 {
                continue;
            }
            let mut wrong = case.clone();
            let leaf = find(&mut wrong.body["expected"], &path);
            *leaf = other(leaf);
            let is_skipped = matches!(outcome(case.clone()), Ok(Outcome::Skipped { .. }));
            let unnoticed = outcome(wrong) == Ok(Outcome::Passed);
            assert!(is_skipped || !unnoticed, "{} {}", case.id, path.join("."));
            changed += u32::from(!is_skipped);
        }
    }
    assert!(changed > 100, "{changed}");
}

#[test]
fn atom() {
    // Ids of fresh blocks are free, and fields with placeholder tokens are not compared.
    let free = [
        "atom.scheduler returns.block_tables",
        "atom.scheduler returns.context_lens",
        "atom.scheduler returns.last_block_tokens",
        "atom.scheduler returns.num_scheduled",
        "atom.scheduler returns.tokens",
        "atom.scheduler returns.total_tokens",
        "atom.scheduler returns",
        "atom.scheduler state",
        "atom.block_manager state",
        "atom.block_manager raises",
        "atom.scheduler raises",
        "atom.sequence raises",
    ];
    check(include_str!("../cases/atom.json"), 3, &free);
}

#[test]
fn atom_scheduler() {
    let mut suite: Value = serde_json::from_str(include_str!("../cases/atom.json")).unwrap();
    // Without drafts and deferred output everything except block ids is compared.
    let is_plain = |case: &Value| {
        let text = case.to_string();
        case["kind"] == "atom.scheduler" && !text.contains("mtp_k") && !text.contains("deferred")
    };
    suite["cases"].as_array_mut().unwrap().retain(is_plain);
    let free = ["atom.scheduler returns.block_tables"].into_iter().map(String::from);
    let tables = ["A", "B", "C", "D"].map(|seq| format!("atom.scheduler state.seq:{seq}.block_table"));
    let free: Vec<String> = free.chain(tables).collect();
    let free: Vec<&str> = free.iter().map(String::as_str).collect();
    check(&suite.to_string(), 3, &free);
}

#[test]
fn minisgl() {
    // Page table rows are compared up to their allocated part, LRU times by order, overlapped loops
    // by final results.
    let free = [
        "minisgl.cache_manager after_each_op.row",
        "minisgl.cache_manager after_each_op.stale",
        "minisgl.page_allocator always",
        "minisgl.radix final_tree",
        "minisgl.scheduler after_each_step",
        "minisgl.scheduler correct_final_state.finished_replies_per_uid",
        "minisgl.scheduler correct_final_state.stale_kv_reads",
        "minisgl.scheduler recorded_defects",
        "nano.scheduler after_each_step.batch.block_table",
        "nano.scheduler after_each_step.free_blocks",
    ];
    check(include_str!("../cases/minisgl.json"), 41, &free);
}

#[test]
fn kv() {
    check(include_str!("../cases/kv.json"), 97, &[]);
}

//! Mutation fuzzing of case inputs: a changed case runs or is refused with a message; it never
//! panics or hangs.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_conformance::{Outcome, Suite, run};
use kvasir_testkit::Random;
use serde_json::{Value, json};

/// Collects the paths of all nested values.
fn places(value: &Value, at: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    let keys: Vec<String> = match value {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(items) => (0..items.len()).map(|i| i.to_string()).collect(),
        _ => Vec::new(),
    };
    out.push(at.clone());
    for key in keys {
        let below = match value {
            Value::Array(items) => &items[key.parse::<usize>().unwrap()],
            other => &other[key.as_str()],
        };
        at.push(key);
        places(below, at, out);
        at.pop();
    }
}

fn find<'a>(value: &'a mut Value, path: &[String]) -> &'a mut Value {
    path.iter().fold(value, |value, key| match value {
        Value::Array(items) => &mut items[key.parse::<usize>().unwrap()],
        other => &mut other[key.as_str()],
    })
}

/// Alternative values: near the original, far from it, and of other types.
fn others(value: &Value) -> Vec<Value> {
    let far = || {
        [
            json!(null),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(u32::MAX),
            json!(u64::MAX),
            json!("something else"),
            json!([[]]),
        ]
    };
    match value {
        Value::Bool(truth) => vec![json!(!truth), json!(7)],
        Value::Number(n) => {
            let near = n.as_i64().map_or(Vec::new(), |n| {
                vec![json!(n.wrapping_add(1)), json!(n.wrapping_sub(1)), json!(n / 2), json!(70_000)]
            });
            near.into_iter().chain(far()).collect()
        }
        Value::Array(items) => {
            let mut twice = items.clone();
            twice.extend(items.iter().take(8).cloned());
            let mut reversed = items.clone();
            reversed.reverse();
            vec![json!([]), json!(twice), json!(reversed), json!(items.get(1..)), json!({}), json!(3)]
        }
        Value::Object(map) => {
            let mut without = Vec::from([json!({}), json!([]), json!(3)]);
            for key in map.keys() {
                let mut map = map.clone();
                map.remove(key);
                without.push(Value::Object(map));
            }
            without
        }
        _ => far().to_vec(),
    }
}

fn check(text: &str, seed: u64, every: u64) {
    let suite = Suite::parse(text).unwrap();
    let mut random = Random::new(seed);
    let (mut ran, mut refused) = (0u32, 0u32);
    for case in &suite.cases {
        let mut paths = Vec::new();
        for root in ["given", "config", "requests", "steps", "workload", "expected"] {
            if let Some(given) = case.body.get(root) {
                places(given, &mut vec![root.to_owned()], &mut paths);
            }
        }
        for path in paths {
            if !random.one_in(every) {
                continue;
            }
            let mut other = case.clone();
            let place = find(&mut other.body[&path[0]], &path[1..]);
            let mut choices = others(place);
            *place = choices.swap_remove(random.below(choices.len() as u64) as usize);
            let reports = run(&Suite { name: suite.name.clone(), cases: vec![other] }, None).unwrap();
            match &reports[0].outcome {
                Outcome::Invalid { why } => {
                    refused += 1;
                    assert!(!why.is_empty() && !why.contains('\n'), "{}: {why}", case.id);
                }
                _ => ran += 1,
            }
        }
    }
    assert!(ran > 50 && refused > 10, "{ran} {refused}");
}

#[test]
fn kv() {
    check(include_str!("../cases/kv.json"), 1, 131);
}

#[test]
fn atom() {
    check(include_str!("../cases/atom.json"), 2, 7);
}

#[test]
fn minisgl() {
    check(include_str!("../cases/minisgl.json"), 3, 97);
}

#[test]
fn spyre() {
    // The volume workloads take seconds each.
    let mut suite: Value = serde_json::from_str(include_str!("../cases/spyre.json")).unwrap();
    suite["cases"].as_array_mut().unwrap().retain(|case| case["kind"] != "spyre.volume_invariant");
    check(&suite.to_string(), 4, 11);
}

fn outcomes(cases: Value) -> Vec<Outcome> {
    let file = json!({
        "format": "kvasir-conformance/1",
        "meta": { "defaults": { "block_size": 4, "num_blocks": 10, "prefix_caching": true } },
        "cases": cases,
    });
    let reports = run(&Suite::parse(&file.to_string()).unwrap(), None).unwrap();
    reports.into_iter().map(|report| report.outcome).collect()
}

#[test]
fn invalid_cases_do_not_stop_the_others() {
    let case = |op: &str| {
        json!({
            "id": op, "kind": "kv.contiguous", "given": { "config": { "capacity": 4 }, "ops": [{ "op": op }] },
            "expected": [{ "not_compared": true }],
        })
    };
    let outcomes = outcomes(json!([case("fly"), case("clear")]));
    assert!(matches!(&outcomes[0], Outcome::Invalid { why } if why.contains("fly")), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Passed);
}

#[test]
fn a_pool_that_no_machine_holds_is_refused() {
    let seqs = json!({ "A": { "prompt": [1] } });
    let case = |kind: &str, field: &str| {
        let config = json!({ field: u32::MAX });
        json!({ "id": field, "kind": kind, "given": { "config": config, "seqs": seqs, "ops": [] }, "expected": [] })
    };
    let cases = [
        case("atom.block_manager", "num_blocks"),
        case("atom.scheduler", "num_blocks"),
        case("atom.scheduler", "max_num_seqs"),
    ];
    for outcome in outcomes(json!(cases)) {
        assert!(matches!(&outcome, Outcome::Invalid { why } if why.contains("1048576")), "{outcome:?}");
    }
    let config = |rows: u32, blocks: Value| {
        let config = json!({ "max_num_seqs": rows, "max_model_len": 512, "chunk_size": 128, "block_size": 64, "num_blocks_override": blocks });
        json!({ "id": "rows", "kind": "spyre.prefix_caching_runner", "config": config, "steps": [] })
    };
    let none =
        outcomes(json!([config(2, json!(0)), config(1 << 31, json!(null)), config(1 << 20, json!(null))]));
    assert!(none.iter().all(|outcome| matches!(outcome, Outcome::Invalid { .. })), "{none:?}");
}

/// A small case file must not request unbounded memory or time.
#[test]
fn cases_beyond_size_limits_are_refused() {
    let parse = |cases: Value| {
        Suite::parse(&json!({ "format": "kvasir-conformance/1", "cases": cases }).to_string())
            .map_err(|error| error.to_string())
    };
    let ranges = |ranges: Value| parse(json!([{ "id": "r", "kind": "kv.tree", "x": ranges }])).unwrap_err();
    let range = json!({ "range": [0, 1 << 24] });
    assert!(ranges(json!([range, range])).contains("case 0: a range of 16777216 numbers is more"));
    assert!(ranges(json!({ "range": [5, 2] })).contains("from 5 to 2"));
    assert!(ranges(json!({ "range": [1, 2, 3] })).contains("two numbers"));
    let lines = parse(json!([{ "id": "a\nb", "kind": "kv.tree" }])).unwrap_err();
    assert_eq!(lines, "case 0: field `id` must be a line of text");

    let wide = json!({
        "id": "wide", "kind": "kv.contiguous",
        "given": { "config": { "capacity": 1 << 20 }, "ops": [{ "op": "step", "start": 0, "n": 1 << 20 }] },
        "expected": [{ "visible": [] }],
    });
    let workload = |field: &str| {
        let mut workload = json!({ "prompt_lengths": [u32::MAX] });
        workload[field] = json!(u32::MAX);
        let config = json!({ "max_num_seqs": 2, "max_model_len": 512, "chunk_size": 128, "block_size": 64 });
        json!({ "id": field, "kind": "spyre.volume_invariant", "config": config, "workload": workload, "invariant": "" })
    };
    let outcomes = outcomes(json!([wide, workload("max_tokens"), workload("target_generated_tokens")]));
    assert!(
        matches!(&outcomes[0], Outcome::Failed(mismatch) if mismatch.got.to_string().contains("pairs")),
        "{:?}",
        outcomes[0]
    );
    assert!(outcomes[1..].iter().all(|outcome| matches!(outcome, Outcome::Invalid { .. })), "{outcomes:?}");
}

#[test]
fn sampling_fields_and_computed_tokens_can_be_set() {
    let set = |field: &str, value: Value| json!({ "op": "set", "seq": "A", "field": field, "value": value });
    let get = |field: &str| json!({ "op": "get", "seq": "A", "field": field });
    let seqs = json!({ "A": { "prompt": { "range": [0, 9] }, "max_tokens": 3 } });
    let fields = [
        ("max_tokens", json!(7)),
        ("temperature", json!(0.5)),
        ("ignore_eos", json!(true)),
        ("stop_token_ids", json!([4])),
        ("stop_token_sequences", json!([[1, 2]])),
    ];
    let ops: Vec<Value> =
        fields.iter().flat_map(|(name, value)| [set(name, value.clone()), get(name)]).collect();
    let expected: Vec<Value> =
        fields.iter().flat_map(|(_, value)| [json!({}), json!({ "returns": value })]).collect();
    let sequence = json!({
        "id": "fields", "kind": "atom.sequence", "given": { "config": {}, "seqs": seqs, "ops": ops }, "expected": expected,
    });
    // Chunked prefill: what is published depends on how many tokens are computed.
    let ops = json!([
        { "op": "allocate", "seq": "A" },
        { "op": "publish", "seq": "A", "n": 4 },
        { "op": "index_size" },
        set("num_cached_tokens", json!(4)),
        { "op": "publish", "seq": "A", "n": 4 },
        { "op": "index_size" },
        get("num_cached_tokens"),
    ]);
    let expected = json!([{}, {}, { "returns": 1 }, {}, {}, { "returns": 2 }, { "returns": 4 }]);
    let blocks = json!({
        "id": "chunks", "kind": "atom.block_manager", "given": { "config": {}, "seqs": seqs, "ops": ops }, "expected": expected,
    });
    assert_eq!(outcomes(json!([sequence, blocks])), [Outcome::Passed, Outcome::Passed]);
}

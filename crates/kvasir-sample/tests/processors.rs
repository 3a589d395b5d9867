//! Logits processors against chains recorded from Transformers: same surviving ids, logits and
//! probabilities.

#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_sample::processors;
use serde_json::Value as Json;

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

#[test]
fn every_recorded_chain_is_reproduced() {
    let suite: Json = serde_json::from_str(include_str!("data/processors.json")).unwrap();
    let history: Vec<u32> = numbers(&suite["history"]).iter().map(|id| *id as u32).collect();
    let cases = suite["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 34);
    for case in cases {
        let mut logits = numbers(&suite["vectors"][case["vector"].as_str().unwrap()]);
        for step in case["chain"].as_array().unwrap() {
            let value = step[1].as_f64().unwrap() as f32;
            match step[0].as_str().unwrap() {
                "repetition_penalty" => {
                    processors::repetition_penalty(&mut logits, history.iter().copied(), value);
                }
                "temperature" => processors::temperature(&mut logits, value),
                "top_k" => processors::top_k(&mut logits, value as usize),
                "top_p" => processors::top_p(&mut logits, value, 1),
                "min_p" => processors::min_p(&mut logits, value, 1),
                other => panic!("{other}"),
            }
        }
        let ids: Vec<usize> = (0..logits.len()).filter(|id| logits[*id] > f32::NEG_INFINITY).collect();
        let expected = match &case["ids"] {
            Json::String(_) => (0..logits.len()).collect(),
            ids => numbers(ids).iter().map(|id| *id as usize).collect::<Vec<_>>(),
        };
        assert_eq!(ids, expected, "{}", case["chain"]);
        let kept: Vec<f32> = ids.iter().map(|id| logits[*id]).collect();
        assert_eq!(kept, numbers(&case["logits"]), "{}", case["chain"]);
        let all = processors::probabilities(&logits);
        for (id, p) in ids.iter().zip(numbers(&case["probs"])) {
            assert!((all[*id] - p).abs() <= 1e-6 * p.max(1e-3), "{} {id}: {} {p}", case["chain"], all[*id]);
        }
    }
}

//! Models with recurrent layers as input of `generate`, `inspect`, `doctor` and `sim`: recorded
//! tokens, the division of memory, and refused options.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod command;

use command::{json, model, recorded, run};
use serde_json::{Value as Json, json};

#[test]
fn inspect_shows_the_states_of_recurrent_layers() {
    let path = model("qwen3_5_mtp");
    let inspection = json(&["inspect", &path, "--json"]);
    // Per layer a convolution of 128 channels and 4 heads of 16 x 16.
    let states = inspection["kv"]["states"].as_array().unwrap();
    let sizes: Vec<u64> = states.iter().map(|state| state["elements"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [3 * 128, 4 * 16 * 16].repeat(3));
    let text = String::from_utf8(run(&["inspect", &path]).stdout).unwrap();
    assert!(text.contains("recurrent states") && text.contains("gated_delta"), "{text}");
}

#[test]
fn draft_models_with_recurrent_layers_are_refused() {
    let draft = format!("draft:{}", model("lfm2"));
    let speculation =
        ["generate", &model("qwen3"), "--prompt-ids", "5,6", "--backend", "plain", "--spec", &draft];
    let output = run(&speculation);
    let error = String::from_utf8(output.stderr).unwrap();
    let reason = "has recurrent layers, which a draft model cannot have";
    assert!(!output.status.success() && error.contains(reason), "{error}");
}

#[test]
fn recurrent_models_give_the_recorded_tokens() {
    for case in ["qwen3_5_mtp", "lfm2_moe", "granitemoehybrid"] {
        let (ids, tokens) = recorded(case, "p64");
        let path = model(case);
        let args = ["generate", &path, "--prompt-ids", &ids, "--max-tokens", "32", "--json"];
        let mut option_sets: Vec<&[&str]> = vec![
            &["--max-num-batched-tokens", "48"],
            &["--cache", "contiguous", "--spec", "ngram"],
            &[
                "--policy",
                "rectangular",
                "--chunk-size",
                "64",
                "--batch-sizes",
                "3",
                "--max-model-len",
                "512",
            ],
        ];
        if case == "qwen3_5_mtp" {
            option_sets.push(&["--spec", "mtp"]);
        }
        for options in option_sets {
            for backend in [&["--backend", "plain"][..], &["--precision", "exact"]] {
                if backend[1] != "plain" && options.contains(&"--batch-sizes") {
                    continue;
                }
                let answer = json(&[&args[..], backend, options].concat());
                assert_eq!(answer["token_ids"], tokens, "{case} {backend:?} {options:?}");
            }
        }
    }
}

#[test]
fn inspect_and_doctor_print_the_division_of_memory() {
    let path = model("qwen3_5");
    let division = &json(&["inspect", &path, "--json"])["memory"]["division"];
    assert_eq!((&division["slots"], &division["is_capped"]), (&json!(32768), &json!(true)));
    let states = &division["states"];
    assert_eq!((&states["config"]["checkpoints"], &states["config"]["live"]), (&json!(128), &json!(512)));
    let text = String::from_utf8(run(&["inspect", &path]).stdout).unwrap();
    assert!(text.contains("  by default on this machine: 32768 slots of K/V in "), "{text}");
    assert!(text.contains("; 512 live states in ") && text.contains(", 128 checkpoints in "), "{text}");

    let output = run(&["doctor", &path, "--quick", "--port", "0", "--json"]);
    let report: Json = serde_json::from_slice(&output.stdout).unwrap();
    let check = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "context").unwrap();
    let found = check["found"].as_str().unwrap();
    assert!(found.contains(" live states in ") && found.contains(" checkpoints in "), "{found}");
    let values = &check["values"];
    assert!(values["checkpoints"].as_u64() > Some(128) && values["live_states"] == 512, "{values}");
    assert_eq!(values["state_bytes"], states["state_bytes"]);
}

#[test]
fn state_memory_accepts_sizes_with_units() {
    let sim = ["sim", "--workload", "chat", "--requests", "1", "--state-memory"];
    let error = |size| String::from_utf8(run(&[&sim[..], &[size]].concat()).stderr).unwrap();
    assert!(error("1.5GiB").contains("--state-memory 1610612736 needs a model with recurrent layers"));
    assert!(error("2XB").contains("`2XB` is not a size like 1000000, 512MB or 2GiB"), "{}", error("2XB"));
}

//! Runs `kvasir` as a command, and reads the recorded prompts of the models in `testdata`.

use serde_json::Value as Json;
use std::process::{Command, Output};

pub(crate) fn model(case: &str) -> String {
    format!("{}/../../testdata/models/{case}", env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvasir")).args(args).output().unwrap()
}

pub(crate) fn json(args: &[&str]) -> Json {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Recorded prompt and greedy continuation.
pub(crate) fn recorded(case: &str, prompt: &str) -> (String, Json) {
    let text = std::fs::read_to_string(format!("{}/expected.json", model(case))).unwrap();
    let expected: Json = serde_json::from_str(&text).unwrap();
    let ids: Vec<String> =
        expected["prompts"][prompt].as_array().unwrap().iter().map(Json::to_string).collect();
    (ids.join(","), expected["greedy"][prompt]["tokens"].clone())
}

//! Slots saved by one server process and restored by another, on the CPU backend.

use crate::server::{Server, model};
use kvasir_testkit::paths::scratch;
use serde_json::{Value, json};
use std::{fs, process::Command};

fn completion(server: &Server, prompt: &str) -> Value {
    let body = json!({
        "prompt": prompt, "n_predict": 12, "temperature": 0, "ignore_eos": true, "n_probs": 5,
        "return_tokens": true, "id_slot": 0,
    });
    let (status, answer) = server.post("/completion", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn run_action(server: &Server, action: &str) -> (u16, Value) {
    server.post(&format!("/slots/0?action={action}"), &json!({"filename": "story.kv"}))
}

#[test]
fn restored_kv_equals_recomputed_kv_bit_for_bit() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "slots-bits");
    let folder = folder.to_str().unwrap();
    let text = "Once upon a time there was a cat. It sat on a mat and looked at the moon. ".repeat(3);
    for kv in ["f32", "q8_0"] {
        let options = ["--slot-save-path", folder, "--kv-dtype", kv];
        let first = Server::start("slots-first", &options);
        let begun = completion(&first, &text);
        let (status, saved) = run_action(&first, "save");
        assert_eq!(status, 200, "{saved}");
        let rows = saved["n_saved"].as_u64().unwrap();
        assert!(rows > 32, "{saved}");
        drop(first);
        let next = text.clone() + begun["content"].as_str().unwrap() + " And then";
        let second = Server::start("slots-second", &options);
        let (status, restored) = run_action(&second, "restore");
        assert_eq!((status, &restored["n_restored"]), (200, &saved["n_saved"]), "{restored}");
        let restored = completion(&second, &next);
        // The text may be tokenized differently where the continuation begins.
        assert!(restored["tokens_cached"].as_u64().unwrap() >= rows - 16, "{restored}");
        let recomputed = completion(&Server::start("slots-third", &options), &next);
        assert_eq!(recomputed["tokens_cached"], 0);
        for field in ["tokens", "completion_probabilities"] {
            assert_eq!(restored[field], recomputed[field], "{kv}");
        }
    }
}

#[test]
fn files_of_other_models_and_types_are_refused() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "slots-others");
    let folder = folder.to_str().unwrap();
    let options = ["--slot-save-path", folder, "--kv-dtype", "f32"];
    let first = Server::start("slots-own", &options);
    completion(&first, &"a cat and a mat ".repeat(8));
    assert_eq!(run_action(&first, "save").0, 200);
    drop(first);
    let refused = |server: &Server, why: &str| {
        let (status, answer) = run_action(server, "restore");
        let message = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("filename")), "{answer}");
        assert!(message.contains(why), "{message}");
    };
    let bf16 = Server::start("slots-bf16", &["--slot-save-path", folder, "--kv-dtype", "bf16"]);
    refused(&bf16, "its K and V are stored as");
    drop(bf16);
    // A model of the same shapes with one other weight.
    let other = model("slots-other");
    let weights = other.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[8 + header + 1] ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused(&Server::of_model(other, &options, &[]), "of another model");
    // `--precision auto` multiplies the weights of the built-in model with another arithmetic.
    let (auto, _log) = Server::built_in(&options);
    completion(&auto, &"a cat and a mat ".repeat(8));
    assert_eq!(run_action(&auto, "save").0, 200);
    drop(auto);
    let (exact, _log) = Server::built_in(&[&options[..], &["--precision", "exact"]].concat());
    refused(&exact, "of another arithmetic");
}

#[test]
fn options_incompatible_with_saved_slots_are_named() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "slots-options");
    let folder = folder.to_str().unwrap();
    for (options, why) in [
        (&["--slot-save-path", "none"][..], "there is no such directory"),
        (&["--slot-save-path", folder, "--dp", "2"], "--dp"),
        (&["--slot-save-path", folder, "--cache", "cells"], "--slot-save-path"),
        (&["--slot-save-path", folder, "--backend", "sim"], "--slot-save-path"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(["serve", "kvasir-mini", "--port", "0"])
            .args(options)
            .output()
            .unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(why), "{options:?}: {error}");
    }
}

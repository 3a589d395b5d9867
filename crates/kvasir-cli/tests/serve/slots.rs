//! Slots that are saved by one server process and restored by another, on the CPU backend.

use crate::server::{Server, model};
use serde_json::{Value, json};
use std::{fs, path::PathBuf, process::Command};

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kvasir-slot-files-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn completion(server: &Server, prompt: &str) -> Value {
    let body = json!({
        "prompt": prompt, "n_predict": 12, "temperature": 0, "ignore_eos": true, "n_probs": 5,
        "return_tokens": true, "id_slot": 0,
    });
    let (status, answer) = server.post("/completion", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn act(server: &Server, action: &str) -> (u16, Value) {
    server.post(&format!("/slots/0?action={action}"), &json!({"filename": "story.kv"}))
}

#[test]
fn restored_rows_equal_recomputed_ones_bit_for_bit() {
    let folder = Folder::new("bits");
    let text = "Once upon a time there was a cat. It sat on a mat and looked at the moon. ".repeat(3);
    for kv in ["f32", "q8_0"] {
        let options = ["--slot-save-path", folder.path(), "--kv-dtype", kv];
        let first = Server::start("slots-first", &options);
        let begun = completion(&first, &text);
        let (status, saved) = act(&first, "save");
        assert_eq!(status, 200, "{saved}");
        let rows = saved["n_saved"].as_u64().unwrap();
        assert!(rows > 32, "{saved}");
        drop(first);
        let next = text.clone() + begun["content"].as_str().unwrap() + " And then";
        let second = Server::start("slots-second", &options);
        let (status, restored) = act(&second, "restore");
        assert_eq!((status, &restored["n_restored"]), (200, &saved["n_saved"]), "{restored}");
        let restored = completion(&second, &next);
        // Its text may be tokenized in another way where it continues.
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
    let folder = Folder::new("others");
    let options = ["--slot-save-path", folder.path(), "--kv-dtype", "f32"];
    let first = Server::start("slots-own", &options);
    completion(&first, &"a cat and a mat ".repeat(8));
    assert_eq!(act(&first, "save").0, 200);
    drop(first);
    let refused = |server: &Server, why: &str| {
        let (status, answer) = act(server, "restore");
        let message = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("filename")), "{answer}");
        assert!(message.contains(why), "{message}");
    };
    let bf16 = Server::start("slots-bf16", &["--slot-save-path", folder.path(), "--kv-dtype", "bf16"]);
    refused(&bf16, "its K and V are stored as");
    drop(bf16);
    // The same shapes, with another weight.
    let other = model("slots-other");
    let weights = other.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[8 + header + 1] ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused(&Server::of_model(other, &options, &[]), "of another model");
    // The weights of the built-in model are multiplied in another way with `auto`.
    let (auto, _log) = Server::built_in(&options);
    completion(&auto, &"a cat and a mat ".repeat(8));
    assert_eq!(act(&auto, "save").0, 200);
    drop(auto);
    let (exact, _log) = Server::built_in(&[&options[..], &["--precision", "exact"]].concat());
    refused(&exact, "of another arithmetic");
}

#[test]
fn options_that_keep_slots_from_being_saved_are_named() {
    let folder = Folder::new("options");
    for (options, why) in [
        (&["--slot-save-path", "none"][..], "there is no such directory"),
        (&["--slot-save-path", folder.path(), "--dp", "2"], "--dp"),
        (&["--slot-save-path", folder.path(), "--cache", "cells"], "--slot-save-path"),
        (&["--slot-save-path", folder.path(), "--backend", "sim"], "--slot-save-path"),
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

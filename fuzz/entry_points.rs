//! Fuzz entry points: each accepts arbitrary bytes and must neither panic nor run long.
//!
//! The fuzz targets call these; `crates/kvasir-formats/tests/corpus.rs` runs the saved corpus
//! through them as ordinary tests.
#![allow(dead_code, clippy::unwrap_used)] // each target uses one entry point; I/O errors abort the run

use kvasir_formats::{Checkpoint, TextStream, Tokenizer, gguf::Gguf};
use kvasir_template::{ChatTemplate, Limits};
use std::path::PathBuf;

/// A temporary path of this process.
fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvasir-fuzz-{}-{name}", std::process::id()))
}

/// A GGUF file: open it, tokenize with it, and check its tensor ranges.
pub(crate) fn gguf(bytes: &[u8]) {
    let path = scratch("t.gguf");
    std::fs::write(&path, bytes).unwrap();
    let opened = Gguf::open(&path);
    let _ = std::fs::remove_file(&path);
    let Ok(gguf) = opened else { return };
    for t in gguf.tensors() {
        assert_eq!(gguf.bytes(t).len(), t.dtype.tensor_bytes(&t.shape).unwrap());
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(&gguf) {
        let ids = tokenizer.encode("Hello wörld 123\n", true).unwrap_or_default();
        let _ = tokenizer.decode(&ids, false);
    }
    let _ = Checkpoint::of_gguf(gguf.into());
}

/// A safetensors file with an empty config.
pub(crate) fn safetensors(bytes: &[u8]) {
    let dir = scratch("model");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("config.json"), "{}").unwrap();
    std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    let opened = Checkpoint::open(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    let Ok(model) = opened else { return };
    for t in model.tensors() {
        assert_eq!(t.bytes.len(), t.dtype.tensor_bytes(t.shape).unwrap());
        let _ = model.dense(t.name);
    }
}

/// A `tokenizer.json`: load, encode, decode and stream.
pub(crate) fn tokenizer(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(bytes) else { return };
    let ids = tokenizer.encode("Hello wörld 123\n <s>", true).unwrap_or_default();
    let _ = tokenizer.decode(&ids, false);
    let mut stream = TextStream::new(true);
    ids.iter().for_each(|&id| drop(stream.push(&tokenizer, id)));
    stream.finish();
}

/// A chat template, rendered within small limits.
pub(crate) fn template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let limits = Limits {
        fuel: 50_000,
        fuel_per_value: 8,
        max_fuel: 500_000,
        value_bytes: 1 << 18,
        total_bytes: 4 << 20,
        depth: 200,
    };
    let variables = serde_json::json!({
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": []}],
        "tools": null, "add_generation_prompt": true, "bos_token": "<s>",
    });
    if let (Ok(template), Some(variables)) = (ChatTemplate::new(source), variables.as_object()) {
        let _ = template.with_limits(limits).render(variables, 0);
    }
}

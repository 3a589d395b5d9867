//! Runs the saved fuzz corpus through the fuzz entry points, as regression tests.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

#[path = "../../../fuzz/entry_points.rs"]
mod entry_points;

use kvasir_testkit::paths;

fn corpus(name: &str, least: usize, run: fn(&[u8])) {
    for file in paths::fuzz_corpus(name, least) {
        println!("{}", file.display());
        run(&std::fs::read(file).unwrap());
    }
}

#[test]
fn gguf_files() {
    corpus("gguf", 1, entry_points::gguf);
}

#[test]
fn safetensors_files() {
    corpus("safetensors", 1, entry_points::safetensors);
}

#[test]
fn tokenizers() {
    corpus("tokenizer", 1, entry_points::tokenizer);
}

#[test]
fn templates() {
    corpus("template", 16, entry_points::template);
}

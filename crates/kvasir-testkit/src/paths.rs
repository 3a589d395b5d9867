//! Paths of the repository, and scratch folders of tests.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A recorded test checkpoint of `testdata/models`.
pub fn model(case: &str) -> PathBuf {
    repository().join("testdata/models").join(case)
}

/// The recorded checkpoints of `testdata/models`, or those in the folder `KVASIR_MODELS`, in order.
pub fn models() -> Vec<PathBuf> {
    let folder = std::env::var_os("KVASIR_MODELS").map_or_else(|| model(""), PathBuf::from);
    let mut models: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    models.retain(|path| path.join("config.json").exists());
    models.sort();
    models
}

/// The recorded encoders of `testdata/encoders`, in order. `embed_qwen3` is left out: it is a
/// decoder.
pub fn encoders() -> Vec<PathBuf> {
    let folder = repository().join("testdata/encoders");
    let mut cases: Vec<_> = fs::read_dir(folder).unwrap().map(|case| case.unwrap().path()).collect();
    cases.retain(|case| !case.ends_with("embed_qwen3"));
    cases.sort();
    assert_eq!(cases.len(), 5);
    cases
}

/// A test vocabulary: `qwen`, `sp`, ….
pub fn tokenizer(name: &str) -> PathBuf {
    repository().join("crates/kvasir-formats/tests/data/tokenizers").join(name)
}

/// The test certificate and its key, for TLS on loopback.
pub fn certificate() -> (PathBuf, PathBuf) {
    let folder = repository().join("crates/kvasir-serve/tests/data");
    (folder.join("test-cert.pem"), folder.join("test-key.pem"))
}

/// The saved inputs of a fuzz target, at least `least` of them, in order.
pub fn fuzz_corpus(name: &str, least: usize) -> Vec<PathBuf> {
    let folder = repository().join("fuzz/corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= least, "{name}: only {} files", files.len());
    files
}

/// The built-in model's file.
pub fn built_in_model() -> PathBuf {
    repository().join("crates/kvasir/kvasir-mini.gguf")
}

/// Creates an empty folder of this name under `parent`, a test's `CARGO_TARGET_TMPDIR`.
pub fn scratch(parent: &str, name: &str) -> PathBuf {
    let folder = Path::new(parent).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

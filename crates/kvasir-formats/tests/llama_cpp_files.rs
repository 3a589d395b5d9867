//! Converted GGUF files have the tensor names, metadata keys and types that llama.cpp requires. Other
//! tests do not cover these cases, because this crate also reads files that llama.cpp refuses.
#![allow(clippy::unwrap_used)]

use kvasir_formats::{
    Rules, convert,
    gguf::{Gguf, Kind, Value},
};
use kvasir_testkit::paths::scratch;
use std::path::{Path, PathBuf};

/// Converts a checkpoint of `testdata` to GGUF in `folder`.
fn converted(folder: &Path, checkpoint: &str) -> Gguf {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(checkpoint);
    let to = folder.join("model.gguf");
    convert(&from, &to, &Rules::parse("f32", &[]).unwrap()).unwrap();
    Gguf::open(&to).unwrap()
}

#[test]
fn encoders_have_the_token_type_count() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "token-types");
    for (checkpoint, types) in [("encoders/embed_bert", 2), ("encoders/embed_xlmr", 1)] {
        let file = converted(&folder, checkpoint);
        let table = file.tensors().iter().find(|tensor| tensor.name == "token_types.weight").unwrap();
        assert_eq!(table.shape.first(), Some(&types), "{checkpoint}");
        let count = file.get("tokenizer.ggml.token_type_count");
        assert!(
            matches!(count, Some(Value::U32(count)) if *count == types as u32),
            "{checkpoint}: {count:?}"
        );
    }
}

#[test]
fn falcon_h1_ffn_norm_has_no_weight_suffix() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "norm-without-suffix");
    let file = converted(&folder, "models/falcon_h1");
    let has = |name: &str| file.tensors().iter().any(|tensor| tensor.name == name);
    assert!(has("blk.0.ffn_norm") && !has("blk.0.ffn_norm.weight"));
}

#[test]
fn layer_lists_have_32_bit_elements() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "lists-of-layers");
    let file = converted(&folder, "models/qwen4_exp");
    let layers = file.get("qwen4exp.ple.layers");
    assert!(matches!(layers, Some(Value::Array(list)) if list.kind() == Kind::U32), "{layers:?}");
}

//! Configs derived from GGUF metadata of other converters, in Hugging Face spelling.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_formats::{
    Checkpoint, DType,
    gguf::{Array, Value, Writer},
};
use serde_json::{Value as Json, json};

/// The config of a six-layer file of this architecture, with extra keys.
fn config(name: &str, architecture: &str, keys: &[(&str, Value)]) -> Json {
    let to = std::env::temp_dir().join(format!("kvasir-config-{name}-{}.gguf", std::process::id()));
    let mut writer = Writer::new();
    writer.set("general.architecture", Value::Str(architecture.into()));
    for (key, n) in
        [("block_count", 6), ("embedding_length", 64), ("attention.head_count", 4), ("context_length", 256)]
    {
        writer.set(format!("{architecture}.{key}"), Value::U32(n));
    }
    writer.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6));
    for (key, value) in keys {
        writer.set(format!("{architecture}.{key}"), value.clone());
    }
    writer.describe("token_embd.weight", DType::F32, &[8, 64]).unwrap();
    let zeros = |_: &str, out: &mut Vec<u8>| {
        out.resize(8 * 64 * 4, 0);
        Ok(())
    };
    writer.write(std::fs::File::create(&to).unwrap(), zeros).unwrap();
    let config = Checkpoint::open(&to).unwrap().config().clone();
    std::fs::remove_file(&to).unwrap();
    config
}

/// Keys without which no file has experts.
const EXPERTS: [(&str, Value); 2] = [("expert_count", Value::U32(4)), ("expert_used_count", Value::U32(2))];

fn kinds(config: &Json) -> String {
    let kinds = config["layer_types"].as_array().unwrap().iter();
    kinds.map(|kind| if kind == "full_attention" { 'f' } else { 's' }).collect()
}

#[test]
fn sliding_window_layers_come_from_metadata() {
    let window = ("attention.sliding_window", Value::U32(32));
    let pattern = |value: Value| ("attention.sliding_window_pattern", value);
    assert_eq!(kinds(&config("six", "gemma3", std::slice::from_ref(&window))), "sssssf");
    let [count, used] = EXPERTS;
    assert_eq!(kinds(&config("two", "gpt-oss", &[window.clone(), count, used])), "sfsfsf");
    assert_eq!(kinds(&config("three", "gemma3", &[window.clone(), pattern(Value::U32(3))])), "ssfssf");
    let flags = Array::of_bool(&[true, false, false, true, true, false]);
    assert_eq!(kinds(&config("flags", "gemma3", &[window, pattern(Value::Array(flags))])), "sffssf");
}

#[test]
fn logit_soft_capping_is_kept() {
    let capped = config("cap", "gemma3", &[("final_logit_softcapping", Value::F32(30.0))]);
    assert_eq!(capped["final_logit_softcapping"], json!(30.0));
    assert!(config("nocap", "gemma3", &[]).get("final_logit_softcapping").is_none());
}

#[test]
fn rope_scaling_without_a_type_is_linear() {
    let linear = json!({"rope_type": "linear", "type": "linear", "factor": 4.0});
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        assert_eq!(config(key, "llama", &[(key, Value::F32(4.0))])["rope_scaling"], linear, "{key}");
    }
    assert_eq!(config("none", "gpt-oss", &EXPERTS)["rope_scaling"], json!({"rope_type": "default"}));
    assert!(
        config("one", "llama", &[("rope.scaling.factor", Value::F32(1.0))]).get("rope_scaling").is_none()
    );
}

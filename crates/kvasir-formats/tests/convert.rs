//! Conversions there and back: what is written reads the same, and rules hold.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_formats::{
    Checkpoint, DType, Rules, TextFiles, check_kv_facts, convert,
    gguf::{Gguf, Writer},
};
use kvasir_program::Model;
use std::path::{Path, PathBuf};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("kvasir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A Qwen3 of two layers with numbers that are all different, and the tokenizer of its family.
fn tiny(dir: &Path, poisoned: bool) {
    let (hidden, inner, vocab, heads, kv, head) = (64usize, 96usize, 512usize, 4usize, 2usize, 32usize);
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![vocab, hidden]),
        ("model.norm.weight".into(), vec![hidden]),
    ];
    for l in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![heads * head, hidden]),
            ("self_attn.k_proj", vec![kv * head, hidden]),
            ("self_attn.v_proj", vec![kv * head, hidden]),
            ("self_attn.o_proj", vec![hidden, heads * head]),
            ("self_attn.q_norm", vec![head]),
            ("self_attn.k_norm", vec![head]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ] {
            tensors.push((format!("model.layers.{l}.{name}.weight"), shape));
        }
    }
    let mut seed = 1u64;
    let mut bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            (0..shape.iter().product())
                .flat_map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (((seed >> 40) as f32 / (1u64 << 24) as f32) - 0.5).to_le_bytes()
                })
                .collect()
        })
        .collect();
    if poisoned {
        bytes[0][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let views: Vec<_> = tensors
        .iter()
        .zip(&bytes)
        .map(|((name, shape), bytes)| {
            let view =
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap();
            (name.clone(), view)
        })
        .collect();
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head,
        "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "vocab_size": vocab, "attention_bias": false,
        "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers/qwen");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(tokenizer.join(name), dir.join(name)).unwrap();
    }
}

#[test]
fn a_directory_becomes_a_file_that_reads_the_same() {
    let scratch = Scratch::new("convert");
    tiny(&scratch.0, false);
    let generation = r#"{"eos_token_id":[3,5],"temperature":0.6}"#;
    std::fs::write(scratch.0.join("generation_config.json"), generation).unwrap();
    let (first, second) = (scratch.0.join("a.gguf"), scratch.0.join("b.gguf"));
    convert(&scratch.0, &first, &Rules::parse("f32", &[]).unwrap()).unwrap();
    let (hf, gguf) = (Checkpoint::open(&scratch.0).unwrap(), Checkpoint::open(&first).unwrap());
    assert_eq!(hf.tensors().count(), gguf.tensors().count());
    for tensor in hf.tensors() {
        let other = gguf.tensor(tensor.name).unwrap();
        assert_eq!((tensor.shape, tensor.bytes), (other.shape, other.bytes), "{}", tensor.name);
    }
    // The config comes back word for word, what GGUF has no keys for included.
    assert_eq!(hf.config(), gguf.config());
    assert_eq!(gguf.config()["use_sliding_window"], true);
    assert_eq!(hf.generation_config(), gguf.generation_config());
    assert_eq!(gguf.generation_config().unwrap()["eos_token_id"][1], 5);
    let meta = gguf.gguf().unwrap();
    for (key, n) in [("schema_version", 1), ("n_layers", 2), ("n_kv_heads", 2), ("head_dim", 32)] {
        assert_eq!(meta.u64(&format!("kv_cache.{key}")), Some(n), "{key}");
    }
    let built = Model::build(&gguf.source()).unwrap();
    check_kv_facts(meta, &built.target.layers).unwrap();
    let error = check_kv_facts(meta, &built.target.layers[..1]).unwrap_err().to_string();
    assert_eq!(error, "metadata: kv_cache.n_layers is 2 in the metadata, but 1 by the model's config");
    // The text half comes along: same ids, same template.
    let (a, b) = (TextFiles::open(&scratch.0).unwrap(), TextFiles::open(&first).unwrap());
    let text = "Hello <|im_start|>world 123 日本";
    assert_eq!(
        a.tokenizer().unwrap().encode(text, false).unwrap(),
        b.tokenizer().unwrap().encode(text, false).unwrap()
    );
    assert_eq!(a.template_source(None).unwrap(), b.template_source(None).unwrap());
    assert_eq!(a.special_token("eos_token"), b.special_token("eos_token"));
    // And from one GGUF to another, by rules.
    let rules = Rules::parse("q8_0", &["blk.1.*=f16".into(), "token_embd*=q4_0".into()]).unwrap();
    convert(&first, &second, &rules).unwrap();
    let packed = Checkpoint::open(&second).unwrap();
    let dtype = |name: &str| packed.tensor(name).unwrap().dtype;
    assert_eq!(dtype("model.layers.0.mlp.up_proj.weight"), DType::Q8_0);
    assert_eq!(dtype("model.layers.1.mlp.up_proj.weight"), DType::F16);
    assert_eq!(dtype("model.embed_tokens.weight"), DType::Q4_0);
    assert_eq!(dtype("model.layers.0.self_attn.q_norm.weight"), DType::F32);
    // A second pass with the same rules changes nothing.
    convert(&second, &first, &rules).unwrap();
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
}

/// The same file without what only we read.
fn as_others_write_it(from: &Path, to: &Path) {
    let gguf = Gguf::open(from).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("kvasir.")) {
        writer.set(key.as_str(), value.clone());
    }
    let tensors = gguf.tensors();
    tensors.iter().for_each(|t| writer.describe(t.name.as_str(), t.dtype, &t.shape).unwrap());
    let bytes = |name: &str, out: &mut Vec<u8>| {
        out.extend(gguf.bytes(tensors.iter().find(|t| t.name == name).unwrap()));
        Ok(())
    };
    writer.write(std::fs::File::create(to).unwrap(), bytes).unwrap();
}

#[test]
fn metadata_alone_tells_the_same_model() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models");
    let scratch = Scratch::new("metadata");
    let (ours, theirs) = (scratch.0.join("a.gguf"), scratch.0.join("b.gguf"));
    for case in
        ["deepseek_v3", "deepseek_v32", "gpt_oss", "glm4_moe", "llama", "mixtral", "phi3", "qwen3_moe"]
    {
        convert(&models.join(case), &ours, &Rules::parse("f32", &[]).unwrap()).unwrap();
        as_others_write_it(&ours, &theirs);
        let [said, read] = [&ours, &theirs].map(|path| Checkpoint::open(path).unwrap());
        let [said, read] = [said, read].map(|model| Model::build(&model.source()).unwrap());
        assert_eq!(said.target.layers, read.target.layers, "{case}");
        assert_eq!(said.target.ops.len(), read.target.ops.len(), "{case}");
        assert_eq!(said.predictions.len(), read.predictions.len(), "{case}");
    }
}

#[test]
fn a_failure_leaves_no_file() {
    let scratch = Scratch::new("convert-fails");
    tiny(&scratch.0, true);
    let out = scratch.0.join("out.gguf");
    let error = convert(&scratch.0, &out, &Rules::parse("q8_0", &[]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("NaN"), "{error}");
    assert!(!out.exists() && !scratch.0.join("out.gguf.part").exists());
}

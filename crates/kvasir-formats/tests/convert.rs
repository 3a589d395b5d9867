//! GGUF conversion round trips: converted models read the same, and encoding rules apply.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_formats::{Checkpoint, DType, Rules, TextFiles, check_kv_facts, convert, convert_to, gguf::Gguf};
use kvasir_program::Model;
use kvasir_testkit::Random;
use serde_json::{Value as Json, json};
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

/// A two-layer Qwen3 with distinct weights and its family's tokenizer.
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
    let mut random = Random::new(1);
    let mut bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            (0..shape.iter().product()).flat_map(|_| (random.unit() / 2.0).to_le_bytes()).collect()
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
fn a_converted_directory_reads_the_same() {
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
    // The embedded config is returned verbatim, including fields that GGUF has no keys for.
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
    // The tokenizer and chat template are converted too: same ids, same template.
    let (a, b) = (TextFiles::open(&scratch.0).unwrap(), TextFiles::open(&first).unwrap());
    let text = "Hello <|im_start|>world 123 日本";
    assert_eq!(
        a.tokenizer().unwrap().encode(text, false).unwrap(),
        b.tokenizer().unwrap().encode(text, false).unwrap()
    );
    assert_eq!(a.template_source(None).unwrap(), b.template_source(None).unwrap());
    assert_eq!(a.special_token("eos_token"), b.special_token("eos_token"));
    // GGUF to GGUF, with per-tensor rules.
    let rules = Rules::parse("q8_0", &["blk.1.*=f16".into(), "token_embd*=q4_0".into()]).unwrap();
    convert(&first, &second, &rules).unwrap();
    let packed = Checkpoint::open(&second).unwrap();
    let dtype = |name: &str| packed.tensor(name).unwrap().dtype;
    assert_eq!(dtype("model.layers.0.mlp.up_proj.weight"), DType::Q8_0);
    assert_eq!(dtype("model.layers.1.mlp.up_proj.weight"), DType::F16);
    assert_eq!(dtype("model.embed_tokens.weight"), DType::Q4_0);
    assert_eq!(dtype("model.layers.0.self_attn.q_norm.weight"), DType::F32);
    // Converting again with the same rules is idempotent.
    convert(&second, &first, &rules).unwrap();
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
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

fn tokenizer_json(family: &str) -> Json {
    let file = format!("tests/data/tokenizers/{family}/tokenizer.json");
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn set(json: &mut Json, at: &str, value: Json) {
    *json.pointer_mut(at).unwrap() = value;
}

fn added(id: usize, content: &str) -> Json {
    json!({"id": id, "content": content, "special": false, "rstrip": false, "lstrip": false, "single_word": false, "normalized": false})
}

fn template(before: &[(&str, u32)], after: &[(&str, u32)]) -> Json {
    let piece = |(name, _): &(&str, u32)| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let mut single: Vec<Json> = before.iter().map(piece).collect();
    single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    single.extend(after.iter().map(piece));
    let tokens: serde_json::Map<String, Json> = before
        .iter()
        .chain(after)
        .map(|(name, id)| ((*name).to_owned(), json!({"id": name, "ids": [id], "tokens": [name]})))
        .collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": tokens})
}

/// Tokenizers that differ from published ones only in their vocabularies.
fn crafted() -> Vec<(String, Json)> {
    let mut all: Vec<(String, Json)> = ["deepseek", "glm", "llama3", "o200k", "qwen", "sp"]
        .map(|family| (family.to_owned(), tokenizer_json(family)))
        .to_vec();
    let mut craft = |name: &str, family: &str, change: &dyn Fn(&mut Json)| {
        let mut json = tokenizer_json(family);
        change(&mut json);
        all.push((name.to_owned(), json));
    };
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let tekken = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    craft("tekken", "llama3", &|json| {
        set(json, "/pre_tokenizer/pretokenizers/0/pattern/Regex", tekken.into())
    });
    craft("starcoder", "qwen", &|json| {
        let digits = json!({"type": "Digits", "individual_digits": true});
        set(json, "/pre_tokenizer/pretokenizers", json!([digits, bytes(true)]));
    });
    // A token that no merge produces, with and without `ignore_merges`.
    for whole in [true, false] {
        for family in ["llama3", "qwen"] {
            craft(&format!("whole {whole} {family}"), family, &|json| {
                let last = json["model"]["merges"].as_array_mut().unwrap().pop().unwrap();
                let vocab = json["model"]["vocab"].as_object_mut().unwrap();
                let id = vocab.remove(&spelled(&last)).unwrap();
                vocab.insert("Zyx".into(), id);
                set(json, "/model/ignore_merges", whole.into());
            });
        }
    }
    craft("two before", "glm", &|json| {
        json["post_processor"] = template(&[("[gMASK]", 503), ("<sop>", 504)], &[]);
    });
    craft("one after", "qwen", &|json| json["post_processor"] = template(&[], &[("<|endoftext|>", 503)]));
    craft("both", "sp", &|json| json["post_processor"] = template(&[("<s>", 1)], &[("</s>", 2)]));
    craft("numbered on", "glm", &|json| {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        tokens
            .iter_mut()
            .skip(3)
            .for_each(|token| token["id"] = (token["id"].as_u64().unwrap() + 100).into());
    });
    craft("takes spaces", "qwen", &|json| {
        json["added_tokens"][1]["lstrip"] = true.into();
        json["added_tokens"][2]["rstrip"] = true.into();
    });
    craft("lines of spaces", "sp", &|json| {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        let rare: Vec<String> =
            vocab.iter().filter(|(_, id)| id.as_u64() >= Some(509)).map(|(t, _)| t.clone()).collect();
        for (n, rare) in rare.iter().enumerate() {
            let id = vocab.remove(rare).unwrap();
            vocab.insert("\u{2581}".repeat(n + 2), id);
        }
        let merges = json["model"]["merges"].as_array_mut().unwrap();
        merges.retain(|merge| !rare.contains(&spelled(merge)));
        for (at, pair) in [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1)].into_iter().enumerate() {
            merges.insert(at, format!("{} {}", "\u{2581}".repeat(pair.0), "\u{2581}".repeat(pair.1)).into());
        }
        let tokens: Vec<Json> = (0..rare.len()).map(|n| added(509 + n, &"\u{2581}".repeat(n + 2))).collect();
        json["added_tokens"].as_array_mut().unwrap().extend(tokens);
        json["normalizer"] = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        json["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false});
        json["decoder"]["decoders"].as_array_mut().unwrap().pop();
    });
    for scheme in ["always", "first", "never"] {
        for split in [true, false] {
            craft(&format!("metaspace {scheme} {split}"), "sp", &|json| {
                json["normalizer"] = Json::Null;
                json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": scheme, "split": split});
                if scheme == "never" {
                    json["decoder"]["decoders"].as_array_mut().unwrap().pop();
                }
            });
        }
    }
    craft("metaspace of old", "sp", &|json| {
        json["normalizer"] = Json::Null;
        json["pre_tokenizer"] =
            json!({"type": "Metaspace", "replacement": "\u{2581}", "add_prefix_space": true});
    });
    all
}

/// The result of a merge.
fn spelled(merge: &Json) -> String {
    match merge {
        Json::String(pair) => pair.replacen(' ', "", 1),
        pair => pair.as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect(),
    }
}

#[test]
fn tokenization_survives_conversion() {
    let scratch = Scratch::new("convert-texts");
    tiny(&scratch.0, false);
    std::fs::remove_file(scratch.0.join("tokenizer_config.json")).unwrap();
    let mut texts: Vec<String> = [
        "\n",
        " ",
        "  ",
        " a",
        "a  b   c    d     e",
        "\n\n x\n \n",
        "A'se I'LL don't",
        "Zyx Zyx",
        "caf\u{e9} cafe\u{301} \u{212b}",
        "12345 a1234b",
        "\u{4e2d}\u{6587}A\u{65e5}b",
        "\u{2581}\u{2581}  x\u{2581}\u{2581}\u{2581}y",
        "<s> a</s>b <s>",
        "<s>a",
        "x <|im_end|> \n\ty<|im_end|>  z",
        " <|im_start|> a\u{a0} \n<|im_start|><|im_end|> <|im_start|>",
        "a<think> b</think>\n[gMASK]<sop>",
    ]
    .map(str::to_owned)
    .to_vec();
    for family in ["qwen", "sp", "deepseek"] {
        let file = format!("tests/data/tokenizers/{family}/tokenizer_expected.json");
        let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let expected: Json = serde_json::from_slice(&text).unwrap();
        let cases = expected["encode"].as_array().unwrap();
        texts.extend(cases.iter().map(|case| case["text"].as_str().unwrap().to_owned()));
    }
    let to = scratch.0.join("a.gguf");
    for (name, json) in crafted() {
        std::fs::write(scratch.0.join("tokenizer.json"), json.to_string()).unwrap();
        convert(&scratch.0, &to, &Rules::parse("f32", &[]).unwrap()).unwrap();
        let [before, after] =
            [&scratch.0, &to].map(|path| TextFiles::open(path).unwrap().tokenizer().unwrap());
        for text in &texts {
            for special in [false, true] {
                let ids = before.encode(text, special).unwrap();
                assert_eq!(after.encode(text, special).unwrap(), ids, "{name}: {text:?}");
                assert_eq!(
                    after.decode(&ids, false).unwrap(),
                    before.decode(&ids, false).unwrap(),
                    "{name}: {text:?}"
                );
            }
        }
        let gguf = Gguf::open(&to).unwrap();
        for key in ["bos", "eos"] {
            let adds = gguf.get(&format!("tokenizer.ggml.add_{key}_token")).unwrap().as_bool().unwrap();
            assert!(!adds || gguf.u64(&format!("tokenizer.ggml.{key}_token_id")).is_some(), "{name}: {key}");
        }
    }
}

#[test]
fn unsupported_tokenizers_are_refused_by_name() {
    let scratch = Scratch::new("convert-refuses");
    tiny(&scratch.0, false);
    let one = |kind: &str| json!({"type": kind});
    let table = [
        ("qwen", "/normalizer", one("Lowercase"), "normalizer: `Lowercase` cannot be represented in GGUF"),
        (
            "qwen",
            "/normalizer",
            json!({"type": "Sequence", "normalizers": [one("NFC"), one("NFKD")]}),
            "normalizer: `NFKD`",
        ),
        (
            "qwen",
            "/normalizer",
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            "normalizer: `Strip`",
        ),
        ("qwen", "/normalizer", json!({"type": "Prepend", "prepend": "\u{2581}"}), "without byte_fallback"),
        (
            "qwen",
            "/pre_tokenizer",
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
            "add_prefix_space",
        ),
        (
            "qwen",
            "/model/end_of_word_suffix",
            "</w>".into(),
            "model.end_of_word_suffix: cannot be represented",
        ),
        ("sp", "/normalizer", Json::Null, "a normalizer that keeps spaces"),
        ("sp", "/pre_tokenizer", one("Whitespace"), "pre_tokenizer: `Whitespace` cannot be represented"),
        ("sp", "/post_processor/special_tokens/<s>/ids/0", 512.into(), "post_processor: id 512 is beyond"),
    ];
    for (family, at, value, why) in table {
        let mut json = tokenizer_json(family);
        set(&mut json, at, value);
        std::fs::write(scratch.0.join("tokenizer.json"), json.to_string()).unwrap();
        let error =
            convert(&scratch.0, &scratch.0.join("a.gguf"), &Rules::parse("f32", &[]).unwrap()).unwrap_err();
        assert!(error.to_string().contains(why), "{at}: {error}");
    }
    let mut json = tokenizer_json("sp");
    json["model"]["vocab"].as_object_mut().unwrap().remove("<0xE6>").unwrap();
    std::fs::write(scratch.0.join("tokenizer.json"), json.to_string()).unwrap();
    let error =
        convert(&scratch.0, &scratch.0.join("a.gguf"), &Rules::parse("f32", &[]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("byte_fallback without <0xE6>"), "{error}");
}

#[test]
fn a_conversion_reports_its_progress_and_can_be_stopped() {
    let scratch = Scratch::new("progress");
    tiny(&scratch.0, false);
    let rules = Rules::parse("q8_0", &[]).unwrap();
    let seen = std::sync::Mutex::new(Vec::new());
    let report = |done, total| {
        seen.lock().unwrap().push((done, total));
        true
    };
    convert_to(&Checkpoint::open(&scratch.0).unwrap(), std::io::sink(), &rules, &report).unwrap();
    let seen = seen.into_inner().unwrap();
    let (last, total) = *seen.last().unwrap();
    assert!(seen.len() > 10 && last == total && total > 512 * 64, "{seen:?}");
    assert!(seen.iter().all(|(done, all)| done <= all && *all == total), "{seen:?}");
    let stopped =
        convert_to(&Checkpoint::open(&scratch.0).unwrap(), std::io::sink(), &rules, &|done, _| done == 0);
    assert!(stopped.unwrap_err().to_string().contains("stopped"));
}

//! Hostile input: malformed files yield errors that name the place, allocate little memory, and
//! never panic.
//!
//! Truncations, mutations and lying headers of GGUF, safetensors and tokenizer files. The fuzz
//! targets (`fuzz/`) cover the same entry points.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_formats::{
    Checkpoint, DType, TextFiles, Tokenizer,
    gguf::{Array, Gguf, Value, Writer},
};
use kvasir_testkit::Random;
use std::path::{Path, PathBuf};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("kvasir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn gguf(&self, bytes: &[u8]) -> kvasir_formats::Result<Gguf> {
        let path = self.0.join("t.gguf");
        std::fs::write(&path, bytes).unwrap();
        let gguf = Gguf::open(&path)?;
        // A file that opens must be usable: every range within the file, every string within its
        // array.
        for t in gguf.tensors() {
            assert_eq!(gguf.bytes(t).len(), t.dtype.tensor_bytes(&t.shape).unwrap());
        }
        for value in gguf.metadata().values() {
            if let Some(array) = value.as_array() {
                assert_eq!(array.string_bytes().count() + array.scalars().count(), array.len());
            }
        }
        let _ = Tokenizer::from_gguf(&gguf);
        let _ = Checkpoint::of_gguf(gguf.clone().into());
        Ok(gguf)
    }

    fn safetensors(&self, bytes: &[u8]) -> kvasir_formats::Result<Checkpoint> {
        std::fs::write(self.0.join("config.json"), "{}").unwrap();
        std::fs::write(self.0.join("model.safetensors"), bytes).unwrap();
        let model = Checkpoint::open(&self.0)?;
        for t in model.tensors() {
            assert_eq!(t.bytes.len(), t.dtype.tensor_bytes(t.shape).unwrap());
            let _ = model.dense(t.name);
        }
        Ok(model)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file with every metadata type and several encodings.
fn sample() -> Vec<u8> {
    let mut w = Writer::new();
    w.set("general.architecture", Value::Str("llama".into()));
    w.set("llama.block_count", Value::U32(1));
    w.set("flag", Value::Bool(true));
    w.set("tokenizer.ggml.model", Value::Str("gpt2".into()));
    w.set("tokenizer.ggml.pre", Value::Str("gpt-2".into()));
    w.set("tokenizer.ggml.tokens", Value::Array(Array::of_strings(["a", "b", "ab", "<s>"])));
    w.set("tokenizer.ggml.merges", Value::Array(Array::of_strings(["a b"])));
    w.set("tokenizer.ggml.token_type", Value::Array(Array::of_i32(&[1, 1, 1, 3])));
    w.describe("token_embd.weight", DType::F32, &[4, 32]).unwrap();
    w.describe("blk.0.attn_q.weight", DType::Q4_0, &[2, 32]).unwrap();
    w.describe("output_norm.weight", DType::F32, &[3]).unwrap();
    let mut out = Vec::new();
    let sizes = [("token_embd.weight", 512), ("blk.0.attn_q.weight", 36), ("output_norm.weight", 12)];
    w.write(&mut out, |name, bytes| {
        bytes.resize(sizes.iter().find(|s| s.0 == name).unwrap().1, 7);
        Ok(())
    })
    .unwrap();
    out
}

/// A header written field by field, so that each field can be falsified.
#[derive(Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(version: u32, tensors: u64, pairs: u64) -> Self {
        let mut raw = Self(b"GGUF".to_vec());
        raw.0.extend(version.to_le_bytes());
        raw.u64(tensors).u64(pairs);
        raw
    }

    fn u32(&mut self, n: u32) -> &mut Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn u64(&mut self, n: u64) -> &mut Self {
        self.0.extend(n.to_le_bytes());
        self
    }

    fn str(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64).0.extend(text.as_bytes());
        self
    }

    fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.str(name).u32(dims.len() as u32);
        for &d in dims {
            self.u64(d);
        }
        self.u32(kind).u64(offset)
    }

    fn padded(&self, data: usize) -> Vec<u8> {
        let mut out = self.0.clone();
        out.resize(out.len().next_multiple_of(32) + data, 0);
        out
    }
}

#[test]
fn gguf_truncated_at_every_byte() {
    let (scratch, whole) = (Scratch::new("cut"), sample());
    assert!(scratch.gguf(&whole).is_ok());
    let data_end = whole.len() - 20; // padding of the last tensor is optional
    for end in 0..data_end {
        let error = scratch.gguf(&whole[..end]).expect_err(&format!("{end} bytes"));
        assert!(error.place().contains("t.gguf") && error.to_string().contains("offset"), "{end}: {error}");
    }
}

#[test]
fn gguf_with_any_byte_changed() {
    let (scratch, whole) = (Scratch::new("flip"), sample());
    let mut random = Random::new(9);
    for at in 0..whole.len() - 560 {
        for with in [0x00, 0x01, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = with;
            let _ = scratch.gguf(&bytes);
        }
        // Also four bytes at once, anywhere in the header.
        let mut bytes = whole.clone();
        for _ in 0..4 {
            let i = random.below(whole.len() as u64 - 560) as usize;
            bytes[i] = random.bits() as u8;
        }
        let _ = scratch.gguf(&bytes);
    }
}

#[test]
fn gguf_headers_with_wrong_sizes_are_refused() {
    let scratch = Scratch::new("lies");
    let mut cases: Vec<(&str, Vec<u8>)> = Vec::new();
    for (what, version, tensors, pairs) in [
        ("version 0", 0, 0, 0),
        ("version 1", 1, 0, 0),
        ("version 4", 4, 0, 0),
        ("big-endian", 3 << 24, 0, 0),
        ("2^63 tensors", 3, 1 << 63, 0),
        ("2^64 - 1 keys", 3, 0, u64::MAX),
        ("a billion tensors", 3, 1 << 30, 0),
    ] {
        cases.push((what, Raw::header(version, tensors, pairs).padded(64)));
    }
    let mut pair = |what, build: &dyn Fn(&mut Raw)| {
        let mut raw = Raw::header(3, 0, 1);
        build(&mut raw);
        cases.push((what, raw.padded(64)));
    };
    pair("a key longer than the file", &|r| _ = r.u64(1 << 40));
    pair("a key of 2^64 - 1", &|r| _ = r.u64(u64::MAX));
    pair("a value type 13", &|r| _ = r.str("k").u32(13));
    pair("a value type 999", &|r| _ = r.str("k").u32(999));
    pair("a string longer than the file", &|r| _ = r.str("k").u32(8).u64(1 << 50));
    pair("an array of arrays", &|r| _ = r.str("k").u32(9).u32(9).u64(1).u32(4).u64(0));
    pair("an array of 2^62 u32", &|r| _ = r.str("k").u32(9).u32(4).u64(1 << 62));
    pair("an array of 2^61 strings", &|r| _ = r.str("k").u32(9).u32(8).u64(1 << 61));
    pair("a string in an array past the end", &|r| _ = r.str("k").u32(9).u32(8).u64(1).u64(1 << 33));
    pair("a flag of 2", &|r| {
        r.str("k").u32(7).0.push(2);
    });
    pair("alignment 0", &|r| _ = r.str("general.alignment").u32(4).u32(0));
    pair("alignment 3", &|r| _ = r.str("general.alignment").u32(4).u32(3));
    pair("alignment 2^32", &|r| _ = r.str("general.alignment").u32(10).u64(1 << 32));
    pair("a key that is no UTF-8", &|r| {
        r.u64(2).0.extend([0xc3, 0x28]);
        r.u32(0).0.push(1);
    });
    let mut twice = Raw::header(3, 0, 2);
    twice.str("k").u32(4).u32(1).str("k").u32(4).u32(2);
    cases.push(("a key twice", twice.padded(64)));
    let mut tensor = |what, dims: &[u64], kind, offset| {
        let mut raw = Raw::header(3, 1, 0);
        raw.tensor("t", dims, kind, offset);
        cases.push((what, raw.padded(4096)));
    };
    tensor("no dimension", &[], 0, 0);
    tensor("five dimensions", &[1, 1, 1, 1, 1], 0, 0);
    tensor("a dimension of 0", &[4, 0], 0, 0);
    tensor("a dimension of 2^63", &[1 << 63], 0, 0);
    tensor("a product past 2^64", &[1 << 33, 1 << 33], 0, 0);
    tensor("a product that wraps to nothing", &[1 << 32, 1 << 32], 24, 0);
    tensor("bytes past 2^64", &[1 << 62, 2], 28, 0);
    tensor("a row that is not whole blocks", &[33], 2, 0);
    tensor("data past the end", &[4096], 0, 0);
    tensor("an offset past the end", &[8], 0, 1 << 40);
    tensor("an offset that wraps", &[8], 0, u64::MAX - 31);
    tensor("an offset that is not aligned", &[8], 0, 4);
    tensor("a gap before the data", &[8], 0, 32);
    for id in [4, 5, 9, 15, 16, 31, 32, 33, 34, 36, 37, 38, 40, 999, u32::MAX] {
        tensor("a type that is none", &[256], id, 0);
    }
    for (id, name) in [(16, "IQ2_XXS"), (21, "IQ3_S"), (35, "TQ2_0"), (40, "NVFP4")] {
        let mut raw = Raw::header(3, 1, 0);
        raw.tensor("t", &[256], id, 0);
        let error = scratch.gguf(&raw.padded(4096)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&format!("type {name} is not supported")), "{error}");
    }
    let mut overlap = Raw::header(3, 2, 0);
    overlap.tensor("a", &[16], 0, 0).tensor("b", &[16], 0, 32);
    cases.push(("overlapping tensors", overlap.padded(4096)));
    let mut named_twice = Raw::header(3, 2, 0);
    named_twice.tensor("a", &[8], 0, 0).tensor("a", &[8], 0, 32);
    cases.push(("a tensor twice", named_twice.padded(4096)));
    let mut long_name = Raw::header(3, 1, 0);
    long_name.tensor(&"n".repeat(300), &[8], 0, 0);
    cases.push(("a name of 300 bytes", long_name.padded(4096)));
    for (what, bytes) in cases {
        let error = scratch.gguf(&bytes).expect_err(what).to_string();
        assert!(error.contains("offset") || error.contains("alignment"), "{what}: {error}");
    }
}

#[test]
fn stacked_experts_split_evenly() {
    let scratch = Scratch::new("experts");
    let open = |dtype: DType, shape: &[usize]| {
        let mut w = Writer::new();
        w.set("general.architecture", Value::Str("qwen3moe".into()));
        for key in [
            "block_count",
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "context_length",
        ] {
            w.set(format!("qwen3moe.{key}"), Value::U32(1));
        }
        for key in [
            "attention.key_length",
            "vocab_size",
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
        ] {
            w.set(format!("qwen3moe.{key}"), Value::U32(1));
        }
        w.set("qwen3moe.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        w.describe("token_embd.weight", DType::F32, &[1, 1]).unwrap();
        w.describe("blk.0.ffn_gate_exps.weight", dtype, shape).unwrap();
        let mut out = Vec::new();
        w.write(&mut out, |name, b| {
            let experts = name.contains("exps");
            b.resize(if experts { dtype.tensor_bytes(shape).unwrap() } else { 4 }, 1);
            Ok(())
        })
        .unwrap();
        Checkpoint::of_gguf(scratch.gguf(&out).unwrap().into())
    };
    let whole = open(DType::F32, &[4, 2, 8]);
    assert!(whole.is_ok(), "{whole:?}");
    // A one-dimensional stack has no per-expert parts: blocks of 256 values would otherwise count
    // as 256 experts.
    for (dtype, shape) in [(DType::Q2K, &[4096][..]), (DType::F32, &[8]), (DType::F32, &[8192, 2])] {
        let error = open(dtype, shape).unwrap_err().to_string();
        assert!(error.contains("ffn_gate_exps") && error.contains("expert"), "{shape:?}: {error}");
    }
}

#[test]
fn shards_must_be_complete_and_consistent() {
    let scratch = Scratch::new("split");
    let part = |no: u64, of: u64, name: &str| {
        let mut w = Writer::new();
        w.set("general.architecture", Value::Str("llama".into()));
        w.set("split.no", Value::U64(no));
        w.set("split.count", Value::U64(of));
        w.describe(name, DType::F32, &[8]).unwrap();
        let mut out = Vec::new();
        w.write(&mut out, |_, b| {
            b.resize(32, 1);
            Ok(())
        })
        .unwrap();
        out
    };
    let path = |no: u64| scratch.0.join(format!("m-{no:05}-of-00002.gguf"));
    std::fs::write(path(1), part(0, 2, "a")).unwrap();
    assert!(Gguf::open(&path(1)).unwrap_err().to_string().contains("00002-of-00002"));
    std::fs::write(path(2), part(1, 2, "a")).unwrap();
    assert!(Gguf::open(&path(1)).unwrap_err().to_string().contains("two files"));
    std::fs::write(path(2), part(1, 2, "b")).unwrap();
    assert_eq!(Gguf::open(&path(1)).unwrap().tensors().len(), 2);
    assert!(Gguf::open(&path(2)).unwrap_err().to_string().contains("first file"));
    std::fs::write(path(1), part(0, u64::MAX, "a")).unwrap();
    assert!(Gguf::open(&path(1)).is_err());
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

#[test]
fn safetensors_with_wrong_headers_are_refused() {
    let scratch = Scratch::new("safe");
    let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]}}"#;
    let whole = safetensors(good, 16);
    assert_eq!(scratch.safetensors(&whole).unwrap().tensors().count(), 2);
    for end in 0..whole.len() {
        let error = scratch.safetensors(&whole[..end]).expect_err("cut");
        assert!(error.place().contains("model.safetensors"), "{error}");
        assert!(error.why().contains("truncated"), "cut at {end}: {error}");
    }
    for at in 0..8 + good.len() {
        for with in [0, 1, b'9', b'-', b'"', b'{', 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = with;
            let _ = scratch.safetensors(&bytes);
        }
    }
    let one = |body: &str, data: usize| safetensors(&format!(r#"{{"a":{{{body}}}}}"#), data);
    for (what, bytes) in [
        ("a header of 100 MB and more", (200u64 << 20).to_le_bytes().to_vec()),
        ("a header of 2^64 - 1", u64::MAX.to_le_bytes().to_vec()),
        ("an end before its start", one(r#""dtype":"F32","shape":[2],"data_offsets":[8,0]"#, 8)),
        ("negative offsets", one(r#""dtype":"F32","shape":[2],"data_offsets":[-8,0]"#, 8)),
        ("a gap", one(r#""dtype":"F32","shape":[2],"data_offsets":[4,12]"#, 12)),
        ("data past the end", one(r#""dtype":"F32","shape":[4],"data_offsets":[0,16]"#, 8)),
        ("data after the last tensor", one(r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#, 9)),
        (
            "a shape that wraps",
            one(r#""dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,0]"#, 0),
        ),
        ("a size that is not its shape's", one(r#""dtype":"F32","shape":[3],"data_offsets":[0,8]"#, 8)),
        ("a type that is none", one(r#""dtype":"Q9","shape":[8],"data_offsets":[0,8]"#, 8)),
        ("a type without use here", one(r#""dtype":"C64","shape":[1],"data_offsets":[0,8]"#, 8)),
        ("metadata that is no text", safetensors(r#"{"__metadata__":{"a":[1]}}"#, 0)),
        (
            "overlapping tensors",
            safetensors(
                r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}"#,
                12,
            ),
        ),
        ("nine dimensions", one(r#""dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]"#, 1)),
    ] {
        let error = scratch.safetensors(&bytes).expect_err(what);
        assert!(error.place().contains("model.safetensors"), "{what}: {error}");
    }
}

#[test]
fn an_index_stays_in_its_directory() {
    let scratch = Scratch::new("index");
    std::fs::write(scratch.0.join("config.json"), "{}").unwrap();
    std::fs::write(
        scratch.0.join("x.safetensors"),
        safetensors(r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1),
    )
    .unwrap();
    let open = |file: &str, tensor: &str| {
        let index = serde_json::json!({"weight_map": {tensor: file}}).to_string();
        std::fs::write(scratch.0.join("model.safetensors.index.json"), index).unwrap();
        Checkpoint::open(&scratch.0)
    };
    assert!(open("x.safetensors", "a").is_ok());
    for file in ["../x.safetensors", "/etc/passwd", "a/../x.safetensors", "./sub/x", "..", "", "."] {
        assert!(open(file, "a").unwrap_err().to_string().contains("beside the index"), "{file}");
    }
    assert!(open("missing.safetensors", "a").is_err());
    assert!(open("x.safetensors", "b").unwrap_err().to_string().contains("weight_map.b"));
    for index in ["[]", "{", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": 3}}"] {
        std::fs::write(scratch.0.join("model.safetensors.index.json"), index).unwrap();
        assert!(Checkpoint::open(&scratch.0).unwrap_err().to_string().contains("index.json"), "{index}");
    }
}

#[test]
fn scales_must_match_their_weights() {
    let scratch = Scratch::new("scales");
    let header = r#"{"w":{"dtype":"F8_E4M3","shape":[3,200],"data_offsets":[0,600]},"w_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[600,604]},"e_blocks":{"dtype":"U8","shape":[1,2,1,16],"data_offsets":[604,636]},"e_scales":{"dtype":"U8","shape":[1,3],"data_offsets":[636,639]}}"#;
    let model = scratch.safetensors(&safetensors(header, 639)).unwrap();
    assert!(model.dense("w").unwrap_err().to_string().contains("no fp8 `quantization_config`"));
    assert!(model.dense("e").unwrap_err().to_string().contains("does not match"));
    assert!(model.dense("nothing").unwrap_err().to_string().contains("missing"));
    let config = r#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}"#;
    std::fs::write(scratch.0.join("config.json"), config).unwrap();
    let model = Checkpoint::open(&scratch.0).unwrap();
    assert!(model.dense("w").unwrap_err().to_string().contains("does not match the shape of its scales,"));
}

#[test]
fn scales_may_be_stored_as_bytes_or_e8m0() {
    let scratch = Scratch::new("powers");
    let config = r#"{"quantization_config":{"quant_method":"fp8"}}"#;
    for kind in ["F8_E8M0", "U8"] {
        let header = format!(
            r#"{{"w":{{"dtype":"F8_E4M3","shape":[1,200],"data_offsets":[0,200]}},"w_scale_inv":{{"dtype":"{kind}","shape":[1,2],"data_offsets":[200,202]}}}}"#
        );
        let mut bytes = safetensors(&header, 202);
        let data = bytes.len() - 202;
        bytes[data..data + 200].fill(0x38); // 1.0
        bytes[data + 200..].copy_from_slice(&[129, 120]);
        scratch.safetensors(&bytes).unwrap();
        std::fs::write(scratch.0.join("config.json"), config).unwrap();
        // 128 × 128 blocks by default, if the config does not say.
        let (_, values) = Checkpoint::open(&scratch.0).unwrap().dense("w").unwrap();
        assert!(
            values[..128].iter().all(|v| *v == 4.0) && values[128..].iter().all(|v| *v == 1.0 / 128.0),
            "{kind}"
        );
    }
}

#[test]
fn malformed_tokenizers_are_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers/qwen/tokenizer.json");
    let text = std::fs::read_to_string(dir).unwrap();
    for json in [
        "",
        "{}",
        "[]",
        r#"{"model":{"type":"BPE","vocab":{},"merges":[]},"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}}"#,
        r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]},"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}}"#,
        r#"{"model":{"type":"BPE","vocab":{"a":0,"aa":1},"merges":["aa a","a aa"]},"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}}"#,
        r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":{"type":"CTC","pad_token":"","word_delimiter_token":"","cleanup":true}}"#,
    ] {
        let error = Tokenizer::from_json(json.as_bytes()).map(|_| ()).expect_err(json);
        assert!(error.place().starts_with("tokenizer.json"), "{json}: {error}");
    }
    // Found by fuzzing: the library panics on a decoder that is not JSON, without a useful message.
    let broken =
        r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":{"type":"ByteLevel","x":trqe}}"#;
    let error = Tokenizer::from_json(broken.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("line 1 column"), "{error}");
    let mut random = Random::new(3);
    for _ in 0..60 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..3 {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.pick(b"0123456789\",:[]{}ax");
        }
        if let Ok(t) = Tokenizer::from_json(&bytes)
            && let Ok(ids) = t.encode("Hello wörld 123\n", true)
        {
            let _ = t.decode(&ids, false);
        }
    }
    // GGUF vocabularies: lists of different lengths, malformed merges, ids out of range.
    let scratch = Scratch::new("vocab");
    let vocab = |change: &dyn Fn(&mut Writer)| {
        let mut w = Writer::new();
        w.set("tokenizer.ggml.model", Value::Str("gpt2".into()));
        w.set("tokenizer.ggml.pre", Value::Str("qwen2".into()));
        w.set("tokenizer.ggml.tokens", Value::Array(Array::of_strings(["a", "b", "ab", ""])));
        w.set("tokenizer.ggml.merges", Value::Array(Array::of_strings(["a b", "ab ab", "b q"])));
        change(&mut w);
        let path = scratch.0.join("v.gguf");
        w.write(std::fs::File::create(&path).unwrap(), |_, _| Ok(())).unwrap();
        TextFiles::open(&path).unwrap().tokenizer()
    };
    assert_eq!(vocab(&|_| {}).unwrap().encode("abab\u{0}é", false).unwrap(), [2, 2]);
    let fails: [&dyn Fn(&mut Writer); 6] = [
        &|w| w.set("tokenizer.ggml.merges", Value::Array(Array::of_strings(["ab"]))),
        &|w| w.set("tokenizer.ggml.merges", Value::U32(1)),
        &|w| w.set("tokenizer.ggml.token_type", Value::Array(Array::of_i32(&[1]))),
        &|w| w.set("tokenizer.ggml.tokens", Value::Array(Array::of_i32(&[1]))),
        &|w| w.set("tokenizer.ggml.pre", Value::Str("nobody's".into())),
        &|w| w.set("tokenizer.ggml.model", Value::Str("llama".into())),
    ];
    for (i, change) in fails.into_iter().enumerate() {
        let error = vocab(change).map(|_| ()).expect_err(&i.to_string());
        assert!(error.to_string().contains("tokenizer.ggml."), "{i}: {error}");
    }
    let ids = vocab(&|w| {
        w.set("tokenizer.ggml.bos_token_id", Value::U32(4_000_000_000));
        w.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    });
    assert_eq!(ids.unwrap().encode("a", true).unwrap(), [0]);
}

#[test]
fn tokenizers_that_expand_text_without_bound_are_refused() {
    let doubles = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#;
    let list = |step: &str, times: usize| vec![step; times].join(",");
    let json = |parts: &str| {
        format!(
            r#"{{"model":{{"type":"BPE","vocab":{{"a":0}},"merges":[]}},"added_tokens":[{{"id":1,"content":"ba","special":false,
                "single_word":false,"lstrip":false,"rstrip":false,"normalized":false}}],{parts}}}"#
        )
    };
    let decoder =
        r#""decoder":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"never","split":true}"#;
    let normalizer = |steps: &str| {
        json(&format!(r#"{decoder},"normalizer":{{"type":"Sequence","normalizers":[{steps}]}}"#))
    };
    let tokenizer = Tokenizer::from_json(normalizer(&list(doubles, 30)).as_bytes()).unwrap();
    let error = tokenizer.encode("banana", false).unwrap_err().to_string();
    assert!(error.contains("normalizer Replace: makes the text too long"), "{error}");
    assert!(tokenizer.encode("bo", false).is_ok());
    for (bad, why) in [
        (normalizer(&list(doubles, 65)), "more than 64 steps"),
        (
            normalizer(&format!(r#"{{"type":"Prepend","prepend":"{}"}}"#, "x".repeat(300))),
            "Prepend inserts 300",
        ),
        (normalizer(r#"{"type":"Precompiled","precompiled_charsmap":"AAAA"}"#), "precompiled_charsmap"),
        (normalizer(r#"{"type":"Precompiled"}"#), "precompiled_charsmap"),
        (normalizer(&list(doubles, 30)).replace(r#""normalized":false"#, r#""normalized":true"#), "too long"),
        (
            json(&format!(
                r#""decoder":{{"type":"Sequence","decoders":[{doubles},{}]}}"#,
                list(r#"{"type":"Replace","pattern":{"Regex":"a"},"content":"   "}"#, 2)
            )),
            "decoder: makes texts more than 16 times as long",
        ),
        (
            json(&format!(
                r#"{decoder},"pre_tokenizer":{{"type":"Sequence","pretokenizers":[{}]}}"#,
                list(
                    r#"{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}"#,
                    30
                )
            )),
            "pre_tokenizer: has more than four ByteLevel steps",
        ),
    ] {
        let error = Tokenizer::from_json(bad.as_bytes()).map(|_| ()).expect_err(why).to_string();
        assert!(error.starts_with("tokenizer.json") && error.contains(why), "{why}: {error}");
    }
}

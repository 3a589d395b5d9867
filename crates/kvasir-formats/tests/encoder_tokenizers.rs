//! Tokenizers of encoders, from `tokenizer.json` and from converted GGUF files: recorded ids of
//! texts and pairs, truncation of pairs, Unigram vocabularies.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_formats::{Checkpoint, Rules, TextPair, Tokenizer, convert};
use kvasir_testkit::paths::encoders as cases;
use serde_json::{Value as Json, json};
use std::path::Path;

/// The texts of the recorded pair.
const PAIR: [&str; 2] = ["what is a window", "the cache, at last"];

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn check(case: &Path, tokenizer: &Tokenizer) {
    let text = std::fs::read_to_string(case.join("tokenizer_expected.json")).unwrap();
    let expected: Json = serde_json::from_str(&text).unwrap();
    for record in expected["encode"].as_array().unwrap() {
        let text = record["text"].as_str().unwrap();
        let at = format!("{}: {text:?}", case.display());
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&record["ids"]), "{at}");
        assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&record["ids_no_special"]), "{at}");
    }
    let pair = tokenizer.encode_pair(PAIR, 512).unwrap();
    let types = ids(&expected["pair"]["type_ids"]);
    assert_eq!(pair.ids, ids(&expected["pair"]["ids"]), "{}", case.display());
    assert_eq!(pair.second_text_start as usize, types.iter().position(|kind| *kind == 1).unwrap());
    for max_tokens in 3..pair.ids.len() {
        let truncated = tokenizer.encode_pair(PAIR, max_tokens).unwrap();
        assert_eq!(truncated.ids.len(), max_tokens);
        let separators = truncated.ids.iter().filter(|id| **id == 3).count();
        assert_eq!((truncated.ids[0], separators, truncated.ids[max_tokens - 1]), (2, 2, 3), "{truncated:?}");
    }
    assert!(tokenizer.encode_pair(PAIR, 2).is_err());
}

#[test]
fn texts_and_pairs_match_the_recorded_ids_also_from_gguf() {
    let file = std::env::temp_dir().join(format!("kvasir-encoder-tokenizer-{}.gguf", std::process::id()));
    for case in cases() {
        check(&case, &Checkpoint::open(&case).unwrap().tokenizer().unwrap().unwrap());
        convert(&case, &file, &Rules::parse("f16", &[]).unwrap()).unwrap();
        check(&case, &Checkpoint::open(&file).unwrap().tokenizer().unwrap().unwrap());
    }
    std::fs::remove_file(&file).unwrap();
}

/// A `tokenizer.json` as XLM-RoBERTa has it: Unigram, two separators between the texts of a pair.
fn unigram_json() -> Json {
    let special = |id: u32, text: &str| {
        json!({"id": id, "content": text, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    };
    let vocab = json!([
        ["<s>", 0.0],
        ["<pad>", 0.0],
        ["</s>", 0.0],
        ["<unk>", 0.0],
        ["\u{2581}", -2.0],
        ["\u{2581}a", -3.0],
        ["b", -3.5],
        ["ab", -3.2],
        ["\u{2581}ab", -4.0],
        ["c", -5.0]
    ]);
    json!({
        "version": "1.0",
        "added_tokens": [special(0, "<s>"), special(1, "<pad>"), special(2, "</s>"), special(3, "<unk>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true}]},
        "post_processor": {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2],
            "add_prefix_space": false, "trim_offsets": false},
        "decoder": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": false, "vocab": vocab},
    })
}

#[test]
fn unigram_vocabularies_survive_conversion_to_gguf() {
    let folder = std::env::temp_dir().join(format!("kvasir-unigram-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let case = cases().into_iter().find(|case| case.ends_with("embed_xlmr")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(case.join(file), folder.join(file)).unwrap();
    }
    let collapses_and_splits = unigram_json();
    let mut splits = collapses_and_splits.clone();
    splits["normalizer"] = Json::Null;
    let mut keeps_spaces = splits.clone();
    keeps_spaces["pre_tokenizer"] = collapses_and_splits["pre_tokenizer"]["pretokenizers"][1].clone();
    let file = folder.join("model.gguf");
    let load = |path: &Path| Checkpoint::open(path).unwrap().tokenizer().unwrap().unwrap();
    for json in [collapses_and_splits, splits, keeps_spaces] {
        std::fs::write(folder.join("tokenizer.json"), json.to_string()).unwrap();
        convert(&folder, &file, &Rules::parse("f16", &[]).unwrap()).unwrap();
        let (from_json, from_gguf) = (load(&folder), load(&file));
        for text in ["ab  ab", "", "abc x", " a b ", "<s>ab"] {
            let (expected, found) =
                (from_json.encode(text, true).unwrap(), from_gguf.encode(text, true).unwrap());
            assert_eq!(expected, found, "{text:?} {}", json["pre_tokenizer"]);
        }
        let pair = TextPair { ids: vec![0, 8, 2, 2, 8, 2], second_text_start: 0 };
        assert_eq!(
            [&from_json, &from_gguf].map(|tokenizer| tokenizer.encode_pair(["ab", "ab"], 99).unwrap()),
            [pair.clone(), pair]
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

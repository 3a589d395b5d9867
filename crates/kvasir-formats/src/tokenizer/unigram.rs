//! Unigram vocabularies of GGUF files (XLM-RoBERTa), converted to an equivalent `tokenizer.json`.
//!
//! Text is normalized by a character map, split at white space, and each word is segmented into the
//! tokens with the largest sum of scores.

use crate::error::{Error, Result};
use crate::gguf::reader::Gguf;
use crate::gguf::value::Value;
use crate::tokenizer::hf_vocab::HfVocab;
use crate::tokenizer::token_kind::TokenKind;
use serde_json::{Value as Json, json};

/// `tokenizer.ggml.model` of Unigram vocabularies.
pub(crate) const MODEL: &str = "t5";
/// Key of the character map.
pub(crate) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
/// Whether runs of spaces are replaced by one.
pub(crate) const EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// SentencePiece's space symbol, U+2581.
const SPACE: &str = "\u{2581}";
/// The pattern of runs of spaces in published files.
const RUN: &str = " {2,}";

/// Whether a normalizer step replaces runs of spaces by one space.
pub(crate) fn is_run_of_spaces(step: &Json) -> bool {
    let text = |path: &str| step.pointer(path).and_then(Json::as_str);
    text("/pattern/Regex") == Some(RUN) && matches!(text("/content"), Some(" " | SPACE))
}

/// Loads the vocabulary; the `tokenizers` library runs it.
pub(super) fn read(gguf: &Gguf) -> Result<HfVocab> {
    let made = described(gguf).and_then(|described| {
        let json = serde_json::to_vec(&described);
        HfVocab::new(&json.map_err(|e| Error::at("tokenizer.ggml.tokens", e))?)
    });
    made.map_err(|e| e.in_file(gguf.path()))
}

fn described(gguf: &Gguf) -> Result<Json> {
    let list = gguf.array("tokenizer.ggml.tokens");
    let list = list.ok_or_else(|| Error::at("tokenizer.ggml.tokens", "is missing"))?;
    let tokens: Vec<&str> = list.strings().collect::<Result<_>>()?;
    let scores = gguf.array("tokenizer.ggml.scores").map_or_else(Vec::new, |scores| {
        scores
            .scalars()
            .map(|score| score.as_f64().filter(|score| score.is_finite()).unwrap_or(0.0))
            .collect()
    });
    if scores.len() != tokens.len() {
        let why = format!("{} scores for {} tokens", scores.len(), tokens.len());
        return Err(Error::at("tokenizer.ggml.scores", why));
    }
    let id = |key: &str, default: u64| {
        let id = gguf.u64(&format!("tokenizer.ggml.{key}_token_id")).unwrap_or(default);
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        let missing = || Error::at(format!("tokenizer.ggml.{key}_token_id"), format!("`{id}` is no token"));
        token.map(|token| ((*token).to_owned(), id)).ok_or_else(missing)
    };
    let ((cls, cls_id), (sep, sep_id), (_, unknown)) = (id("bos", 0)?, id("eos", 2)?, id("unknown", 3)?);
    let kinds = TokenKind::list(gguf).unwrap_or_default();
    let added: Vec<Json> = (0..tokens.len()).filter(|&id| kinds.get(id) == Some(&TokenKind::Control)).map(|id| {
        json!({"id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    }).collect();
    let vocab: Vec<Json> = tokens.iter().zip(&scores).map(|(token, score)| json!([token, score])).collect();
    let mut normalizers = Vec::new();
    if let Some(map) = gguf.array(CHARSMAP) {
        let bytes: Option<Vec<u8>> =
            map.scalars().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect();
        let bytes = bytes.ok_or_else(|| Error::at(CHARSMAP, "is not a list of bytes"))?;
        normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(bytes)}));
    }
    if gguf.get(EXTRA_SPACES).and_then(Value::as_bool).unwrap_or(true) {
        normalizers.push(json!({"type": "Replace", "pattern": {"Regex": RUN}, "content": " "}));
    }
    let space = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
        "post_processor": {"type": "RobertaProcessing", "cls": [cls, cls_id], "sep": [sep, sep_id],
            "add_prefix_space": false, "trim_offsets": false},
        "decoder": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": unknown, "byte_fallback": false, "vocab": vocab},
    }))
}

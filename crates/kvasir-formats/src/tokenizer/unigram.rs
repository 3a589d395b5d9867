//! Unigram vocabularies of GGUF files (XLM-RoBERTa), converted to an equivalent `tokenizer.json`.
//!
//! A character map normalizes the text. If the file's flag [`REMOVE_EXTRA_WHITESPACES`] is set, the
//! text is split at white space, which is removed; otherwise every space is kept. Each word is
//! segmented into the tokens with the highest total score (log probability).

use crate::error::{Error, Result};
use crate::gguf::reader::Gguf;
use crate::gguf::value::Value;
use crate::tokenizer::gguf_json;
use crate::tokenizer::token_kind::TokenKind;
use serde_json::{Value as Json, json};

/// `tokenizer.ggml.model` of Unigram vocabularies.
pub(crate) const MODEL: &str = "t5";
/// Metadata key of the character map of the SentencePiece normalizer.
pub(crate) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
/// Metadata key of the flag that collapses runs of spaces and trims spaces at both ends.
pub(crate) const REMOVE_EXTRA_WHITESPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// SentencePiece's space symbol, U+2581.
const SPACE: &str = "\u{2581}";
/// The regex for runs of spaces in published `tokenizer.json` files.
const SPACE_RUN: &str = " {2,}";

/// Whether a normalizer step replaces runs of spaces by one space.
pub(crate) fn collapses_spaces(step: &Json) -> bool {
    let text = |path: &str| step.pointer(path).and_then(Json::as_str);
    text("/pattern/Regex") == Some(SPACE_RUN) && matches!(text("/content"), Some(" " | SPACE))
}

/// An equivalent `tokenizer.json`.
pub(super) fn tokenizer_json(gguf: &Gguf) -> Result<Json> {
    let tokens = gguf_json::tokens(gguf)?;
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
        let missing =
            || Error::at(format!("tokenizer.ggml.{key}_token_id"), format!("`{id}` is not a token id"));
        token.map(|token| ((*token).to_owned(), id)).ok_or_else(missing)
    };
    let ((cls, cls_id), (sep, sep_id), (_, unknown)) = (id("bos", 0)?, id("eos", 2)?, id("unknown", 3)?);
    let kinds = TokenKind::list(gguf).unwrap_or_default();
    let vocab: Vec<Json> = tokens.iter().zip(&scores).map(|(token, score)| json!([token, score])).collect();
    let mut normalizers = Vec::new();
    if let Some(map) = gguf.array(CHARSMAP) {
        let bytes: Option<Vec<u8>> =
            map.scalars().map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok())).collect();
        let bytes = bytes.ok_or_else(|| Error::at(CHARSMAP, "is not a list of bytes"))?;
        normalizers.push(json!({"type": "Precompiled", "precompiled_charsmap": base64::encode(bytes)}));
    }
    let metaspace =
        json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
    let mut pre_tokenizers = vec![metaspace.clone()];
    if gguf.get(REMOVE_EXTRA_WHITESPACES).and_then(Value::as_bool).unwrap_or(true) {
        normalizers.push(json!({"type": "Replace", "pattern": {"Regex": SPACE_RUN}, "content": " "}));
        pre_tokenizers.insert(0, json!({"type": "WhitespaceSplit"}));
    }
    Ok(json!({
        "version": "1.0",
        "added_tokens": gguf_json::added_tokens(&tokens, &kinds),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": {"type": "RobertaProcessing", "cls": [cls, cls_id], "sep": [sep, sep_id],
            "add_prefix_space": false, "trim_offsets": false},
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": unknown, "byte_fallback": false, "vocab": vocab},
    }))
}

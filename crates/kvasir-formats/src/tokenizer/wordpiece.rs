//! BERT (WordPiece) vocabularies of GGUF files, converted to an equivalent `tokenizer.json`.
//!
//! Text is cleaned, split at white space and punctuation, and matched greedily, longest prefix
//! first.

use crate::error::{Error, Result};
use crate::gguf::reader::Gguf;
use crate::gguf::value::Value;
use crate::tokenizer::gguf_json;
use crate::tokenizer::token_kind::TokenKind;
use serde_json::{Map, Value as Json, json};

/// `tokenizer.ggml.model` of BERT vocabularies.
pub(crate) const MODEL: &str = "bert";
/// GGUF prefixes tokens that start a word with this; `tokenizer.json` prefixes all others with
/// `##`.
pub(crate) const WORD_START_MARK: char = '\u{2581}';
/// Maximum characters of a word; longer ones become the unknown token, as in the reference
/// tokenizer.
pub(crate) const MAX_WORD_CHARS: usize = 100;

/// An equivalent `tokenizer.json`.
pub(super) fn tokenizer_json(gguf: &Gguf) -> Result<Json> {
    let tokens = gguf_json::tokens(gguf)?;
    let kinds = TokenKind::list(gguf).unwrap_or_default();
    let is_control = |id: usize| kinds.get(id) == Some(&TokenKind::Control);
    let spelling = |id: usize, token: &str| match token.strip_prefix(WORD_START_MARK) {
        _ if is_control(id) => token.to_owned(),
        Some(begins) => begins.to_owned(),
        None => format!("##{token}"),
    };
    let spelled: Vec<String> = tokens.iter().enumerate().map(|(id, token)| spelling(id, token)).collect();
    let vocab: Map<String, Json> = spelled.iter().cloned().zip((0u32..).map(Json::from)).collect();
    // Two tokens with one spelling could not be decoded unambiguously.
    if vocab.len() != spelled.len() {
        return Err(Error::at("tokenizer.ggml.tokens", "two tokens are equal"));
    }
    let named = |key: &str, default: &str| {
        let id = gguf.u64(&format!("tokenizer.ggml.{key}_token_id"));
        let name = id.and_then(|id| spelled.get(usize::try_from(id).ok()?)).map_or(default, String::as_str);
        let id = vocab.get(name).and_then(Json::as_u64);
        let id = id.ok_or_else(|| Error::at("tokenizer.ggml.tokens", format!("token {name} is missing")))?;
        Ok::<_, Error>((name.to_owned(), id))
    };
    let (unknown, _) = named("unknown", "[UNK]")?;
    let (begin, begin_id) = named("cls", "[CLS]")?;
    // The misspelled key is the one used in published files.
    let (end, end_id) = named("seperator", "[SEP]")?;
    let is_on = |key: &str| {
        gguf.get(&format!("tokenizer.ggml.normalizer.{key}")).and_then(Value::as_bool).unwrap_or(true)
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": gguf_json::added_tokens(&spelled, &kinds),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": is_on("strip_accents"), "lowercase": is_on("lowercase")},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "cls": [begin, begin_id], "sep": [end, end_id]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": MAX_WORD_CHARS, "vocab": vocab},
    }))
}

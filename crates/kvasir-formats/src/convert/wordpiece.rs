//! Writes a WordPiece vocabulary (BERT) as GGUF metadata; `tokenizer/wordpiece.rs` is the inverse.
//!
//! GGUF marks the tokens that start a word with U+2581; `tokenizer.json` marks all other tokens
//! with `##`. What GGUF cannot express is refused by name.

use crate::convert::pair_template::PairTemplate;
use crate::convert::token_table::TokenTable;
use crate::error::{Error, Result};
use crate::gguf::value::Value;
use crate::gguf::writer::Writer;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::token_kind::TokenKind;
use crate::tokenizer::wordpiece::{MAX_WORD_CHARS, MODEL, WORD_START_MARK};
use serde_json::Value as Json;

/// Writes vocabulary and special tokens; `rows` is the number of rows of the embedding matrix.
pub(super) fn write(json: &Json, tokenizer: &Tokenizer, rows: usize, out: &mut Writer) -> Result<()> {
    check_representable(json)?;
    let vocab = json.pointer("/model/vocab").and_then(Json::as_object);
    let vocab = vocab.ok_or_else(|| Error::at("model.vocab", "is missing"))?;
    let added: Vec<&str> = json
        .get("added_tokens")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter(|token| token.get("special") == Some(&Json::Bool(true)))
        .filter_map(|token| token.get("content")?.as_str())
        .collect();
    let mut tokens = TokenTable::new(rows);
    for text in vocab.keys().map(String::as_str).chain(added.iter().copied()) {
        let Some(id) = tokenizer.token_to_id(text) else { continue };
        let is_control = added.contains(&text);
        let spelling = match text.strip_prefix("##") {
            _ if is_control => text.to_owned(),
            Some(rest) => rest.to_owned(),
            None => format!("{WORD_START_MARK}{text}"),
        };
        let kind = if is_control { TokenKind::Control } else { TokenKind::Normal };
        tokens.set("model.vocab", id as usize, spelling, kind)?;
    }
    out.set("tokenizer.ggml.model", Value::Str(MODEL.into()));
    tokens.write(out);
    write_specials(json, tokenizer, out)
}

/// Writes the flags of the normalizer, the unknown token, and the special tokens of the template.
fn write_specials(json: &Json, tokenizer: &Tokenizer, out: &mut Writer) -> Result<()> {
    let flag = |name: &str| json.pointer(&format!("/normalizer/{name}")).and_then(Json::as_bool);
    let lowercase = flag("lowercase").unwrap_or(true);
    // As in `tokenizers`: an unset `strip_accents` has the value of `lowercase`.
    let strip_accents = flag("strip_accents").unwrap_or(lowercase);
    for (key, is_on) in [("lowercase", lowercase), ("strip_accents", strip_accents)] {
        out.set(format!("tokenizer.ggml.normalizer.{key}"), Value::Bool(is_on));
    }
    let unknown = json.pointer("/model/unk_token").and_then(Json::as_str).unwrap_or("[UNK]");
    if let Some(id) = tokenizer.token_to_id(unknown) {
        out.set("tokenizer.ggml.unknown_token_id", Value::U32(id));
    }
    let bad = || Error::at("post_processor", "is not `[CLS] A [SEP]`, with one `[SEP]` between two texts");
    let pair = PairTemplate::of(json)?.ok_or_else(bad)?;
    pair.cls_and_sep(1, true).ok_or_else(bad)?.write(out);
    // With both flags llama.cpp writes EOS and SEP between two texts; this template has one token.
    for (key, is_added) in [("bos", true), ("eos", true), ("sep", false)] {
        out.set(format!("tokenizer.ggml.add_{key}_token"), Value::Bool(is_added));
    }
    Ok(())
}

/// Refuses components that GGUF cannot represent.
fn check_representable(json: &Json) -> Result<()> {
    let text = |path: &str| json.pointer(path).and_then(Json::as_str).unwrap_or_default();
    let refuse = |component: &str, value: &str| {
        Err(Error::at(component, format!("{value} cannot be represented in GGUF")))
    };
    for (component, path, supported) in [
        ("normalizer", "/normalizer/type", "BertNormalizer"),
        ("pre_tokenizer", "/pre_tokenizer/type", "BertPreTokenizer"),
        ("model", "/model/continuing_subword_prefix", "##"),
    ] {
        if text(path) != supported {
            return refuse(component, &format!("`{}`, not `{supported}`,", text(path)));
        }
    }
    for flag in ["clean_text", "handle_chinese_chars"] {
        if json.pointer(&format!("/normalizer/{flag}")) == Some(&Json::Bool(false)) {
            return refuse(&format!("normalizer.{flag}"), "`false`");
        }
    }
    let longest = json.pointer("/model/max_input_chars_per_word").and_then(Json::as_u64);
    match longest {
        Some(length) if length != MAX_WORD_CHARS as u64 => {
            refuse("model.max_input_chars_per_word", &format!("`{length}`"))
        }
        _ => Ok(()),
    }
}

//! Writes a Unigram vocabulary (XLM-RoBERTa) as GGUF metadata; `tokenizer/unigram.rs` is the inverse.
//!
//! What GGUF cannot express is refused by name.

use crate::convert::pair_template::PairTemplate;
use crate::convert::steps;
use crate::convert::token_table::TokenTable;
use crate::error::{Error, Result};
use crate::gguf::value::{Array, Value};
use crate::gguf::writer::Writer;
use crate::tokenizer::charsmap;
use crate::tokenizer::token_kind::TokenKind;
use crate::tokenizer::unigram::{CHARSMAP, MODEL, REMOVE_EXTRA_WHITESPACES, collapses_spaces};
use serde_json::Value as Json;

/// Writes vocabulary, scores and special tokens; `rows` is the number of rows of the embedding
/// matrix.
pub(super) fn write(json: &Json, rows: usize, out: &mut Writer) -> Result<()> {
    let collapses_runs = write_normalizer(json, out)?;
    let splits = splits_at_white_space(json)?;
    out.set(REMOVE_EXTRA_WHITESPACES, Value::Bool(splits || collapses_runs));
    let vocab = json.pointer("/model/vocab").and_then(Json::as_array);
    let vocab = vocab.ok_or_else(|| Error::at("model.vocab", "is missing"))?;
    let (mut tokens, mut scores) = (TokenTable::new(rows), vec![0.0; rows]);
    for (id, entry) in vocab.iter().enumerate() {
        let text = entry.get(0).and_then(Json::as_str);
        let bad = || Error::at(format!("model.vocab[{id}]"), "is not a pair of token and score");
        let (text, score) = text.zip(entry.get(1).and_then(Json::as_f64)).ok_or_else(bad)?;
        tokens.set("model.vocab", id, text.to_owned(), TokenKind::Normal)?;
        scores[id] = score as f32;
    }
    for token in json.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
        let id = token.get("id").and_then(Json::as_u64).and_then(|id| usize::try_from(id).ok());
        let Some((id, text)) = id.zip(token.get("content").and_then(Json::as_str)) else { continue };
        tokens.set("added_tokens", id, text.to_owned(), TokenKind::Control)?;
    }
    out.set("tokenizer.ggml.model", Value::Str(MODEL.into()));
    out.set("tokenizer.ggml.pre", Value::Str("default".into()));
    out.set("tokenizer.ggml.scores", Value::Array(Array::of_f32(&scores)));
    tokens.write(out);
    out.set("tokenizer.ggml.add_space_prefix", Value::Bool(true));
    if let Some(id) = json.pointer("/model/unk_id").and_then(Json::as_u64) {
        out.set("tokenizer.ggml.unknown_token_id", Value::U32(id as u32));
    }
    let bad = || Error::at("post_processor", "is not `<s> A </s>`, with two `</s>` between two texts");
    let pair = PairTemplate::of(json)?.ok_or_else(bad)?;
    pair.cls_and_sep(2, false).ok_or_else(bad)?.write(out);
    for key in ["bos", "eos", "sep"] {
        out.set(format!("tokenizer.ggml.add_{key}_token"), Value::Bool(true));
    }
    Ok(())
}

/// Writes the character map. Returns whether the normalizer replaces runs of spaces by one space.
fn write_normalizer(json: &Json, out: &mut Writer) -> Result<bool> {
    let mut collapses_runs = false;
    for step in steps(json.get("normalizer"), "normalizers") {
        let text = |path: &str| step.pointer(path).and_then(Json::as_str).unwrap_or_default();
        match text("/type") {
            "Precompiled" => {
                let map = charsmap::checked(text("/precompiled_charsmap"));
                let map = map.map_err(|why| Error::at("normalizer", format!("its character map {why}")))?;
                out.set(CHARSMAP, Value::Array(Array::of_u8(&map)));
            }
            "Replace" if collapses_spaces(step) => collapses_runs = true,
            other => {
                return Err(Error::at("normalizer", format!("`{other}` cannot be represented in GGUF")));
            }
        }
    }
    Ok(collapses_runs)
}

/// Whether the pre-tokenizer splits text at white space and removes the white space. Refuses every
/// pre-tokenizer except this split and a space prepended to each text.
fn splits_at_white_space(json: &Json) -> Result<bool> {
    let mut splits = false;
    for step in steps(json.get("pre_tokenizer"), "pretokenizers") {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        let is_prefixed = step.get("add_prefix_space") != Some(&Json::Bool(false))
            && text("prepend_scheme").is_none_or(|scheme| scheme == "always");
        match text("type").unwrap_or_default() {
            "WhitespaceSplit" => splits = true,
            "Metaspace" if is_prefixed => {}
            other => {
                return Err(Error::at("pre_tokenizer", format!("`{other}` cannot be represented in GGUF")));
            }
        }
    }
    Ok(splits)
}

//! Writes the vocabulary of a `tokenizer.json` as GGUF metadata: tokens, types, merges, scores,
//! special tokens.
//!
//! Anything that GGUF cannot express is stored under our own `kvasir_keys` or refused by name, so
//! that token ids never change silently. Guarded by `tests/convert.rs`.

use crate::convert::normalizer;
use crate::convert::pair_template::PairTemplate;
use crate::convert::post_processor::AddedTokens;
use crate::convert::pre_tokenizer::gguf_pre_tokenizer;
use crate::convert::{row_out_of_range, unigram, wordpiece};
use crate::error::{Error, Result};
use crate::gguf::value::{Array, Value};
use crate::gguf::writer::Writer;
use crate::text_files::TextFiles;
use crate::tokenizer::token_kind::TokenKind;
use crate::tokenizer::{Tokenizer, kvasir_keys};
use serde_json::Value as Json;
use std::collections::HashMap;

/// Writes vocabulary, special tokens and chat template. Without a `tokenizer.json`, the model is
/// marked `no_vocab`.
pub(super) fn write(files: &TextFiles, json: Option<&str>, rows: usize, out: &mut Writer) -> Result<()> {
    let Some(text) = json else {
        out.set("tokenizer.ggml.model", Value::Str("no_vocab".into()));
        return Ok(());
    };
    let json: Json = serde_json::from_str(text).map_err(|e| Error::at("tokenizer.json", e))?;
    // Ids come from the loaded tokenizer: added tokens may be renumbered at load.
    let tokenizer = files.tokenizer()?;
    let named =
        |name: &str| files.special_token(&format!("{name}_token")).and_then(|t| tokenizer.token_to_id(&t));
    let written = match json.pointer("/model/type").and_then(Json::as_str) {
        Some("WordPiece") => wordpiece::write(&json, &tokenizer, rows, out),
        Some("Unigram") => unigram::write(&json, rows, out),
        _ => write_tokens(&json, &tokenizer, rows, out)
            .and_then(|()| write_post_processor(&json, named, rows, out)),
    };
    written.map_err(|e| Error::at(format!("tokenizer.json: {}", e.place()), e.why()))?;
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")] {
        if let Some(id) = named(name) {
            out.set(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
    }
    if let Some(template) = files.template_source(None)? {
        out.set("tokenizer.chat_template", Value::Str(template));
    }
    Ok(())
}

/// Writes the post-processor's special tokens.
///
/// GGUF can express one BOS id before and one EOS id after the text, if they equal the model's own.
/// Other ids go to `kvasir_keys`.
fn write_post_processor(
    json: &Json,
    named: impl Fn(&str) -> Option<u32>,
    rows: usize,
    out: &mut Writer,
) -> Result<()> {
    let AddedTokens { before, after } = AddedTokens::of(json)?;
    let between = PairTemplate::of(json)?.map(|pair| pair.between).filter(|between| *between != after);
    if let Some(between) = between {
        out.set(kvasir_keys::PAIR_IDS, Value::Array(Array::of_u32(&between)));
    }
    if let Some(id) = before.iter().chain(&after).find(|&&id| id as usize >= rows) {
        return Err(Error::at("post_processor", row_out_of_range(*id, rows)));
    }
    for (name, ids, key) in
        [("bos", before, kvasir_keys::PREFIX_IDS), ("eos", after, kvasir_keys::SUFFIX_IDS)]
    {
        let one = match ids[..] {
            [id] if named(name).is_none_or(|named| named == id) => Some(id),
            _ => None,
        };
        if let Some(id) = one {
            out.set(format!("tokenizer.ggml.{name}_token_id"), Value::U32(id));
        } else if !ids.is_empty() {
            out.set(key, Value::Array(Array::of_u32(&ids)));
        }
        out.set(format!("tokenizer.ggml.add_{name}_token"), Value::Bool(one.is_some()));
    }
    Ok(())
}

fn write_tokens(json: &Json, tokenizer: &Tokenizer, rows: usize, out: &mut Writer) -> Result<()> {
    if json.pointer("/model/type").and_then(Json::as_str).is_some_and(|t| t != "BPE") {
        return Err(Error::at(
            "model.type",
            "only BPE, WordPiece and Unigram vocabularies can be written to GGUF",
        ));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        let mark = json.pointer(&format!("/model/{key}")).and_then(Json::as_str);
        if mark.is_some_and(|mark| !mark.is_empty()) {
            return Err(Error::at(format!("model.{key}"), "cannot be represented in GGUF"));
        }
    }
    let vocab = json.pointer("/model/vocab").and_then(Json::as_object);
    let added = json.get("added_tokens").and_then(Json::as_array);
    let added: Vec<(&Json, &str)> = added
        .into_iter()
        .flatten()
        .filter_map(|token| Some((token, token.get("content")?.as_str()?)))
        .collect();
    let mut tokens: Vec<Option<&str>> = vec![None; rows];
    let mut kinds = vec![TokenKind::Unused; rows];
    let all = vocab.into_iter().flatten().map(|(text, _)| text.as_str());
    for text in all.chain(added.iter().map(|(_, text)| *text)) {
        let Some(id) = tokenizer.token_to_id(text) else { continue };
        let slot = tokens.get_mut(id as usize);
        *slot.ok_or_else(|| Error::at("model.vocab", row_out_of_range(id, rows)))? = Some(text);
        kinds[id as usize] = TokenKind::Normal;
    }
    let byte_fallback = json.pointer("/model/byte_fallback").and_then(Json::as_bool) == Some(true);
    let (mut found, mut strips_left, mut strips_right) = (Vec::new(), Vec::new(), Vec::new());
    for (token, text) in added {
        let Some(id) = tokenizer.token_to_id(text) else { continue };
        let is_on = |key: &str| token.get(key).and_then(Json::as_bool) == Some(true);
        // Gemma's runs of spaces are matched in text, where only normal tokens map U+2581 to a
        // space.
        let has_spaces =
            byte_fallback && text.contains(normalizer::SPACE) && vocab.is_some_and(|v| v.contains_key(text));
        if is_on("special") {
            kinds[id as usize] = TokenKind::Control;
        } else if has_spaces {
            found.push(id);
        } else {
            kinds[id as usize] = TokenKind::User;
        }
        if is_on("lstrip") {
            strips_left.push(id);
        }
        if is_on("rstrip") {
            strips_right.push(id);
        }
    }
    for (key, ids) in [
        (kvasir_keys::MATCHED_IDS, found),
        (kvasir_keys::STRIPS_LEFT, strips_left),
        (kvasir_keys::STRIPS_RIGHT, strips_right),
    ] {
        if !ids.is_empty() {
            out.set(key, Value::Array(Array::of_u32(&ids)));
        }
    }
    for (token, kind) in tokens.iter().zip(&mut kinds) {
        if byte_fallback
            && *kind == TokenKind::Normal
            && token.is_some_and(|t| t.len() == 6 && t.starts_with("<0x") && t.ends_with('>'))
        {
            *kind = TokenKind::Byte;
        }
    }
    let merges = merges(json)?;
    if byte_fallback {
        // Other readers abort on a byte that has no token.
        let missing =
            (0..=u8::MAX).map(|b| format!("<0x{b:02X}>")).find(|b| tokenizer.token_to_id(b).is_none());
        if let Some(byte) = missing {
            return Err(Error::at("model.vocab", format!("byte_fallback without {byte}")));
        }
        normalizer::of_chars(json, out)?;
        scored(&tokens, &merges, out);
    } else {
        normalizer::of_bytes(json, out)?;
        let pre = gguf_pre_tokenizer(json)?;
        out.set("tokenizer.ggml.model", Value::Str("gpt2".into()));
        out.set("tokenizer.ggml.pre", Value::Str(pre.family.into()));
        if let Some(whole) = pre.whole_words {
            out.set(kvasir_keys::WHOLE_WORDS, Value::Bool(whole));
        }
    }
    out.set(
        "tokenizer.ggml.merges",
        Value::Array(Array::of_strings(
            merges.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>().iter().map(String::as_str),
        )),
    );
    let kinds: Vec<i32> = kinds.into_iter().map(|kind| kind as i32).collect();
    out.set(TokenKind::KEY, Value::Array(Array::of_i32(&kinds)));
    let names: Vec<String> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| t.map_or_else(|| format!("[PAD{id}]"), str::to_owned))
        .collect();
    out.set("tokenizer.ggml.tokens", Value::Array(Array::of_strings(names.iter().map(String::as_str))));
    Ok(())
}

fn merges(json: &Json) -> Result<Vec<(String, String)>> {
    let list = json.pointer("/model/merges").and_then(Json::as_array);
    let list = list.ok_or_else(|| Error::at("model.merges", "is missing"))?;
    let pair = |m: &Json| match m {
        Json::String(text) => text.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        Json::Array(pair) => Some((pair.first()?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned())),
        _ => None,
    };
    let all: Option<Vec<_>> = list.iter().map(pair).collect();
    all.ok_or_else(|| Error::at("model.merges", "has an entry that is not a pair"))
}

/// SentencePiece-style scores: the negated merge rank, so that earlier merges score higher.
fn scored(tokens: &[Option<&str>], merges: &[(String, String)], out: &mut Writer) {
    let mut rank: HashMap<String, usize> = HashMap::new();
    for (i, (a, b)) in merges.iter().enumerate() {
        rank.entry(format!("{a}{b}")).or_insert(i);
    }
    let last = merges.len() as f32;
    let score = |t: &Option<&str>| t.and_then(|t| rank.get(t)).map_or(-last - 1.0, |&r| -(r as f32));
    let scores: Vec<f32> = tokens.iter().map(score).collect();
    out.set("tokenizer.ggml.model", Value::Str("llama".into()));
    out.set("tokenizer.ggml.pre", Value::Str("default".into()));
    out.set("tokenizer.ggml.scores", Value::Array(Array::of_f32(&scores)));
}

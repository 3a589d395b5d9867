//! A `tokenizer.json` as GGUF metadata.

use crate::{
    Error, Result, TextFiles,
    gguf::{Array, Value, Writer},
};
use serde_json::Value as Json;
use std::collections::HashMap;

/// Ways to cut text that GGUF has a name for, by what tells their expressions apart.
const CUTS: [(&str, &str); 7] = [
    (r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", "gpt-4o"),
    (r"$%&'()*+,\-./:;<=>?@", "deepseek-v3"),
    (r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]", "qwen35"),
    (r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*", "llama-bpe"),
    (r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*", "qwen2"),
    (r"\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)", "gpt-2"),
    ("", "gpt-2"),
];

/// Writes the vocabulary, the special tokens and the chat template. Without a `tokenizer.json` the file says that it
/// has none.
pub(super) fn write(files: &TextFiles, json: Option<&str>, rows: usize, out: &mut Writer) -> Result<()> {
    let Some(text) = json else {
        out.set("tokenizer.ggml.model", Value::Str("no_vocab".into()));
        return Ok(());
    };
    let json: Json = serde_json::from_str(text).map_err(|e| Error::at("tokenizer.json", e))?;
    write_tokens(&json, rows, out)
        .map_err(|e| Error::at(format!("tokenizer.json: {}", e.place()), e.why()))?;
    let ids = token_ids(&json);
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")] {
        if let Some(&id) = files.special_token(&format!("{name}_token")).and_then(|t| ids.get(t.as_str())) {
            out.set(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
    }
    if let Some(template) = files.template_source(None)? {
        out.set("tokenizer.chat_template", Value::Str(template));
    }
    Ok(())
}

fn token_ids(json: &Json) -> HashMap<&str, u32> {
    let id = |v: &Json| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let vocab = json.pointer("/model/vocab").and_then(Json::as_object);
    let mut ids: HashMap<&str, u32> =
        vocab.into_iter().flatten().filter_map(|(t, v)| Some((t.as_str(), id(v)?))).collect();
    for token in json.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
        if let (Some(text), Some(id)) =
            (token.get("content").and_then(Json::as_str), token.get("id").and_then(id))
        {
            ids.insert(text, id);
        }
    }
    ids
}

fn write_tokens(json: &Json, rows: usize, out: &mut Writer) -> Result<()> {
    if json.pointer("/model/type").and_then(Json::as_str).is_some_and(|t| t != "BPE") {
        return Err(Error::at("model.type", "only BPE vocabularies can be written to GGUF"));
    }
    let mut tokens: Vec<Option<&str>> = vec![None; rows];
    let mut kinds = vec![5i32; rows]; // unused
    for (text, id) in token_ids(json) {
        let slot = tokens.get_mut(id as usize);
        *slot.ok_or_else(|| {
            Error::at("model.vocab", format!("id {id} is beyond the embedding's {rows} rows"))
        })? = Some(text);
        kinds[id as usize] = 1;
    }
    let added = json.get("added_tokens").and_then(Json::as_array);
    for token in added.into_iter().flatten() {
        let id = token.get("id").and_then(Json::as_u64).and_then(|n| usize::try_from(n).ok());
        if let Some(kind) = id.and_then(|id| kinds.get_mut(id)) {
            *kind = if token.get("special").and_then(Json::as_bool) == Some(true) { 3 } else { 4 };
        }
    }
    let byte_fallback = json.pointer("/model/byte_fallback").and_then(Json::as_bool) == Some(true);
    for (token, kind) in tokens.iter().zip(&mut kinds) {
        if byte_fallback
            && *kind == 1
            && token.is_some_and(|t| t.len() == 6 && t.starts_with("<0x") && t.ends_with('>'))
        {
            *kind = 6;
        }
    }
    let merges = merges(json)?;
    if byte_fallback {
        scored(json, &tokens, &merges, out);
    } else {
        out.set("tokenizer.ggml.model", Value::Str("gpt2".into()));
        out.set("tokenizer.ggml.pre", Value::Str(family(json)?.into()));
    }
    out.set(
        "tokenizer.ggml.merges",
        Value::Array(Array::of_strings(
            merges.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>().iter().map(String::as_str),
        )),
    );
    out.set("tokenizer.ggml.token_type", Value::Array(Array::of_i32(&kinds)));
    let names: Vec<String> = tokens
        .iter()
        .enumerate()
        .map(|(id, t)| t.map_or_else(|| format!("[PAD{id}]"), str::to_owned))
        .collect();
    out.set("tokenizer.ggml.tokens", Value::Array(Array::of_strings(names.iter().map(String::as_str))));
    // What the post-processor puts before a text, if that is one token.
    let bos = json.pointer("/post_processor/single/0/SpecialToken").is_some()
        || json
            .pointer("/post_processor/processors")
            .and_then(Json::as_array)
            .is_some_and(|all| all.iter().any(|p| p.pointer("/single/0/SpecialToken").is_some()));
    out.set("tokenizer.ggml.add_bos_token", Value::Bool(bos));
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
    all.ok_or_else(|| Error::at("model.merges", "holds what is no pair"))
}

/// SentencePiece-style: a token's score says when it is merged.
fn scored(json: &Json, tokens: &[Option<&str>], merges: &[(String, String)], out: &mut Writer) {
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
    let prepends = json.get("normalizer").is_some_and(|n| n.to_string().contains("\"Prepend\""));
    out.set("tokenizer.ggml.add_space_prefix", Value::Bool(prepends));
}

/// The name of this way to cut text.
fn family(json: &Json) -> Result<&'static str> {
    let mut expressions = String::new();
    let cutter = json.get("pre_tokenizer").cloned().unwrap_or(Json::Null);
    let one = [cutter.clone()];
    for step in cutter.get("pretokenizers").and_then(Json::as_array).map_or(&one[..], Vec::as_slice) {
        if let Some(regex) = step.pointer("/pattern/Regex").and_then(Json::as_str) {
            expressions.push_str(regex);
        }
    }
    let byte_level = cutter.to_string().contains("\"ByteLevel\"");
    let found = CUTS
        .iter()
        .find(|(mark, _)| if mark.is_empty() { expressions.is_empty() } else { expressions.contains(mark) });
    match found {
        Some((_, name)) if byte_level => Ok(name),
        _ => Err(Error::at("pre_tokenizer", "its way to cut text has no name in GGUF")),
    }
}

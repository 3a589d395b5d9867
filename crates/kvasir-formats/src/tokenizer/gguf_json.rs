//! Loads GGUF vocabularies that have an equivalent `tokenizer.json`, and the parts that these files
//! share.

use crate::error::{Error, Result};
use crate::gguf::reader::Gguf;
use crate::tokenizer::hf_vocab::HfVocab;
use crate::tokenizer::token_kind::TokenKind;
use serde_json::{Value as Json, json};

/// Loads the equivalent `tokenizer.json` that `convert` makes; the `tokenizers` library runs it.
pub(super) fn read(gguf: &Gguf, convert: fn(&Gguf) -> Result<Json>) -> Result<HfVocab> {
    let vocab = convert(gguf).and_then(|json| {
        let json = serde_json::to_vec(&json);
        HfVocab::new(&json.map_err(|e| Error::at("tokenizer.ggml.tokens", e))?)
    });
    vocab.map_err(|e| e.in_file(gguf.path()))
}

/// The tokens of a file, by id.
pub(super) fn tokens(gguf: &Gguf) -> Result<Vec<&str>> {
    let list = gguf.array("tokenizer.ggml.tokens");
    let list = list.ok_or_else(|| Error::at("tokenizer.ggml.tokens", "is missing"))?;
    list.strings().collect()
}

/// `added_tokens`: the control tokens, with the spellings `tokens`.
pub(super) fn added_tokens(tokens: &[impl AsRef<str>], kinds: &[TokenKind]) -> Vec<Json> {
    let added = tokens.iter().zip(kinds).enumerate();
    let added = added.filter(|(_, (_, kind))| **kind == TokenKind::Control);
    let entry = |(id, (token, _)): (usize, (&_, _))| {
        json!({"id": id, "content": AsRef::<str>::as_ref(token), "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    added.map(entry).collect()
}

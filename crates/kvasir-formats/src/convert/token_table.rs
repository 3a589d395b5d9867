//! [`TokenTable`]: texts and types of all tokens of a GGUF vocabulary, by id.

use crate::convert::row_out_of_range;
use crate::error::{Error, Result};
use crate::gguf::value::{Array, Value};
use crate::gguf::writer::Writer;
use crate::tokenizer::token_kind::TokenKind;

/// One token per row of the embedding matrix. Rows without a token are padding.
pub(super) struct TokenTable {
    texts: Vec<String>,
    kinds: Vec<i32>,
}

impl TokenTable {
    /// `rows` padding tokens.
    pub(super) fn new(rows: usize) -> Self {
        let texts = (0..rows).map(|id| format!("[PAD{id}]")).collect();
        Self { texts, kinds: vec![TokenKind::Unused as i32; rows] }
    }

    /// Sets a token. Fails, naming the place `key`, if its id has no row.
    pub(super) fn set(&mut self, key: &str, id: usize, text: String, kind: TokenKind) -> Result<()> {
        let rows = self.texts.len();
        let place = self.texts.get_mut(id);
        *place.ok_or_else(|| Error::at(key, row_out_of_range(id as u32, rows)))? = text;
        self.kinds[id] = kind as i32;
        Ok(())
    }

    /// Writes the lists of texts and types.
    pub(super) fn write(&self, out: &mut Writer) {
        let texts = Array::of_strings(self.texts.iter().map(String::as_str));
        out.set("tokenizer.ggml.tokens", Value::Array(texts));
        out.set(TokenKind::KEY, Value::Array(Array::of_i32(&self.kinds)));
    }
}

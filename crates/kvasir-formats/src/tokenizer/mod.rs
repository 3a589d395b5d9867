//! Text into token ids and back, from `tokenizer.json` or from a GGUF file's metadata.

mod bpe;
mod bytes;
pub(crate) mod carried;
mod charsmap;
mod cuts;
mod ends;
mod gguf_vocab;
mod hf_vocab;
mod merges;
mod normalizer;
mod oniguruma;
pub(crate) mod pre;
mod specials;
mod spellings;
mod stream;
mod token_kind;
mod wordpiece;

use crate::{Result, gguf::Gguf};
pub(crate) use ends::ends;
use gguf_vocab::GgufVocab;
use hf_vocab::HfVocab;
pub use stream::TextStream;
pub(crate) use token_kind::TokenKind;

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer(Vocab);

#[derive(Debug)]
enum Vocab {
    Hf(Box<HfVocab>),
    Gguf(Box<GgufVocab>),
}

impl Tokenizer {
    /// From the text of a `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        HfVocab::new(json).map(|v| Self(Vocab::Hf(v.into())))
    }

    /// From a GGUF file's metadata; the file may hold a vocabulary and nothing else.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        match gguf.str("tokenizer.ggml.model") {
            Some(wordpiece::MODEL) => wordpiece::read(gguf).map(|v| Self(Vocab::Hf(v.into()))),
            _ => GgufVocab::new(gguf).map(|v| Self(Vocab::Gguf(v.into()))),
        }
    }

    /// The ids of a text. Special tokens that stand in the text are found; `add_special` adds those that the
    /// tokenizer puts around every text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        match &self.0 {
            Vocab::Hf(v) => v.encode(text, add_special),
            Vocab::Gguf(v) => v.encode(text, add_special),
        }
    }

    /// The text of ids; incomplete characters become U+FFFD. Ids that are no tokens, as those are that fill up an embedding, have none.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if let Vocab::Hf(v) = &self.0 {
            return v.decode(ids, skip_special);
        }
        let mut stream = TextStream::new(skip_special);
        let text: String = ids.iter().map(|&id| stream.push(self, id)).collect();
        Ok(text + &stream.finish())
    }

    /// One more than the last id. Not every id below is a token.
    pub fn len(&self) -> usize {
        match &self.0 {
            Vocab::Hf(v) => v.len(),
            Vocab::Gguf(v) => v.len(),
        }
    }

    /// Never: an empty vocabulary is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How the vocabulary spells a token.
    pub fn spelling(&self, id: u32) -> Option<String> {
        match &self.0 {
            Vocab::Hf(v) => v.spelling(id),
            Vocab::Gguf(v) => v.spelling(id).map(str::to_owned),
        }
    }

    /// The bytes that a token stands for; they need not be whole characters.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match &self.0 {
            Vocab::Hf(v) => v.bytes(id),
            Vocab::Gguf(v) => v.bytes(id),
        }
    }

    /// The token of this spelling.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        match &self.0 {
            Vocab::Hf(v) => v.id(spelling),
            Vocab::Gguf(v) => v.id(spelling),
        }
    }

    /// The tokens that control and are no text, in order, as texts have them.
    pub fn specials(&self) -> impl Iterator<Item = (u32, String)> {
        let ids = (0..self.len() as u32).filter(|id| self.is_special(*id));
        ids.filter_map(|id| Some((id, self.spelling(id).filter(|text| !text.is_empty())?)))
    }

    /// Whether a token controls and is no text.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.0 {
            Vocab::Hf(v) => v.is_special(id),
            Vocab::Gguf(v) => v.is_special(id),
        }
    }

    /// Whether the first token's leading space is no part of the text.
    fn drops_first_space(&self) -> bool {
        match &self.0 {
            Vocab::Hf(v) => v.drops_first_space(),
            Vocab::Gguf(v) => v.drops_first_space(),
        }
    }
}

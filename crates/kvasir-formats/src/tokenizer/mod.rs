//! Tokenizers: text to token ids and back, from `tokenizer.json` or GGUF metadata.
//!
//! - `hf_vocab`: `tokenizer.json`, run by the `tokenizers` library.
//! - `gguf_vocab`: BPE and SentencePiece vocabularies of GGUF files; `wordpiece`: BERT
//!   vocabularies.
//! - `stream`: incremental detokenization.
//!
//! Guarded by `tests/tokenizers.rs` and the `tokenizer` and `gguf` fuzz targets.

mod bpe;
mod bytes;
mod charsmap;
pub(crate) mod end_tokens;
mod gguf_vocab;
mod hf_vocab;
pub(crate) mod kvasir_keys;
mod merges;
mod normalizer;
mod oniguruma;
mod pre_tokenizer;
mod special_tokens;
pub(crate) mod split_patterns;
pub(crate) mod stream;
mod string_table;
pub(crate) mod token_kind;
mod wordpiece;

use crate::error::Result;
use crate::gguf::reader::Gguf;
use crate::tokenizer::gguf_vocab::GgufVocab;
use crate::tokenizer::hf_vocab::HfVocab;
use crate::tokenizer::stream::TextStream;

/// A model's tokenizer. Immutable after loading.
#[derive(Debug)]
pub struct Tokenizer(Vocab);

#[derive(Debug)]
enum Vocab {
    Hf(Box<HfVocab>),
    Gguf(Box<GgufVocab>),
}

impl Tokenizer {
    /// Loads a `tokenizer.json`, given its contents.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        HfVocab::new(json).map(|v| Self(Vocab::Hf(v.into())))
    }

    /// Loads a tokenizer from GGUF metadata; a vocabulary-only file is enough.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        match gguf.str("tokenizer.ggml.model") {
            Some(wordpiece::MODEL) => wordpiece::read(gguf).map(|v| Self(Vocab::Hf(v.into()))),
            _ => GgufVocab::new(gguf).map(|v| Self(Vocab::Gguf(v.into()))),
        }
    }

    /// Tokenizes a text. Special tokens in the text are recognized.
    ///
    /// `add_special` adds the tokens of the post-processor, such as BOS. Fails for texts that the
    /// pre-tokenizer cannot handle.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        match &self.0 {
            Vocab::Hf(v) => v.encode(text, add_special),
            Vocab::Gguf(v) => v.encode(text, add_special),
        }
    }

    /// Detokenizes ids. Incomplete UTF-8 becomes U+FFFD; padding ids of the embedding yield no
    /// text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if let Vocab::Hf(v) = &self.0 {
            return v.decode(ids, skip_special);
        }
        let mut stream = TextStream::new(skip_special);
        let text: String = ids.iter().map(|&id| stream.push(self, id)).collect();
        Ok(text + &stream.finish())
    }

    /// Highest id plus one. Ids below it may be unassigned.
    pub fn len(&self) -> usize {
        match &self.0 {
            Vocab::Hf(v) => v.len(),
            Vocab::Gguf(v) => v.len(),
        }
    }

    /// Always false: an empty vocabulary is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token's spelling in the vocabulary, such as `Ġthe`.
    pub fn spelling(&self, id: u32) -> Option<String> {
        match &self.0 {
            Vocab::Hf(v) => v.spelling(id),
            Vocab::Gguf(v) => v.spelling(id).map(str::to_owned),
        }
    }

    /// The bytes of a token, not necessarily whole UTF-8 characters.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match &self.0 {
            Vocab::Hf(v) => v.bytes(id),
            Vocab::Gguf(v) => v.bytes(id),
        }
    }

    /// The id of a spelling.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        match &self.0 {
            Vocab::Hf(v) => v.id(spelling),
            Vocab::Gguf(v) => v.id(spelling),
        }
    }

    /// Control tokens by ascending id, with their text.
    pub fn specials(&self) -> impl Iterator<Item = (u32, String)> {
        let ids = (0..self.len() as u32).filter(|id| self.is_special(*id));
        ids.filter_map(|id| Some((id, self.spelling(id).filter(|text| !text.is_empty())?)))
    }

    /// Whether the id is a control (special) token rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.0 {
            Vocab::Hf(v) => v.is_special(id),
            Vocab::Gguf(v) => v.is_special(id),
        }
    }

    /// Whether a leading space of the first token is removed by decoding.
    fn drops_first_space(&self) -> bool {
        match &self.0 {
            Vocab::Hf(v) => v.drops_first_space(),
            Vocab::Gguf(v) => v.drops_first_space(),
        }
    }
}

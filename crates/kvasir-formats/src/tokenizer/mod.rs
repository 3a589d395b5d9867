//! Tokenizers: text to token ids and back, from `tokenizer.json` or GGUF metadata.
//!
//! - `hf_vocab`: `tokenizer.json`, run by the `tokenizers` library.
//! - `gguf_vocab`: BPE and SentencePiece vocabularies of GGUF files; `wordpiece`: BERT vocabularies;
//!   `unigram`: XLM-RoBERTa vocabularies. The last two are converted to a `tokenizer.json`
//!   (`gguf_json`).
//! - `detokenize`: ids back to text, whole or as a stream.
//! - `fingerprint`: a hash by which processes compare their tokenizers.
//!
//! Guarded by `tests/tokenizers.rs` and the `tokenizer` and `gguf` fuzz targets.

mod bpe;
mod bytes;
mod cancel;
pub(crate) mod charsmap;
pub(crate) mod detokenize;
pub(crate) mod end_tokens;
mod fingerprint;
mod gguf_json;
mod gguf_vocab;
mod hf_vocab;
pub(crate) mod kvasir_keys;
mod merges;
mod normalizer;
mod oniguruma;
pub(crate) mod overlaps;
mod pre_tokenizer;
mod special_tokens;
pub(crate) mod split_patterns;
mod string_table;
pub(crate) mod text_pair;
pub(crate) mod token_kind;
pub(crate) mod unigram;
pub(crate) mod wordpiece;

use crate::error::Result;
use crate::gguf::reader::Gguf;
use crate::tokenizer::gguf_vocab::GgufVocab;
use crate::tokenizer::hf_vocab::HfVocab;
use crate::tokenizer::text_pair::TextPair;
use std::sync::{Arc, OnceLock, atomic::AtomicBool};

/// A model's tokenizer. Immutable after loading.
#[derive(Debug)]
pub struct Tokenizer {
    vocab: Vocab,
    /// Bytes of the longest token.
    longest: OnceLock<usize>,
}

/// How much shorter normalization makes a text that is not ASCII: composition replaces at most three
/// bytes by one, compatibility forms at most four.
const MAX_SHRINKING: usize = 4;

#[derive(Debug)]
enum Vocab {
    Hf(Box<HfVocab>),
    Gguf(Box<GgufVocab>),
}

impl Tokenizer {
    fn of(vocab: Vocab) -> Self {
        Self { vocab, longest: OnceLock::new() }
    }

    /// Loads a `tokenizer.json`, given its contents.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        HfVocab::new(json).map(|v| Self::of(Vocab::Hf(v.into())))
    }

    /// Loads a tokenizer from GGUF metadata; a vocabulary-only file is enough.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let of_hf = |vocab: HfVocab| Self::of(Vocab::Hf(vocab.into()));
        match gguf.str("tokenizer.ggml.model") {
            Some(wordpiece::MODEL) => gguf_json::read(gguf, wordpiece::tokenizer_json).map(of_hf),
            Some(unigram::MODEL) => gguf_json::read(gguf, unigram::tokenizer_json).map(of_hf),
            _ => GgufVocab::new(gguf).map(|v| Self::of(Vocab::Gguf(v.into()))),
        }
    }

    /// Tokenizes a text. Special tokens in the text are recognized.
    ///
    /// `add_special` adds the tokens of the post-processor, such as BOS. Fails for texts that the
    /// pre-tokenizer cannot handle.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        match &self.vocab {
            Vocab::Hf(v) => v.encode(text, add_special),
            Vocab::Gguf(v) => v.encode(text, add_special),
        }
    }

    /// Tokenizes two texts as one sequence of at most `max_tokens` tokens, with the
    /// post-processor's pair template. Special tokens in the texts are recognized. The longer text
    /// is truncated first, at its end. Fails if the special tokens of the template alone exceed
    /// `max_tokens`.
    pub fn encode_pair(&self, texts: [&str; 2], max_tokens: usize) -> Result<TextPair> {
        match &self.vocab {
            Vocab::Hf(v) => v.encode_pair(texts, max_tokens),
            Vocab::Gguf(v) => v.encode_pair(texts, max_tokens),
        }
    }

    /// [`encode_pair`](Self::encode_pair), which fails soon after `canceled` is set.
    pub fn encode_pair_cancelable(
        &self,
        texts: [&str; 2],
        max_tokens: usize,
        canceled: &Arc<AtomicBool>,
    ) -> Result<TextPair> {
        cancel::cancelable(canceled, || self.encode_pair(texts, max_tokens))
    }

    /// [`encode`](Self::encode), which fails soon after `canceled` is set.
    pub fn encode_cancelable(
        &self,
        text: &str,
        add_special: bool,
        canceled: &Arc<AtomicBool>,
    ) -> Result<Vec<u32>> {
        cancel::cancelable(canceled, || self.encode(text, add_special))
    }

    /// Lower bound on the tokens of a text, from its bytes and the longest token, without encoding it.
    /// 0 if the vocabulary has tokens for text of any length.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        if matches!(&self.vocab, Vocab::Hf(v) if !v.covers_bytes()) {
            return 0;
        }
        let longest =
            || (0..self.len() as u32).filter_map(|id| Some(self.bytes(id)?.len())).max().unwrap_or(0);
        let longest = (*self.longest.get_or_init(longest)).max(1);
        let shrinking = if text.is_ascii() { 1 } else { MAX_SHRINKING };
        text.len() / longest / shrinking
    }

    /// Highest id plus one. Ids below it may be unassigned.
    pub fn len(&self) -> usize {
        match &self.vocab {
            Vocab::Hf(v) => v.len(),
            Vocab::Gguf(v) => v.len(),
        }
    }

    /// Always false: an empty vocabulary is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token as the vocabulary spells it, such as `Ġthe`.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        match &self.vocab {
            Vocab::Hf(v) => v.id_to_token(id),
            Vocab::Gguf(v) => v.id_to_token(id).map(str::to_owned),
        }
    }

    /// The bytes of a token, not necessarily whole UTF-8 characters.
    pub fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        match &self.vocab {
            Vocab::Hf(v) => v.bytes(id),
            Vocab::Gguf(v) => v.bytes(id),
        }
    }

    /// The id of a token.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match &self.vocab {
            Vocab::Hf(v) => v.token_to_id(token),
            Vocab::Gguf(v) => v.token_to_id(token),
        }
    }

    /// Control tokens by ascending id, with their text.
    pub fn special_tokens(&self) -> impl Iterator<Item = (u32, String)> {
        let ids = (0..self.len() as u32).filter(|id| self.is_special(*id));
        ids.filter_map(|id| Some((id, self.id_to_token(id).filter(|text| !text.is_empty())?)))
    }

    /// Whether the id is a control (special) token rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.vocab {
            Vocab::Hf(v) => v.is_special(id),
            Vocab::Gguf(v) => v.is_special(id),
        }
    }

    /// Whether a leading space of the first token is removed by decoding.
    fn drops_first_space(&self) -> bool {
        match &self.vocab {
            Vocab::Hf(v) => v.drops_first_space(),
            Vocab::Gguf(v) => v.drops_first_space(),
        }
    }
}

//! Tokenizer from `tokenizer.json`, run by Hugging Face's `tokenizers` library, with bounds on
//! hostile files.
//!
//! The library defines the format but trusts its input. This wrapper catches its panics at load,
//! bounds how much normalizers and decoders may expand a text, and translates regular expressions.

use crate::error::{Error, Result};
use crate::tokenizer::bytes::{byte_token, decode_spelling};
use crate::tokenizer::cancel::Cancelable;
use crate::tokenizer::normalizer;
use crate::tokenizer::normalizer::Bounded;
use crate::tokenizer::pre_tokenizer::TranslatedPreTokenizer;
use crate::tokenizer::split_patterns::TOO_LONG;
use crate::tokenizer::text_pair::{TextPair, truncated_lengths};
use serde_json::Value as Json;
use std::{collections::HashMap, panic::catch_unwind};
use tokenizers::{
    DecoderWrapper, Encoding, PostProcessor, PostProcessorWrapper, TokenizerImpl, TruncationDirection,
    decoders::wordpiece::WordPiece,
};

/// The library's tokenizer, with a cancelable model, a bounded normalizer and translated pre-tokenizer
/// expressions.
type Inner = TokenizerImpl<Cancelable, Bounded, TranslatedPreTokenizer, PostProcessorWrapper, DecoderWrapper>;

/// A tokenizer loaded from `tokenizer.json`.
#[derive(Debug)]
pub(super) struct HfVocab {
    inner: Inner,
    /// Added tokens by id, with their original text (a normalizer may respell them).
    added: HashMap<u32, Added>,
    /// Highest id plus one.
    len: usize,
    spelling: Spelling,
    /// Whether a pre-tokenizer expression has a lookahead after white space.
    looks_ahead: bool,
}

#[derive(Debug)]
struct Added {
    text: String,
    special: bool,
}

/// Maximum run of white space for such expressions. The regex engine gives up at about a million,
/// and the library then silently treats the rest as one word.
const MAX_WHITE_SPACE: usize = 900_000;
/// Maximum expansion factor of a pre-tokenizer or decoder.
const MAX_EXPANSION: usize = 16;

/// How token spellings map to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    ByteLevel,
    /// SentencePiece: U+2581 is a space; a leading space may be dropped.
    SentencePiece {
        drops_first_space: bool,
        /// Byte fallback: `<0x0A>` is a byte.
        has_bytes: bool,
    },
    /// WordPiece: tokens without a `##` prefix start a word.
    WordPiece,
}

impl HfVocab {
    pub(super) fn new(json: &[u8]) -> Result<Self> {
        // The library panics on a decoder that is not valid JSON, so check first.
        serde_json::from_slice::<serde::de::IgnoredAny>(json).map_err(|e| Error::at("tokenizer.json", e))?;
        // The library validates most errors; a panic on the remaining ones is reported as an error
        // of this file.
        let parsed = catch_unwind(|| Inner::from_bytes(json));
        let parsed = parsed.map_err(|_| Error::at("tokenizer.json", "is malformed"))?;
        let mut inner = parsed.map_err(|e| Error::at("tokenizer.json", e))?;
        inner.with_padding(None);
        // The decoder's cleanup removes spaces before punctuation, so a token could not be streamed
        // before the next one is known. It is turned off; words are joined by single spaces.
        if let Some(DecoderWrapper::WordPiece(pieces)) = inner.get_decoder() {
            let pieces = WordPiece::new(pieces.prefix.clone(), false);
            inner.with_decoder(Some(DecoderWrapper::WordPiece(pieces)));
        }
        inner.with_truncation(None).map_err(|e| Error::at("tokenizer.json", e))?;
        if inner.get_vocab_size(true) == 0 {
            return Err(Error::at("tokenizer.json", "the vocabulary is empty"));
        }
        let decoder =
            serde_json::to_value(inner.get_decoder()).map_err(|e| Error::at("tokenizer.json", e))?;
        let added = inner.get_added_tokens_decoder().into_iter();
        let added: HashMap<u32, Added> =
            added.map(|(id, t)| (id, Added { text: t.content, special: t.special })).collect();
        // Added tokens may leave gaps in the ids.
        let last = added.keys().max().map_or(0, |last| *last as usize + 1);
        let len = inner.get_vocab_size(true).max(last);
        // Serialized by the library, so that omitted defaults are explicit.
        let pre_tokenizer = inner
            .get_pre_tokenizer()
            .map(|pre_tokenizer| serde_json::to_string(&pre_tokenizer.0))
            .transpose();
        let pre_tokenizer = pre_tokenizer.map_err(|e| Error::at("tokenizer.json", e))?.unwrap_or_default();
        // Each ByteLevel step expands a byte to up to two bytes.
        if pre_tokenizer.matches(r#""type":"ByteLevel""#).count() > 4 {
            return Err(Error::at("tokenizer.json: pre_tokenizer", "has more than four ByteLevel steps"));
        }
        if growth(&decoder) > MAX_EXPANSION {
            let why = format!("makes texts more than {MAX_EXPANSION} times as long");
            return Err(Error::at("tokenizer.json: decoder", why));
        }
        let looks_ahead = pre_tokenizer.contains("(?!") || pre_tokenizer.contains(r#""use_regex":true"#);
        Ok(Self { spelling: spelling(&decoder)?, inner, added, len, looks_ahead })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn id_to_token(&self, id: u32) -> Option<String> {
        match self.added.get(&id) {
            Some(added) => Some(added.text.clone()),
            None => self.inner.id_to_token(id),
        }
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|added| added.special)
    }

    /// Whether every byte of a normalized text is in some token, so that its length bounds the number
    /// of tokens.
    pub(super) fn covers_bytes(&self) -> bool {
        matches!(self.spelling, Spelling::ByteLevel | Spelling::SentencePiece { has_bytes: true, .. })
    }

    pub(super) fn drops_first_space(&self) -> bool {
        matches!(self.spelling, Spelling::SentencePiece { drops_first_space: true, .. } | Spelling::WordPiece)
    }

    pub(super) fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        // Added tokens use the same spelling rules; Gemma's runs of spaces are added tokens.
        let token = self.id_to_token(id)?;
        Some(match self.spelling {
            Spelling::ByteLevel => decode_spelling(&token).unwrap_or_else(|| token.into_bytes()),
            Spelling::SentencePiece { has_bytes, .. } => match byte_token(&token) {
                Some(byte) if has_bytes => vec![byte],
                _ => token.replace('\u{2581}', " ").into_bytes(),
            },
            Spelling::WordPiece => {
                token.strip_prefix("##").map_or_else(|| format!(" {token}"), str::to_owned).into_bytes()
            }
        })
    }

    pub(super) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        Ok(self.encoding(text, add_special)?.get_ids().to_vec())
    }

    pub(super) fn encode_pair(&self, texts: [&str; 2], max_tokens: usize) -> Result<TextPair> {
        let fail = |e| Error::at("encoding", e);
        let [mut first, mut second] = [self.encoding(texts[0], false)?, self.encoding(texts[1], false)?];
        let added = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        let [a, b] = truncated_lengths([first.len(), second.len()], added, max_tokens)?;
        first.truncate(a, 0, TruncationDirection::Right);
        second.truncate(b, 0, TruncationDirection::Right);
        let joined = self.inner.post_process(first, Some(second), true).map_err(fail)?;
        let second_text_start = joined.get_type_ids().iter().position(|kind| *kind == 1).unwrap_or(0);
        Ok(TextPair { ids: joined.get_ids().to_vec(), second_text_start: second_text_start as u32 })
    }

    fn encoding(&self, text: &str, add_special: bool) -> Result<Encoding> {
        if self.looks_ahead && text.len() > MAX_WHITE_SPACE && longest_white_space(text) > MAX_WHITE_SPACE {
            return Err(Error::at("encoding", TOO_LONG));
        }
        let _ = normalizer::stopped();
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| Error::at("encoding", e))?;
        if let Some(step) = normalizer::stopped() {
            return Err(Error::at(format!("tokenizer.json: normalizer {step}"), "makes the text too long"));
        }
        Ok(encoding)
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner.decode(ids, skip_special).map_err(|e| Error::at("decoding", e))
    }
}

/// Longest run of white space, in characters.
fn longest_white_space(text: &str) -> usize {
    text.split(|c: char| !c.is_whitespace()).map(|gap| gap.chars().count()).max().unwrap_or(0)
}

/// Maximum expansion factor of a decoder's replacements.
fn growth(decoder: &Json) -> usize {
    if let Some(steps) = decoder.get("decoders").and_then(Json::as_array) {
        return steps.iter().map(growth).fold(1, usize::saturating_mul);
    }
    let content = decoder.get("content").and_then(Json::as_str).map_or(0, str::len);
    match decoder.pointer("/pattern/String").and_then(Json::as_str).map(str::len) {
        Some(pattern) if pattern > 0 => content.div_ceil(pattern).max(1),
        // A regular expression may match at every character.
        _ if decoder.get("pattern").is_some() => content + 1,
        _ => 1,
    }
}

/// Determines the spelling from the decoder's steps.
fn spelling(decoder: &Json) -> Result<Spelling> {
    let one = [decoder.clone()];
    let steps = decoder.get("decoders").and_then(Json::as_array).map_or(&one[..], Vec::as_slice);
    let kind = |step: &Json| step.get("type").and_then(Json::as_str).unwrap_or_default().to_owned();
    if steps.iter().any(|s| kind(s) == "ByteLevel") {
        return Ok(Spelling::ByteLevel);
    }
    let joins = |s: &Json| kind(s) == "WordPiece" && s.get("cleanup") == Some(&Json::Bool(false));
    if matches!(steps, [step] if joins(step)) {
        return Ok(Spelling::WordPiece);
    }
    let text = |step: &Json, key: &str| step.get(key).and_then(Json::as_str).map(str::to_owned);
    let metaspace = steps.iter().find(|s| kind(s) == "Metaspace");
    let replaces = steps.iter().any(|s| kind(s) == "Replace" && text(s, "content").as_deref() == Some(" "));
    if metaspace.is_none() && !replaces {
        let kinds: Vec<String> = steps.iter().map(kind).collect();
        return Err(Error::at("tokenizer.json: decoder", format!("{kinds:?} is not supported")));
    }
    let strips = |s: &Json| {
        kind(s) == "Strip"
            && text(s, "content").as_deref() == Some(" ")
            && s.get("start").and_then(Json::as_u64) >= Some(1)
    };
    let prepends = metaspace.is_some_and(|s| text(s, "prepend_scheme").as_deref() != Some("never"));
    Ok(Spelling::SentencePiece {
        drops_first_space: prepends || steps.iter().any(strips),
        has_bytes: steps.iter().any(|s| kind(s) == "ByteFallback"),
    })
}

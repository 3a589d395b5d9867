use super::bytes::{byte_token, decode_spelling};
use super::cuts::Cuts;
use super::normalizer::{self, Bounded};
use super::pre::TOO_LONG;
use crate::{Error, Result};
use serde_json::Value as Json;
use std::{collections::HashMap, panic::catch_unwind};
use tokenizers::{DecoderWrapper, ModelWrapper, PostProcessorWrapper, TokenizerImpl};

/// The library's, but for the normalizer and how expressions are read.
type Inner = TokenizerImpl<ModelWrapper, Bounded, Cuts, PostProcessorWrapper, DecoderWrapper>;

/// A `tokenizer.json`, run by the library that defines the format.
#[derive(Debug)]
pub(super) struct HfVocab {
    inner: Inner,
    /// Tokens beside the model's own, as texts have them: a normalizer may spell them otherwise.
    added: HashMap<u32, Added>,
    /// One more than the last id.
    len: usize,
    spelling: Spelling,
    /// Text is cut by an expression that looks ahead from the end of white space.
    looks_ahead: bool,
}

#[derive(Debug)]
struct Added {
    text: String,
    special: bool,
}

/// White characters in a row that such an expression is asked to cut: it gives up on a million, and the library then says nothing and
/// takes all that is left for one word.
const WHITEST: usize = 900_000;
/// How many times longer the pre-tokenizer or the decoder of a file may make a text.
const MOST_GROWTH: usize = 16;

/// What a token's spelling says about its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    ByteLevel,
    /// U+2581 is a space, `<0x0A>` a byte; a first space may be dropped.
    SentencePiece {
        drops_first_space: bool,
        /// Whether bytes are.
        has_bytes: bool,
    },
    /// What does not begin with `##` begins a word.
    WordPiece,
}

impl HfVocab {
    pub(super) fn new(json: &[u8]) -> Result<Self> {
        // Over a decoder that is no JSON the library panics.
        serde_json::from_slice::<serde::de::IgnoredAny>(json).map_err(|e| Error::at("tokenizer.json", e))?;
        // The library checks most of what a file can have wrong; should it panic over the rest, that is this file's
        // error and nobody else's.
        let parsed = catch_unwind(|| Inner::from_bytes(json));
        let parsed = parsed.map_err(|_| Error::at("tokenizer.json", "cannot be read"))?;
        let mut inner = parsed.map_err(|e| Error::at("tokenizer.json", e))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::at("tokenizer.json", e))?;
        if inner.get_vocab_size(true) == 0 {
            return Err(Error::at("tokenizer.json", "the vocabulary is empty"));
        }
        let decoder =
            serde_json::to_value(inner.get_decoder()).map_err(|e| Error::at("tokenizer.json", e))?;
        let added = inner.get_added_tokens_decoder().into_iter();
        let added: HashMap<u32, Added> =
            added.map(|(id, t)| (id, Added { text: t.content, special: t.special })).collect();
        // Added ones need not follow the others at once.
        let last = added.keys().max().map_or(0, |last| *last as usize + 1);
        let len = inner.get_vocab_size(true).max(last);
        // As the library says it: a file may leave out what is so by default.
        let cuts = inner.get_pre_tokenizer().map(|cuts| serde_json::to_string(&cuts.0)).transpose();
        let cuts = cuts.map_err(|e| Error::at("tokenizer.json", e))?.unwrap_or_default();
        // Each spells every byte with up to two.
        if cuts.matches(r#""type":"ByteLevel""#).count() > 4 {
            return Err(Error::at("tokenizer.json: pre_tokenizer", "spells bytes more than four times"));
        }
        if growth(&decoder) > MOST_GROWTH {
            let why = format!("makes texts more than {MOST_GROWTH} times longer");
            return Err(Error::at("tokenizer.json: decoder", why));
        }
        let looks_ahead = cuts.contains("(?!") || cuts.contains(r#""use_regex":true"#);
        Ok(Self { spelling: spelling(&decoder)?, inner, added, len, looks_ahead })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn spelling(&self, id: u32) -> Option<String> {
        match self.added.get(&id) {
            Some(added) => Some(added.text.clone()),
            None => self.inner.id_to_token(id),
        }
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.added.get(&id).is_some_and(|added| added.special)
    }

    pub(super) fn drops_first_space(&self) -> bool {
        matches!(self.spelling, Spelling::SentencePiece { drops_first_space: true, .. } | Spelling::WordPiece)
    }

    pub(super) fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        // Added tokens are spelled like all others: Gemma's lines of spaces are some.
        let token = self.spelling(id)?;
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
        if self.looks_ahead && text.len() > WHITEST && widest_gap(text) > WHITEST {
            return Err(Error::at("encoding", TOO_LONG));
        }
        let _ = normalizer::stopped();
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| Error::at("encoding", e))?;
        if let Some(step) = normalizer::stopped() {
            return Err(Error::at(format!("tokenizer.json: normalizer {step}"), "makes the text too long"));
        }
        Ok(encoding.get_ids().to_vec())
    }

    pub(super) fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner.decode(ids, skip_special).map_err(|e| Error::at("decoding", e))
    }
}

/// White characters in a row at most.
fn widest_gap(text: &str) -> usize {
    text.split(|c: char| !c.is_whitespace()).map(|gap| gap.chars().count()).max().unwrap_or(0)
}

/// How many times longer a decoder's replacements can make a text.
fn growth(decoder: &Json) -> usize {
    if let Some(steps) = decoder.get("decoders").and_then(Json::as_array) {
        return steps.iter().map(growth).fold(1, usize::saturating_mul);
    }
    let content = decoder.get("content").and_then(Json::as_str).map_or(0, str::len);
    match decoder.pointer("/pattern/String").and_then(Json::as_str).map(str::len) {
        Some(pattern) if pattern > 0 => content.div_ceil(pattern).max(1),
        // An expression may be found at every character.
        _ if decoder.get("pattern").is_some() => content + 1,
        _ => 1,
    }
}

/// Tells the spellings apart by the decoder's steps.
fn spelling(decoder: &Json) -> Result<Spelling> {
    let one = [decoder.clone()];
    let steps = decoder.get("decoders").and_then(Json::as_array).map_or(&one[..], Vec::as_slice);
    let kind = |step: &Json| step.get("type").and_then(Json::as_str).unwrap_or_default().to_owned();
    if steps.iter().any(|s| kind(s) == "ByteLevel") {
        return Ok(Spelling::ByteLevel);
    }
    // Where pieces are joined and the spaces then cleaned up, no piece could be written before the next is known.
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

//! Tokenizer from GGUF metadata: byte-level BPE, ranked BPE with byte fallback, and
//! SentencePiece-style scored BPE.
//!
//! 1. Split the text at special tokens (`special_tokens`).
//! 2. Normalize (NFC), insert a prefix space, and pre-tokenize into words (`split_patterns`).
//! 3. Map each word to symbols and merge them by rank or score (`bpe`).
//! 4. Unknown characters fall back to byte tokens.
//!
//! Guarded by `tests/tokenizers.rs`, which compares with recorded encodings and with the
//! `tokenizer.json` implementation.

use crate::error::{Error, Result};
use crate::gguf::reader::Gguf;
use crate::gguf::value::{Array, Value};
use crate::tokenizer::bpe::{NONE, merge};
use crate::tokenizer::bytes::{byte_chars, byte_token, decode_spelling};
use crate::tokenizer::cancel::{CANCELED_TEXT, is_canceled};
use crate::tokenizer::merges::{Merges, Pairs};
use crate::tokenizer::special_tokens::{Piece, SpecialToken, SpecialTokens};
use crate::tokenizer::split_patterns::Family;
use crate::tokenizer::string_table::StringTable;
use crate::tokenizer::text_pair::{TextPair, truncated_lengths};
use crate::tokenizer::token_kind::TokenKind;
use crate::tokenizer::{end_tokens, kvasir_keys, split_patterns};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    panic::resume_unwind,
};
use tokenizers::NormalizedString;

/// Maximum vocabulary size; published ones have up to 262,144 tokens.
const MAX_TOKENS: usize = 4 << 20;
/// SentencePiece's space symbol, U+2581.
const SPACE: &str = "\u{2581}";

/// Special tokens of Phi-3 without `rstrip`; all its others absorb following white space.
const PHI3_PLAIN: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];

/// A vocabulary read from GGUF metadata.
#[derive(Debug)]
pub(super) struct GgufVocab {
    tokens: StringTable,
    kinds: Vec<TokenKind>,
    specials: SpecialTokens,
    /// Tokens with `lstrip`: preceding white space is dropped.
    strip_left: HashSet<u32>,
    /// Whether text is NFC-normalized first.
    composes: bool,
    algorithm: Algorithm,
    before: Vec<u32>,
    after: Vec<u32>,
    /// Special token ids between the two texts of a pair.
    between: Vec<u32>,
}

#[derive(Debug)]
enum Algorithm {
    /// Byte-level BPE (GPT-2 style), merged by rank within words.
    ByteLevel { family: Family, merges: Merges, bytes: Box<[u32; 256]> },
    /// Character BPE, merged by rank within lines, with U+2581 for spaces and byte fallback.
    RankedChars { family: Family, merges: Merges, bytes: Box<[u32; 256]> },
    /// SentencePiece BPE: pairs merge if their concatenation is a token, highest score first.
    Scored { scores: Vec<f32>, bytes: Box<[u32; 256]>, first: FirstSpace, splits: bool },
}

/// Where a prefix space is inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstSpace {
    Never,
    /// Before every text part.
    Always,
    /// Before every text part that does not start with a space.
    Missing,
    /// Before the text, if it starts with neither a space nor a special token.
    AtStart,
}

impl GgufVocab {
    pub(super) fn new(gguf: &Gguf) -> Result<Self> {
        Self::build(gguf).map_err(|e| e.in_file(gguf.path()))
    }

    fn build(gguf: &Gguf) -> Result<Self> {
        let list = gguf.array("tokenizer.ggml.tokens");
        let list = list.ok_or_else(|| Error::at("tokenizer.ggml.tokens", "is missing"))?;
        if list.is_empty() || list.len() > MAX_TOKENS {
            return Err(Error::at(
                "tokenizer.ggml.tokens",
                format!("{} tokens; 1 to {MAX_TOKENS} are supported", list.len()),
            ));
        }
        let (tokens, merges) = tokens_and_merges(list, gguf.array("tokenizer.ggml.merges"));
        let tokens = tokens?;
        if tokens.len() != list.len() {
            return Err(Error::at("tokenizer.ggml.tokens", "is not a list of strings"));
        }
        let mut kinds = kinds(gguf, tokens.len())?;
        for end in end_tokens::SPELLINGS {
            if let Some(id) = tokens.find(end) {
                let is_text = end_tokens::is_text(end, |other| tokens.find(other).is_some());
                kinds[id as usize] = if is_text { TokenKind::Normal } else { TokenKind::Control };
            }
        }
        let specials = specials(gguf, &tokens, &kinds)?;
        let (algorithm, adds_bos) = algorithm(gguf, &tokens, merges)?;
        let id = |key: &str| {
            let id = gguf.u64(&format!("tokenizer.ggml.{key}_token_id"));
            id.and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < tokens.len())
        };
        let scored = |id: u32| {
            let is = matches!(algorithm, Algorithm::Scored { .. }) && (id as usize) < tokens.len();
            is.then_some(id)
        };
        let add = |key: &str, default| {
            gguf.get(&format!("tokenizer.ggml.add_{key}_token")).and_then(Value::as_bool).unwrap_or(default)
        };
        let bos = id("bos").or_else(|| scored(1));
        let eos = id("eos").or_else(|| scored(2));
        let before = ids(gguf, kvasir_keys::PREFIX_IDS, tokens.len())?;
        let before = before.unwrap_or_else(|| bos.filter(|_| add("bos", adds_bos)).into_iter().collect());
        let after = ids(gguf, kvasir_keys::SUFFIX_IDS, tokens.len())?;
        let after = after.unwrap_or_else(|| eos.filter(|_| add("eos", false)).into_iter().collect());
        let between = ids(gguf, kvasir_keys::PAIR_IDS, tokens.len())?.unwrap_or_else(|| after.clone());
        let composes = match gguf.str(kvasir_keys::NORMALIZER) {
            None => false,
            Some("NFC") => true,
            Some(other) => {
                return Err(Error::at(kvasir_keys::NORMALIZER, format!("{other:?} is not supported")));
            }
        };
        let strip_left = ids(gguf, kvasir_keys::STRIPS_LEFT, tokens.len())?;
        let strip_left = strip_left.into_iter().flatten().collect();
        Ok(Self { tokens, kinds, specials, strip_left, composes, algorithm, before, after, between })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn id_to_token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id)
    }

    pub(super) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.tokens.find(token)
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        matches!(self.kinds.get(id as usize), Some(TokenKind::Unknown | TokenKind::Control))
    }

    /// Whether decoding removes the prefix space that encoding inserted.
    pub(super) fn drops_first_space(&self) -> bool {
        matches!(&self.algorithm, Algorithm::Scored { first, .. } if *first != FirstSpace::Never)
    }

    /// The bytes of a token.
    pub(super) fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.tokens.get(id)?;
        let kind = self.kinds.get(id as usize).copied();
        if kind.is_some_and(TokenKind::is_whole) {
            return Some(token.as_bytes().to_vec());
        }
        // Padding rows of the embedding have no text.
        if kind == Some(TokenKind::Unused) {
            return Some(Vec::new());
        }
        match &self.algorithm {
            Algorithm::ByteLevel { .. } => {
                Some(decode_spelling(token).unwrap_or_else(|| token.as_bytes().to_vec()))
            }
            _ => match byte_token(token) {
                Some(byte)
                    if kind == Some(TokenKind::Byte)
                        || !matches!(self.algorithm, Algorithm::Scored { .. }) =>
                {
                    Some(vec![byte])
                }
                _ => Some(token.replace(SPACE, " ").into_bytes()),
            },
        }
    }

    pub(super) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let mut out = if add_special { self.before.clone() } else { Vec::new() };
        let pieces = self.specials.split(text);
        for (at, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Token(id) => out.push(*id),
                Piece::Text(text) => {
                    let text = match pieces.get(at + 1) {
                        Some(Piece::Token(next)) if self.strip_left.contains(next) => text.trim_end(),
                        _ => text,
                    };
                    self.encode_text(&self.composed(text), at == 0, &mut out)?;
                }
            }
        }
        if add_special {
            out.extend(&self.after);
        }
        Ok(out)
    }

    /// Encodes a text pair; `second_text_start` is 0, as no BPE vocabulary has token types.
    pub(super) fn encode_pair(&self, texts: [&str; 2], max_tokens: usize) -> Result<TextPair> {
        let [mut first, mut second] = [self.encode(texts[0], false)?, self.encode(texts[1], false)?];
        let added = self.before.len() + self.between.len() + self.after.len();
        let [a, b] = truncated_lengths([first.len(), second.len()], added, max_tokens)?;
        first.truncate(a);
        second.truncate(b);
        let ids = [&self.before, &first, &self.between, &second, &self.after].into_iter().flatten();
        Ok(TextPair { ids: ids.copied().collect(), second_text_start: 0 })
    }

    fn composed<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.composes || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let mut composed = NormalizedString::from(text);
        composed.nfc();
        Cow::Owned(composed.get().to_owned())
    }

    fn encode_text(&self, text: &str, at_start: bool, out: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.algorithm {
            Algorithm::ByteLevel { family, merges, bytes } => {
                let chars = byte_chars();
                let mut pairs = Pairs::new(merges, &self.tokens);
                for word in split_patterns::split(&family.patterns, text)? {
                    if is_canceled() {
                        return Err(Error::at("encoding", CANCELED_TEXT));
                    }
                    if family.whole_words {
                        let spelling: String = word.bytes().map(|b| chars[usize::from(b)]).collect();
                        if let Some(id) = self.token_to_id(&spelling) {
                            out.push(id);
                            continue;
                        }
                    }
                    let mut symbols: Vec<u32> = word.bytes().map(|b| bytes[usize::from(b)]).collect();
                    merge(&mut symbols, |a, b| pairs.get(a, b));
                    out.extend(symbols.into_iter().filter(|&id| id != NONE));
                }
            }
            Algorithm::RankedChars { family, merges, bytes } => {
                let text = text.replace(' ', SPACE);
                let mut pairs = Pairs::new(merges, &self.tokens);
                for line in split_patterns::split(&family.patterns, &text)? {
                    if is_canceled() {
                        return Err(Error::at("encoding", CANCELED_TEXT));
                    }
                    let mut symbols = self.chars(line, bytes);
                    merge(&mut symbols, |a, b| pairs.get(a, b));
                    out.extend(symbols.into_iter().filter(|&id| id != NONE));
                }
            }
            Algorithm::Scored { scores, bytes, first, splits } => {
                let mut text = text.replace(' ', SPACE);
                let puts = match first {
                    FirstSpace::Never => false,
                    FirstSpace::Always => true,
                    FirstSpace::Missing => !text.starts_with(SPACE),
                    FirstSpace::AtStart => at_start && !text.starts_with(SPACE),
                };
                if puts {
                    text.insert_str(0, SPACE);
                }
                let mut rest = text.as_str();
                while !rest.is_empty() {
                    if is_canceled() {
                        return Err(Error::at("encoding", CANCELED_TEXT));
                    }
                    let next = rest.char_indices().skip(1).find(|(_, c)| *splits && SPACE.starts_with(*c));
                    let (word, after) = rest.split_at(next.map_or(rest.len(), |(at, _)| at));
                    self.encode_scored(word, scores, bytes, out);
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// One symbol per character: its token, or its byte-fallback tokens.
    fn chars(&self, text: &str, bytes: &[u32; 256]) -> Vec<u32> {
        let mut symbols = Vec::new();
        let mut buffer = [0; 4];
        for c in text.chars() {
            let c = c.encode_utf8(&mut buffer);
            match self.token_to_id(c) {
                Some(id) => symbols.push(id),
                None => symbols.extend(c.bytes().map(|b| bytes[usize::from(b)])),
            }
        }
        symbols
    }

    /// SentencePiece merging. Unknown characters get temporary ids above the vocabulary, since a
    /// pair containing one may still be a token.
    fn encode_scored(&self, text: &str, scores: &[f32], bytes: &[u32; 256], out: &mut Vec<u32>) {
        let base = self.tokens.len() as u32;
        let mut unknown: Vec<char> = Vec::new();
        let mut known: HashMap<char, u32> = HashMap::new();
        let mut symbols: Vec<u32> = Vec::with_capacity(text.len());
        let mut buffer = [0; 4];
        for c in text.chars() {
            symbols.push(self.token_to_id(c.encode_utf8(&mut buffer)).unwrap_or_else(|| {
                *known.entry(c).or_insert_with(|| {
                    unknown.push(c);
                    base + unknown.len() as u32 - 1
                })
            }));
        }
        let mut pairs: HashMap<(u32, u32), Option<(Score, u32)>> = HashMap::new();
        let mut spelling = String::new();
        merge(&mut symbols, |a, b| {
            *pairs.entry((a, b)).or_insert_with(|| {
                spelling.clear();
                for id in [a, b] {
                    match self.id_to_token(id) {
                        Some(text) => spelling.push_str(text),
                        None => spelling.extend(unknown.get((id - base) as usize)),
                    }
                }
                let id = self.token_to_id(&spelling)?;
                let score = scores.get(id as usize).copied().unwrap_or(0.0);
                Some((Score(score), id))
            })
        });
        for id in symbols {
            match id.checked_sub(base).and_then(|i| unknown.get(i as usize)) {
                None => out.push(id),
                Some(c) => out.extend(
                    c.encode_utf8(&mut buffer)
                        .bytes()
                        .map(|b| bytes[usize::from(b)])
                        .filter(|&id| id != NONE),
                ),
            }
        }
    }
}

/// A merge score; higher sorts first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.total_cmp(&self.0)
    }
}

fn kinds(gguf: &Gguf, tokens: usize) -> Result<Vec<TokenKind>> {
    let kinds = TokenKind::list(gguf).unwrap_or_else(|| vec![TokenKind::Normal; tokens]);
    if kinds.len() != tokens {
        return Err(Error::at(TokenKind::KEY, format!("{} entries for {tokens} tokens", kinds.len())));
    }
    Ok(kinds)
}

fn specials(gguf: &Gguf, tokens: &StringTable, kinds: &[TokenKind]) -> Result<SpecialTokens> {
    let name = gguf.str("general.name").unwrap_or_default().to_lowercase();
    let phi3 = ["phi-3", "phi3"].iter().any(|part| name.contains(part));
    let listed = |key| Ok::<_, Error>(ids(gguf, key, tokens.len())?.map(|ids| ids.into_iter().collect()));
    let strips: Option<HashSet<u32>> = listed(kvasir_keys::STRIPS_RIGHT)?;
    let found: HashSet<u32> = listed(kvasir_keys::MATCHED_IDS)?.unwrap_or_default();
    let special =
        tokens.iter().zip(kinds).zip(0..).filter(|((_, kind), id)| kind.is_whole() || found.contains(id));
    Ok(SpecialTokens::new(special.map(|((text, _), id)| SpecialToken {
        text: text.into(),
        id,
        strips_right: match &strips {
            Some(strips) => strips.contains(&id),
            None => phi3 && !PHI3_PLAIN.contains(&text),
        },
    })))
}

/// Token ids listed under a metadata key.
fn ids(gguf: &Gguf, key: &str, tokens: usize) -> Result<Option<Vec<u32>>> {
    let Some(list) = gguf.array(key) else { return Ok(None) };
    let id = |v: Value| v.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < tokens);
    let ids: Option<Vec<u32>> = list.scalars().map(id).collect();
    ids.map(Some).ok_or_else(|| Error::at(key, "has an entry that is not a token id"))
}

/// Loads tokens and merges in parallel, since nothing else can start before both are loaded.
fn tokens_and_merges(
    tokens: &Array,
    merges: Option<&Array>,
) -> (Result<StringTable>, Option<Result<Merges>>) {
    std::thread::scope(|scope| {
        let merges = merges.map(|list| scope.spawn(|| Merges::of(list)));
        let tokens = StringTable::of(tokens, |_, _| Ok(()));
        (tokens, merges.map(|merges| merges.join().unwrap_or_else(|panic| resume_unwind(panic))))
    })
}

fn algorithm(gguf: &Gguf, tokens: &StringTable, merges: Option<Result<Merges>>) -> Result<(Algorithm, bool)> {
    let merges = || merges.ok_or_else(|| Error::at("tokenizer.ggml.merges", "is missing"))?;
    let find = |spelling: &str| tokens.find(spelling).unwrap_or(NONE);
    let is_on = |key: &str, default| gguf.get(key).and_then(Value::as_bool).unwrap_or(default);
    let byte_tokens = || Box::new(std::array::from_fn(|b| find(&format!("<0x{b:02X}>"))));
    match gguf.str("tokenizer.ggml.model") {
        Some("gpt2") => {
            let mut family = split_patterns::family(gguf.str("tokenizer.ggml.pre"))?;
            family.whole_words = is_on(kvasir_keys::WHOLE_WORDS, family.whole_words);
            let adds_bos = family.adds_bos;
            let chars = byte_chars();
            let bytes = Box::new(chars.map(|c| find(c.encode_utf8(&mut [0; 4]))));
            Ok((Algorithm::ByteLevel { family, merges: merges()?, bytes }, adds_bos))
        }
        Some("gemma4") => {
            let pattern =
                fancy_regex::Regex::new(r"[^\n]+|[\n]+").map_err(|e| Error::at("pre-tokenizer", e))?;
            let family = Family { patterns: vec![pattern], whole_words: false, adds_bos: true };
            Ok((Algorithm::RankedChars { family, merges: merges()?, bytes: byte_tokens() }, true))
        }
        Some("llama") => {
            let scores = gguf.array("tokenizer.ggml.scores");
            let scores: Vec<f32> = scores.map_or_else(Vec::new, |s| {
                s.scalars().map(|v| v.as_f64().map_or(0.0, |f| f as f32)).collect()
            });
            if scores.len() != tokens.len() {
                let why = format!("{} scores for {} tokens", scores.len(), tokens.len());
                return Err(Error::at("tokenizer.ggml.scores", why));
            }
            let first = match gguf.str(kvasir_keys::PREFIX_SPACE) {
                Some("always") => FirstSpace::Missing,
                Some("first") => FirstSpace::AtStart,
                Some(other) => {
                    return Err(Error::at(kvasir_keys::PREFIX_SPACE, format!("{other:?} is not supported")));
                }
                None if is_on("tokenizer.ggml.add_space_prefix", true) => FirstSpace::Always,
                None => FirstSpace::Never,
            };
            let splits = is_on(kvasir_keys::SPLITS, false);
            Ok((Algorithm::Scored { scores, bytes: byte_tokens(), first, splits }, true))
        }
        Some(other) => Err(Error::at("tokenizer.ggml.model", format!("{other:?} is not supported"))),
        None => Err(Error::at("tokenizer.ggml.model", "is missing")),
    }
}

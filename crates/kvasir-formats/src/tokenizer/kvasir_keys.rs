//! Our own GGUF metadata keys for tokenizer properties that GGUF cannot express.
//!
//! They make a converted file yield the same ids as its `tokenizer.json`. Other readers ignore
//! these keys.

/// Text normalization; only `NFC` is defined.
pub(crate) const NORMALIZER: &str = "kvasir.tokenizer.normalizer";
/// `ignore_merges`: whether a word that is a token bypasses merging, where `tokenizer.ggml.pre`
/// does not imply it.
pub(crate) const WHOLE_WORDS: &str = "kvasir.tokenizer.whole_words";
/// Prefix space (Metaspace prepend scheme): `always` before each text part, or only before the
/// `first`.
pub(crate) const PREFIX_SPACE: &str = "kvasir.tokenizer.prepends";
/// Whether words are merged separately, so that no token spans a space.
pub(crate) const SPLITS: &str = "kvasir.tokenizer.splits";
/// Ids prepended to every text, if not just BOS.
pub(crate) const PREFIX_IDS: &str = "kvasir.tokenizer.before";
/// Ids appended to every text, if not just EOS.
pub(crate) const SUFFIX_IDS: &str = "kvasir.tokenizer.after";
/// Special token ids between the two texts of a pair, if they differ from `SUFFIX_IDS`.
pub(crate) const PAIR_IDS: &str = "kvasir.tokenizer.between";
/// Ids of added tokens with `lstrip`: they absorb preceding white space.
pub(crate) const STRIPS_LEFT: &str = "kvasir.tokenizer.strips_left";
/// Ids of added tokens with `rstrip`: they absorb following white space.
pub(crate) const STRIPS_RIGHT: &str = "kvasir.tokenizer.strips_right";
/// Ids of normal tokens that are matched in text as a whole, like control tokens.
pub(crate) const MATCHED_IDS: &str = "kvasir.tokenizer.found";

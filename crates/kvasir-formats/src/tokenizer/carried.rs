//! What our own files say about a tokenizer beyond what GGUF has keys for, so that it gives the same ids as the
//! `tokenizer.json` that it was made of. Other readers pass over these keys.

/// What is done to a text first; `NFC` is known.
pub(crate) const NORMALIZER: &str = "kvasir.tokenizer.normalizer";
/// Whether a word that is a token is taken whole, where no name in `tokenizer.ggml.pre` says it of such words.
pub(crate) const WHOLE_WORDS: &str = "kvasir.tokenizer.whole_words";
/// Where a space is put unless one is there: `always` before every stretch of text, or only before the `first`.
pub(crate) const PREPENDS: &str = "kvasir.tokenizer.prepends";
/// Whether words are merged apart from each other, so that no token goes beyond a space.
pub(crate) const SPLITS: &str = "kvasir.tokenizer.splits";
/// The ids put before a text, where that is not just the begin token.
pub(crate) const BEFORE: &str = "kvasir.tokenizer.before";
/// The ids put after a text, where that is not just the end token.
pub(crate) const AFTER: &str = "kvasir.tokenizer.after";
/// The ids of tokens that the white space before them belongs to.
pub(crate) const STRIPS_LEFT: &str = "kvasir.tokenizer.strips_left";
/// The ids of tokens that the white space after them belongs to.
pub(crate) const STRIPS_RIGHT: &str = "kvasir.tokenizer.strips_right";
/// The ids of ordinary tokens that are found in a text as a whole, as control tokens are.
pub(crate) const FOUND: &str = "kvasir.tokenizer.found";

//! Detokenization: token ids back to text, whole (`Tokenizer::decode`) or as they arrive
//! (`TextStream`).

use crate::error::Result;
use crate::tokenizer::{Tokenizer, Vocab};
use serde::{Deserialize, Serialize};

impl Tokenizer {
    /// Detokenizes ids. Incomplete UTF-8 becomes U+FFFD; padding ids of the embedding yield no
    /// text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        if let Vocab::Hf(v) = &self.vocab {
            return v.decode(ids, skip_special);
        }
        let mut stream = TextStream::new(skip_special);
        let text: String = ids.iter().map(|&id| stream.push(self, id)).collect();
        Ok(text + &stream.finish())
    }
}

/// Converts tokens to text as they arrive.
///
/// Invariants: emitted text is final, never contains a partial UTF-8 character, and concatenates to
/// the same text as `decode`. Its state is the bytes of at most one incomplete character.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextStream {
    /// Bytes of an incomplete UTF-8 character.
    pending: Vec<u8>,
    started: bool,
    skip_special: bool,
}

impl TextStream {
    /// Starts a new text. `skip_special` omits control tokens.
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    /// Continues an existing text: a leading space is preserved.
    pub fn continuing(skip_special: bool) -> Self {
        Self { started: true, ..Self::new(skip_special) }
    }

    /// The text completed by this token; empty if it only starts a character.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.skip_special && tokenizer.is_special(id) {
            return String::new();
        }
        let Some(bytes) = tokenizer.bytes(id) else { return String::new() };
        let mut bytes = bytes.as_slice();
        if !self.started && tokenizer.drops_first_space() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.started = true;
        self.pending.extend_from_slice(bytes);
        self.take_complete()
    }

    /// Flushes at the end of the stream: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }

    fn take_complete(&mut self) -> String {
        let mut out = String::new();
        let mut from = 0;
        loop {
            match std::str::from_utf8(&self.pending[from..]) {
                Ok(text) => {
                    out.push_str(text);
                    self.pending.clear();
                    return out;
                }
                Err(error) => {
                    let valid = from + error.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.pending[from..valid]));
                    match error.error_len() {
                        // Invalid UTF-8, whatever follows.
                        Some(len) => {
                            out.push('\u{fffd}');
                            from = valid + len;
                        }
                        None => {
                            self.pending.drain(..valid);
                            return out;
                        }
                    }
                }
            }
        }
    }
}

use super::Tokenizer;

/// Text from tokens as they come: never half a character, and in all the same as decoding at once.
#[derive(Debug, Default, Clone)]
pub struct TextStream {
    /// Bytes of a character that is not complete.
    pending: Vec<u8>,
    started: bool,
    skip_special: bool,
}

impl TextStream {
    /// A new text. `skip_special` leaves control tokens out.
    pub fn new(skip_special: bool) -> Self {
        Self { skip_special, ..Self::default() }
    }

    /// A text that goes on behind another: a space that it begins with stays.
    pub fn going_on(skip_special: bool) -> Self {
        Self { started: true, ..Self::new(skip_special) }
    }

    /// The text that this token completes; empty if it only begins a character.
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

    /// What is left when no more tokens come: an incomplete character becomes U+FFFD.
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
                        // Not UTF-8, whatever follows.
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

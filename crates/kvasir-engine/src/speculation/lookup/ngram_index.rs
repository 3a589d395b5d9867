//! [`NgramIndex`]: where the last n tokens of a growing sequence occurred before.

use kvasir_kv::Token;
use std::collections::HashMap;

/// Finds the newest earlier occurrence of a sequence's last n tokens, in constant time.
#[derive(Clone, Debug)]
pub(crate) struct NgramIndex {
    n: usize,
    tokens: Vec<Token>,
    /// Place after the newest occurrence of each n-gram, by its hash. Places whose n tokens are the
    /// sequence's last ones are entered only when the next token arrives.
    after: HashMap<u64, u32>,
}

impl NgramIndex {
    /// An index of n-grams of `n` tokens, at least 1.
    pub(crate) fn new(n: usize) -> Self {
        Self { n: n.max(1), tokens: Vec::new(), after: HashMap::new() }
    }

    /// Reserves memory for `tokens` more tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        self.tokens.reserve(tokens);
        self.after.reserve(tokens);
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: Token) {
        if let Some(hash) = self.hash() {
            self.after.insert(hash, self.tokens.len() as u32);
        }
        self.tokens.push(token);
    }

    /// The tokens after the newest earlier occurrence of the last n tokens; empty if there is none.
    pub(crate) fn continuation(&self) -> &[Token] {
        let found = self.hash().and_then(|hash| self.after.get(&hash)).map(|at| *at as usize);
        let Some(at) = found else { return &[] };
        // Another n-gram may have the same hash.
        let same = self.tokens[at - self.n..at] == self.tokens[self.tokens.len() - self.n..];
        if same { &self.tokens[at..] } else { &[] }
    }

    /// Hash of the last n tokens.
    fn hash(&self) -> Option<u64> {
        let last = self.tokens.len().checked_sub(self.n)?;
        let mix = |hash: u64, token: &Token| kvasir_sample::mix(hash ^ u64::from(*token));
        Some(self.tokens[last..].iter().fold(self.n as u64, mix))
    }
}

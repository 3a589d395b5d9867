//! The tokens that a simulated model outputs, as a function of seed and output index.

use kvasir_kv::Token;

/// The source of output tokens of a simulated device.
pub trait OutputSource: Send {
    /// Output token `index` of the request with this sampling seed. Must be a pure function of
    /// both.
    fn token(&self, seed: u64, index: u32) -> Token;
}

/// Draws tokens from a list by a hash of seed and output index.
#[derive(Clone, Debug)]
pub struct TokenList(Vec<Token>);

impl TokenList {
    /// Uses these tokens; if there are none, every output is token 0.
    pub fn new(tokens: Vec<Token>) -> Self {
        Self(tokens)
    }
}

impl OutputSource for TokenList {
    fn token(&self, seed: u64, index: u32) -> Token {
        let mixed =
            (seed ^ u64::from(index).wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 31).wrapping_mul(0x94D0_49BB_1331_11EB) >> 32;
        let at = mixed.checked_rem(self.0.len() as u64).unwrap_or(0);
        self.0.get(at as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_from_seed_and_place() {
        let words = TokenList::new((10..20).collect());
        let answered = |seed| (0..50).map(|i| words.token(seed, i)).collect::<Vec<_>>();
        assert_eq!(answered(7), answered(7));
        assert_ne!(answered(7), answered(8));
        assert!((10..20).all(|word| (0..50).any(|seed| answered(seed).contains(&word))));
    }
}

//! Synthetic texts and scripted answers, addressable by number, with no tables.
//!
//! Every token is a hash of (text number, position). Equal text numbers give equal prefixes, so
//! prefix cache hits are exact and reproducible.

use kvasir_kv::Token;
use kvasir_sample::{STRIDE, mix};
use kvasir_sim::OutputSource;

/// The EOS token of simulated models.
pub const EOS: Token = 2;

/// Exclusive upper bound of token ids in simulated texts; ids start at 3.
const VOCABULARY: u64 = 32_000;

/// Tokens `from .. to` of an infinite synthetic text. Equal text numbers share their tokens, others
/// share none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Text number.
    pub text: u64,
    /// First position.
    pub from: u32,
    /// End position, exclusive.
    pub to: u32,
}

impl Passage {
    /// The token ids of the passage.
    pub fn tokens(self) -> impl Iterator<Item = Token> {
        (self.from..self.to).map(move |i| token(self.text, i))
    }
}

fn token(text: u64, i: u32) -> Token {
    (3 + mix(text.wrapping_mul(STRIDE) ^ u64::from(i)) % (VOCABULARY - 3)) as Token
}

const LENGTH_AT: u32 = 44;

/// A scripted answer: a text number and a length, packed into 64 bits.
///
/// The value travels as the request's sampling seed, so the simulated device needs no table of
/// answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(pub u64);

impl Answer {
    /// Maximum length of an answer that ends with EOS.
    pub const LONGEST: u32 = (1 << (64 - LENGTH_AT)) - 1;

    /// An answer whose token number `length` is [`EOS`]; with length 0 it never ends by itself.
    pub fn new(number: u64, length: u32) -> Self {
        Self(u64::from(length.min(Self::LONGEST)) << LENGTH_AT | number & ((1 << LENGTH_AT) - 1))
    }

    /// Output token `index`.
    pub fn token(self, index: u32) -> Token {
        let length = (self.0 >> LENGTH_AT) as u32;
        if length > 0 && index + 1 >= length { EOS } else { token(!(self.0 & ((1 << LENGTH_AT) - 1)), index) }
    }
}

/// The scripted "model" of simulated devices: decodes the answer from the request's seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptedModel;

impl OutputSource for ScriptedModel {
    fn token(&self, seed: u64, index: u32) -> Token {
        Answer(seed).token(index)
    }
}

use kvasir_kv::Token;
use kvasir_sample::{STRIDE, mix};
use kvasir_sim::Answers;

/// The token that ends an answer.
pub const EOS: Token = 2;

/// Tokens of simulated texts are 3 to below this.
const VOCABULARY: u64 = 32_000;

/// Tokens `from..to` of an endless text. Texts of the same number are the same, others have nothing in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Which text.
    pub text: u64,
    /// First token.
    pub from: u32,
    /// The token behind the last.
    pub to: u32,
}

impl Passage {
    /// Its tokens.
    pub fn tokens(self) -> impl Iterator<Item = Token> {
        (self.from..self.to).map(move |i| token(self.text, i))
    }
}

fn token(text: u64, i: u32) -> Token {
    (3 + mix(text.wrapping_mul(STRIDE) ^ u64::from(i)) % (VOCABULARY - 3)) as Token
}

const LENGTH_AT: u32 = 44;

/// What a request is answered: a text of its own, and where it ends. It travels as the request's seed, so that the device
/// knows what to say without a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer(pub u64);

impl Answer {
    /// The longest answer that ends by itself.
    pub const LONGEST: u32 = (1 << (64 - LENGTH_AT)) - 1;

    /// An answer that ends after `length` tokens, the last of which is [`EOS`]; with 0 it never ends by itself.
    pub fn new(number: u64, length: u32) -> Self {
        Self(u64::from(length.min(Self::LONGEST)) << LENGTH_AT | number & ((1 << LENGTH_AT) - 1))
    }

    /// Its token `index`.
    pub fn token(self, index: u32) -> Token {
        let length = (self.0 >> LENGTH_AT) as u32;
        match length > 0 && index + 1 >= length {
            true => EOS,
            false => token(!(self.0 & ((1 << LENGTH_AT) - 1)), index),
        }
    }
}

/// The model of every simulated device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speaker;

impl Answers for Speaker {
    fn token(&self, seed: u64, index: u32) -> Token {
        Answer(seed).token(index)
    }
}

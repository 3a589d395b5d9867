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
const REPETITION_AT: u32 = 40;
/// Tokens of a passage that an answer repeats.
const RUN: u32 = 16;

/// A scripted answer: a text number, a share of repetition and a length, packed into 64 bits.
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

    /// The answer with this share of its passages, in sixteenths, repeating earlier ones.
    pub fn repeating(self, share: f64) -> Self {
        Self(self.0 | ((share.clamp(0.0, 15.0 / 16.0) * 16.0) as u64) << REPETITION_AT)
    }

    /// Output token `index`.
    pub fn token(self, index: u32) -> Token {
        let length = (self.0 >> LENGTH_AT) as u32;
        if length > 0 && index + 1 >= length {
            return EOS;
        }
        let (text, share) = (!(self.0 & ((1 << LENGTH_AT) - 1)), self.0 >> REPETITION_AT & 15);
        let (mut run, mut draw) = (u64::from(index / RUN), 0);
        let repeats = |run: u64, draw: &mut u64| {
            *draw = mix(text.wrapping_mul(STRIDE) ^ !run);
            run > 0 && *draw >> 60 < share
        };
        while repeats(run, &mut draw) {
            run = draw % run;
        }
        token(text, run as u32 * RUN + index % RUN)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_passages_repeats_earlier_ones() {
        let passages = |share| {
            let answer = Answer::new(7, 0).repeating(share);
            let passage =
                |run: u32| (run * RUN..run * RUN + RUN).map(|i| answer.token(i)).collect::<Vec<_>>();
            (0..400).map(passage).collect::<std::collections::HashSet<_>>().len()
        };
        assert_eq!(passages(0.0), 400);
        assert!((170..230).contains(&passages(0.5)), "{}", passages(0.5));
        assert_eq!(Answer::new(7, 3).repeating(0.5).token(2), EOS);
    }
}

//! DRY ("don't repeat yourself"): penalizes ids that would extend a repetition of earlier tokens.
//! The penalty is exponential in the repetition's length. The algorithm is llama.cpp's.
//!
//! 1. The newest sequence breaker limits how far back the current suffix is compared.
//! 2. The Z-algorithm over the reversed window computes, for each earlier position, the length of
//!    the longest context suffix that also ends there, in linear time.
//! 3. `logit[id] -= multiplier * base^(length - allowed_length)` for each id that followed such a
//!    position, where `length` is the longest of its repetitions.
//!
//! Guarded by `tests/llama_cpp_samplers.rs`.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// `ln(f32::MAX)`: larger exponents overflow.
const LN_MAX: f32 = 88.722_84;

/// Parameters of DRY.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dry {
    /// Scale of the penalty; 0 turns it off.
    pub multiplier: f32,
    /// Base of the exponential, at least 1.
    pub base: f32,
    /// Longest repetition, in tokens, with an exponent of 0; shorter ones are not penalized.
    pub allowed_length: u32,
    /// Number of newest tokens of prompt and output that are searched for repetitions.
    pub last_n: u32,
    /// Sequence breakers: repetitions are not matched across them.
    pub breakers: Breakers,
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: 64, breakers: Breakers::default() }
    }
}

/// Sequence breakers as tokens: a head, and the tail of tokens that must follow it. The tail of a
/// token that contains a whole breaker is empty. Clones share their memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breakers {
    /// `(head, index into tails)`, sorted.
    heads: Arc<[(u32, u32)]>,
    tails: Arc<[Vec<u32>]>,
}

impl Breakers {
    /// Sequence breakers from `(head, index into tails)`; drops heads whose index is out of range.
    pub fn new(mut heads: Vec<(u32, u32)>, tails: Vec<Vec<u32>>) -> Self {
        heads.retain(|(_, tail)| (*tail as usize) < tails.len());
        heads.sort_unstable();
        heads.dedup();
        Self { heads: heads.into(), tails: tails.into() }
    }

    /// The tails of the breakers that begin with this token.
    fn tails_of(&self, head: u32) -> impl Iterator<Item = &[u32]> {
        let from = self.heads.partition_point(|(other, _)| *other < head);
        let own = self.heads[from..].iter().take_while(move |(other, _)| *other == head);
        own.filter_map(|(_, tail)| self.tails.get(*tail as usize)).map(Vec::as_slice)
    }

    /// Number of tokens after the newest breaker of a context, whose tokens are given newest first;
    /// all of them if there is no breaker.
    fn tokens_behind(&self, newest_first: &[u32]) -> usize {
        let follows = |i: usize, tail: &[u32]| {
            tail.len() <= i && tail.iter().zip(newest_first[..i].iter().rev()).all(|(a, b)| a == b)
        };
        let found = newest_first.iter().enumerate().find_map(|(i, head)| {
            let matching = self.tails_of(*head).filter(|tail| follows(i, tail));
            Some(i - matching.map(<[u32]>::len).max()?)
        });
        found.unwrap_or(newest_first.len())
    }

    /// Whether a token contains a whole breaker.
    fn breaks_alone(&self, token: u32) -> bool {
        self.tails_of(token).any(<[u32]>::is_empty)
    }
}

impl Dry {
    /// Applies the penalty; `newest_first` are the tokens of the window, newest first.
    pub fn penalize(&self, logits: &mut [f32], newest_first: &[u32]) {
        let allowed = self.allowed_length as usize;
        if self.multiplier == 0.0 || newest_first.len() <= allowed {
            return;
        }
        let limit = self.breakers.tokens_behind(newest_first);
        if limit < allowed {
            return;
        }
        // Length of the longest repetition that each token would extend.
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        for (position, length) in z_function(newest_first, limit).into_iter().enumerate().skip(1) {
            if length >= allowed {
                let extended = longest.entry(newest_first[position - 1]).or_default();
                *extended = length.max(*extended);
            }
        }
        let most = if self.base > 1.000_001 { (LN_MAX / self.base.ln()) as usize } else { 0 };
        for (token, length) in longest {
            if let Some(logit) = logits.get_mut(token as usize).filter(|_| !self.breakers.breaks_alone(token))
            {
                let exponent = if most > 0 { (length - allowed).min(most) } else { length - allowed };
                *logit -= self.multiplier * self.base.powi(i32::try_from(exponent).unwrap_or(i32::MAX));
            }
        }
    }
}

/// The Z-function of a text, capped at `limit`: for each position, the length of the longest prefix
/// of the text that begins there; 0 for position 0.
fn z_function(text: &[u32], limit: usize) -> Vec<usize> {
    let mut lengths = vec![0; text.len()];
    // The Z-box: text[left..=right] equals a prefix of the text.
    let (mut left, mut right) = (0, 0);
    for position in 1..text.len() {
        if position <= right && lengths[position - left] < right - position + 1 {
            lengths[position] = lengths[position - left].min(limit);
            continue;
        }
        let mut end = if position > right { position } else { right + 1 };
        while end < text.len() && text[end] == text[end - position] {
            end += 1;
        }
        lengths[position] = (end - position).min(limit);
        if end > position {
            (left, right) = (position, end - 1);
        }
    }
    lengths
}

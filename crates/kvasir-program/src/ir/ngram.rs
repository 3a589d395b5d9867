//! [`NgramForm`]: embeddings of hashed n-grams of tokens.

use crate::ir::weight::WeightId;
use serde::{Deserialize, Serialize};

/// Tables and constants of hashed n-gram embeddings.
///
/// With `t[j]` the token `j` positions before the current one, the hash of order `n` (2 to `size`)
/// is the exclusive or of `t[j] * multipliers[j]` for `j < n`, in wrapping signed 64-bit integers.
/// Head `h` of that order reads row `offsets[h] + (hash mod rows[h])`, with a remainder of at least
/// 0. `t[j]` is replaced by `end` if it is before the start of the sequence, or if one of
/// `t[1] .. t[j - 1]` is `end`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NgramForm {
    /// Parts of the table, in order; all but the last have equally many rows.
    pub tables: Vec<WeightId>,
    /// Maximum order.
    pub size: usize,
    /// Heads of each order.
    pub heads: usize,
    /// One multiplier per `t[j]`.
    pub multipliers: Vec<i64>,
    /// Rows of each head, those of order 2 first.
    pub rows: Vec<u32>,
    /// First row of each head.
    pub offsets: Vec<u32>,
    /// The token that ends a segment.
    pub end: u32,
}

impl NgramForm {
    /// The row of each head in the whole table. `recent` is `t`: the current token, then the tokens
    /// before it, the nearest first; `None` is before the start of the sequence.
    pub fn rows_of(&self, recent: &[Option<u32>]) -> Vec<usize> {
        let mut tokens = Vec::with_capacity(self.size);
        let mut has_ended = false;
        for (distance, token) in recent.iter().take(self.size).enumerate() {
            let token = token.filter(|_| !has_ended).unwrap_or(self.end);
            has_ended |= distance > 0 && token == self.end;
            tokens.push(i64::from(token));
        }
        tokens.resize(self.size, i64::from(self.end));
        let hash_of = |order: usize| {
            let products = tokens.iter().zip(&self.multipliers).take(order);
            products.fold(0i64, |hash, (token, multiplier)| hash ^ token.wrapping_mul(*multiplier))
        };
        let hashes = (2..=self.size).flat_map(|order| std::iter::repeat_n(hash_of(order), self.heads));
        hashes
            .zip(self.rows.iter().zip(&self.offsets))
            .map(|(hash, (rows, offset))| {
                *offset as usize + hash.rem_euclid(i64::from(*rows).max(1)) as usize
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::NgramForm;

    fn form() -> NgramForm {
        NgramForm {
            tables: Vec::new(),
            size: 3,
            heads: 1,
            multipliers: vec![3, 5, 1 << 60],
            rows: vec![7, 11],
            offsets: vec![0, 7],
            end: 9,
        }
    }

    #[test]
    fn rows_are_hashes_of_the_last_tokens() {
        let rows = form().rows_of(&[Some(4), Some(2), Some(1)]);
        assert_eq!(rows, [12 ^ 10, 7 + (12 ^ 10 ^ (1usize << 60)) % 11]);
        // The product wraps to a negative number; the remainder does not.
        let hash = 12i64 ^ 10 ^ 8i64.wrapping_mul(1 << 60);
        assert!(hash < 0);
        let rows = form().rows_of(&[Some(4), Some(2), Some(8)]);
        assert_eq!(rows[1], 7 + hash.rem_euclid(11) as usize);
    }

    #[test]
    fn tokens_before_an_end_token_do_not_affect_rows() {
        let form = form();
        let ended = form.rows_of(&[Some(4), Some(9), Some(9)]);
        assert_eq!(form.rows_of(&[Some(4), Some(9), Some(1)]), ended);
        assert_eq!(form.rows_of(&[Some(4), None, None]), ended);
        assert_eq!(form.rows_of(&[Some(4)]), ended);
        // An end token at the current position hides no earlier token.
        assert_ne!(form.rows_of(&[Some(9), Some(2), Some(1)]), form.rows_of(&[Some(9), Some(9), Some(9)]));
    }
}

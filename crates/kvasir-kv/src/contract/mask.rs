//! `Mask`: the attention mask of a batch row; an explicit one is a row of bits per query, 64
//! columns to a word, and this file sets and shifts them.

use serde::{Deserialize, Serialize};

/// Attention mask of a batch row over its read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mask {
    /// Every query sees every entry: a decode row of one query.
    #[default]
    None,
    /// Causal: the queries are the last entries of the read; query `q` of `n` sees all but the last
    /// `n - 1 - q`.
    Causal,
    /// One bit per query and entry: query `q` sees entry `e` if bit `e % 64` of
    /// `mask_words[at + q * words_per_query + e / 64]` is set.
    Explicit {
        /// First word of the row's first query in `Plan::mask_words`.
        at: u32,
        /// Words per query.
        words_per_query: u32,
    },
}

/// Words needed for `columns` mask bits.
pub(crate) fn words_for(columns: u32) -> u32 {
    columns.div_ceil(64)
}

/// Sets the bits `from .. to` of one query's mask row. Bits past the last word are dropped.
pub(crate) fn set_range(words: &mut [u64], from: u32, to: u32) {
    if from >= to {
        return;
    }
    let (first, last) = (from as usize / 64, (to as usize - 1) / 64);
    for (i, word) in words.iter_mut().enumerate().take(last + 1).skip(first) {
        let low = if i == first { from % 64 } else { 0 };
        let high = if i == last { (to - 1) % 64 } else { 63 };
        *word |= (u64::MAX << low) & (u64::MAX >> (63 - high));
    }
}

/// `words |= bits << by`. Bits past the last word are dropped.
pub(crate) fn shift_into(words: &mut [u64], bits: &[u64], by: u32) {
    let (first, up) = (by as usize / 64, by % 64);
    for (i, &part) in bits.iter().enumerate() {
        let parts = [part << up, part.checked_shr(64 - up).unwrap_or(0)];
        words.iter_mut().skip(first + i).zip(parts).for_each(|(word, part)| *word |= part);
    }
}

#[cfg(test)]
mod tests {
    use crate::contract::mask::*;

    #[test]
    fn set_range_sets_no_other_bits() {
        for (from, to) in [(0, 0), (0, 1), (0, 64), (3, 61), (63, 65), (64, 128), (5, 190), (191, 192)] {
            let mut words = [0; 3];
            set_range(&mut words, from, to);
            for bit in 0..192 {
                let set = words[bit as usize / 64] >> (bit % 64) & 1 == 1;
                assert_eq!(set, (from..to).contains(&bit), "bit {bit} of {from}..{to}");
            }
        }
    }

    #[test]
    fn shifts_move_every_bit() {
        let bits = [0x8000_0000_0000_0001_u64, 0x5];
        for by in [0, 1, 63, 64, 65, 127, 128] {
            let mut words = [0; 5];
            shift_into(&mut words, &bits, by);
            for column in 0..words.len() as u32 * 64 {
                let set = |words: &[u64], bit: u32| words[bit as usize / 64] >> (bit % 64) & 1 == 1;
                let wanted = column.checked_sub(by).is_some_and(|bit| bit < 128 && set(&bits, bit));
                assert_eq!(set(&words, column), wanted, "column {column}, shifted by {by}");
            }
        }
    }
}

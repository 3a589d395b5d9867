//! [`TextPair`]: two texts as one token sequence, for cross-encoders.

use crate::error::{Error, Result};

/// Two texts joined by the tokenizer's template, such as `[CLS] A [SEP] B [SEP]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPair {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Index of the first token of token type 1; 0 if the template has no token types.
    pub second_text_start: u32,
}

/// Lengths of two texts after truncation, so that the pair has at most `max_tokens` tokens with the
/// `special` tokens of its template. Fails if those alone exceed `max_tokens`.
pub(super) fn truncated_lengths(
    lengths: [usize; 2],
    special: usize,
    max_tokens: usize,
) -> Result<[usize; 2]> {
    let available = max_tokens.checked_sub(special).ok_or_else(|| {
        let why = format!("the {special} special tokens of a pair exceed the limit of {max_tokens} tokens");
        Error::at("encoding", why)
    })?;
    Ok(longest_first(lengths, available))
}

/// Lengths of two texts after truncation to `max_tokens` tokens in total, as the strategy
/// `longest_first` of `tokenizers`: the longer text is truncated first, then both to equal lengths.
fn longest_first([a, b]: [usize; 2], max_tokens: usize) -> [usize; 2] {
    if a.saturating_add(b) <= max_tokens {
        return [a, b];
    }
    let half = max_tokens / 2;
    if a.min(b) <= half {
        return if a <= b { [a, max_tokens - a] } else { [max_tokens - b, b] };
    }
    if a <= b { [half, max_tokens - half] } else { [max_tokens - half, half] }
}

#[cfg(test)]
mod tests {
    use super::longest_first;

    #[test]
    fn the_longer_text_is_truncated_first() {
        for (lengths, max_tokens, expected) in [
            ([3, 4], 7, [3, 4]),
            ([3, 40], 10, [3, 7]),
            ([40, 3], 10, [7, 3]),
            ([40, 50], 11, [5, 6]),
            ([50, 40], 11, [6, 5]),
            ([9, 9], 0, [0, 0]),
        ] {
            assert_eq!(longest_first(lengths, max_tokens), expected, "{lengths:?} to {max_tokens}");
        }
    }
}

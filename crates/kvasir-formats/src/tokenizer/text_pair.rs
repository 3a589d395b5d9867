//! [`TextPair`]: two texts as one token sequence, for cross-encoders.

/// Two texts joined by the tokenizer's template, such as `[CLS] A [SEP] B [SEP]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPair {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Index of the first token of type 1; 0 if the template has one type only.
    pub second_text: u32,
}

/// Lengths of two texts that together have at most `most` tokens: the longer one is truncated first,
/// then both to equal lengths.
pub(super) fn longest_first([a, b]: [usize; 2], most: usize) -> [usize; 2] {
    if a.saturating_add(b) <= most {
        return [a, b];
    }
    let half = most / 2;
    if a.min(b) <= half {
        return if a <= b { [a, most - a] } else { [most - b, b] };
    }
    if a <= b { [half, most - half] } else { [most - half, half] }
}

#[cfg(test)]
mod tests {
    use super::longest_first;

    #[test]
    fn the_longer_text_is_truncated_first() {
        for (lengths, most, expected) in [
            ([3, 4], 7, [3, 4]),
            ([3, 40], 10, [3, 7]),
            ([40, 3], 10, [7, 3]),
            ([40, 50], 11, [5, 6]),
            ([50, 40], 11, [6, 5]),
            ([9, 9], 0, [0, 0]),
        ] {
            assert_eq!(longest_first(lengths, most), expected, "{lengths:?} of {most}");
        }
    }
}

//! Bits of explicit masks, 64 to a word.

/// Words that `columns` bits take.
pub(crate) fn words_for(columns: u32) -> u32 {
    columns.div_ceil(64)
}

/// Sets the bits `from .. to` of one query's words. Bits past the last word are left out.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_sets_its_own_bits_only() {
        for (from, to) in [(0, 0), (0, 1), (0, 64), (3, 61), (63, 65), (64, 128), (5, 190), (191, 192)] {
            let mut words = [0; 3];
            set_range(&mut words, from, to);
            for bit in 0..192 {
                let set = words[bit as usize / 64] >> (bit % 64) & 1 == 1;
                assert_eq!(set, (from..to).contains(&bit), "bit {bit} of {from}..{to}");
            }
        }
    }
}

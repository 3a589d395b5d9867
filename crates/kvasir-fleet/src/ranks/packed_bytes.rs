//! Byte strings in the words of a record: the length in bytes, then four bytes per word,
//! little-endian.

/// Appends the encoding of `bytes` to `into`.
pub(crate) fn encode_bytes(bytes: &[u8], into: &mut Vec<u32>) {
    into.push(bytes.len() as u32);
    into.extend(bytes.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(word)
    }));
}

/// Decodes a byte string; `None` if there are too few words.
pub(crate) fn decode_bytes(words: &[u32]) -> Option<Vec<u8>> {
    let (length, words) = words.split_first()?;
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.get(..*length as usize)?;
    bytes.truncate(*length as usize);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_encoding() {
        for length in 0..9_u8 {
            let (bytes, mut words) = ((0..length).collect::<Vec<_>>(), Vec::new());
            encode_bytes(&bytes, &mut words);
            assert_eq!(decode_bytes(&words), Some(bytes));
        }
        assert_eq!((decode_bytes(&[]), decode_bytes(&[5, 0])), (None, None));
    }
}

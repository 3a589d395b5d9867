//! Bytes as words of a record: their number, then four to a word.

/// Appends bytes.
pub(crate) fn pack(bytes: &[u8], into: &mut Vec<u32>) {
    into.push(bytes.len() as u32);
    into.extend(bytes.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(word)
    }));
}

/// The bytes that words hold; `None` if there are too few words.
pub(crate) fn unpack(words: &[u32]) -> Option<Vec<u8>> {
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
    fn bytes_survive_packing() {
        for length in 0..9_u8 {
            let (bytes, mut words) = ((0..length).collect::<Vec<_>>(), Vec::new());
            pack(&bytes, &mut words);
            assert_eq!(unpack(&words), Some(bytes));
        }
        assert_eq!((unpack(&[]), unpack(&[5, 0])), (None, None));
    }
}

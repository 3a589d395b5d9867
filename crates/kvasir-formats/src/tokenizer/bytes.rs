//! GPT-2's byte-to-unicode mapping for byte-level BPE: printable bytes map to themselves, others to
//! U+0100 and up.

/// Whether a byte maps to the character of the same code.
fn is_plain(b: u8) -> bool {
    matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The character of each byte.
pub(super) fn byte_chars() -> [char; 256] {
    let (mut out, mut next) = (['\0'; 256], 0x100);
    for b in 0..=255u8 {
        out[usize::from(b)] = if is_plain(b) {
            char::from(b)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or('\0')
        };
    }
    out
}

/// The byte of a mapped character.
pub(super) fn char_byte(c: char) -> Option<u8> {
    let n = u32::from(c);
    match u8::try_from(n) {
        Ok(b) => is_plain(b).then_some(b),
        Err(_) => (0..=255u8).filter(|&b| !is_plain(b)).nth(usize::try_from(n - 0x100).ok()?),
    }
}

/// The bytes of a byte-level token's spelling; `None` if a character maps to no byte.
pub(super) fn decode_spelling(spelling: &str) -> Option<Vec<u8>> {
    spelling.chars().map(char_byte).collect()
}

/// The byte of a byte-fallback token such as `<0x0A>`.
pub(super) fn byte_token(spelling: &str) -> Option<u8> {
    let hex = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would accept a sign.
    let two_digits = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    if two_digits { u8::from_str_radix(hex, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_maps_to_a_character_and_back() {
        for (b, c) in byte_chars().into_iter().enumerate() {
            assert_eq!(char_byte(c).map(usize::from), Some(b), "{c:?}");
        }
        assert_eq!(byte_chars()[usize::from(b' ')], 'Ġ');
        assert_eq!(char_byte('\u{144}'), None);
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!(byte_token("<0x+A>"), None);
    }
}

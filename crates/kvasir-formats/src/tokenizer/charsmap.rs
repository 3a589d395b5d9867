//! Validates the character map (double-array trie) of a SentencePiece `Precompiled` normalizer.
//!
//! The library that walks the trie trusts it, so all reachable nodes and values are checked here.
//!
//! Layout: trie length, the trie as 32-bit units, then zero-terminated replacement texts. A unit
//! holds its label byte, the offset of its children, and whether a value is among them.

use std::collections::VecDeque;

/// Maximum expansion factor of a replacement. The longest published one yields 33 bytes from 3.
const MAX_EXPANSION: usize = 16;

/// Decodes a base64 map and validates that no walk leaves it.
pub(crate) fn checked(base64: &str) -> Result<Vec<u8>, String> {
    let bytes = decode(base64).ok_or("is no base64")?;
    let (size, rest) = bytes.split_first_chunk::<4>().ok_or("is empty")?;
    let size = u32::from_le_bytes(*size) as usize;
    let trie = rest.get(..size).filter(|_| size.is_multiple_of(4)).ok_or("is shorter than it says")?;
    let units: Vec<u32> = trie.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
    let texts = str::from_utf8(&rest[size..]).map_err(|_| "has texts that are not UTF-8")?;
    walk(&units, texts)?;
    Ok(bytes)
}

fn walk(units: &[u32], texts: &str) -> Result<(), String> {
    let children = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
    let root = units.first().ok_or("has an empty trie")?;
    let mut seen = vec![false; units.len()];
    // Offset of a node's children, and its depth in bytes.
    let mut open = VecDeque::from([(children(*root), 0)]);
    while let Some((base, depth)) = open.pop_front() {
        if base | 0xff >= units.len() {
            return Err(format!("refers to unit {} of {}", base | 0xff, units.len()));
        }
        for byte in 1..=0xff {
            let (at, unit) = (base ^ byte, units[base ^ byte]);
            // Breadth first: a node seen again is reached by a path that is no shorter.
            if unit & (1 << 31 | 0xff) != byte as u32 || std::mem::replace(&mut seen[at], true) {
                continue;
            }
            let base = at ^ children(unit);
            if unit >> 8 & 1 == 1 {
                let value = units.get(base).ok_or("has a value outside")? & !(1 << 31);
                let text = texts.get(value as usize..).ok_or_else(|| format!("has no text at {value}"))?;
                let length = text.find('\0').unwrap_or(text.len());
                if length > MAX_EXPANSION * (depth + 1) {
                    return Err(format!("makes {length} bytes of {}", depth + 1));
                }
            }
            open.push_back((base, depth + 1));
        }
    }
    Ok(())
}

/// Standard base64 with required padding; trailing bits of the last byte are ignored.
fn decode(base64: &str) -> Option<Vec<u8>> {
    let lenient = base64::STANDARD.decode_allow_trailing_bits(true);
    base64::decode_config(base64, lenient).ok().filter(|_| base64.len().is_multiple_of(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decodes_the_standard_examples() {
        for (text, base64) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(decode(base64).unwrap(), text.as_bytes());
        }
        assert_eq!(["Zg", "Zg=", "Z===", "Zm9*"].map(decode), [const { None }; 4]);
    }

    #[test]
    fn character_maps_with_bad_offsets_are_refused() {
        // The root's children start at unit 256 and include `a`. The children of `a` start at 512;
        // the first is the value.
        let map = |children: u32, value: u32, texts: &str| {
            let mut units = vec![0u32; 768];
            units[0] = 256 << 10;
            units[256 ^ 0x61] = (children ^ 256 ^ 0x61) << 10 | 1 << 8 | 0x61;
            units[children as usize % 768] = 1 << 31 | value;
            walk(&units, texts)
        };
        assert_eq!(map(512, 0, "bc\0d\0"), Ok(()));
        assert!(map(512, 9, "bc\0d\0").unwrap_err().contains("no text at 9"));
        assert!(map(1024, 0, "bc\0").unwrap_err().contains("outside"));
        assert!(map(512, 0, &"b".repeat(17)).unwrap_err().contains("makes 17 bytes of 1"));
        assert!(walk(&[0; 255], "").unwrap_err().contains("refers to unit 255 of 255"));
        assert!(checked("AAAA").is_err() && checked("/////w==").is_err());
    }
}

//! [`ByteSize`]: a size in bytes, written as a number with a unit: `1000000`, `512MB`, `2GiB`.

use serde::{Deserialize, Deserializer, Serialize, de};

/// Units, each with its number of bytes.
const UNITS: [(&str, u64); 9] = [
    ("", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct ByteSize(u64);

impl ByteSize {
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    /// Parses `NUMBER[UNIT]`. The number may have a fraction. The unit is case-insensitive, and its
    /// final `B` is optional.
    fn parse(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a size like 1000000, 512MB or 2GiB");
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim_start();
        let is_unit = |name: &str| {
            name.eq_ignore_ascii_case(unit)
                || name.strip_suffix('B').is_some_and(|short| short.eq_ignore_ascii_case(unit))
        };
        let (_, scale) = UNITS.iter().find(|(name, _)| is_unit(name)).ok_or_else(invalid)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(*scale).map(Self).ok_or_else(|| format!("`{text}` is too large"));
        }
        let bytes = number.parse::<f64>().map_err(|_| invalid())? * *scale as f64;
        if bytes < u64::MAX as f64 { Ok(Self(bytes as u64)) } else { Err(format!("`{text}` is too large")) }
    }
}

/// Accepts an integer number of bytes, or a string with a unit.
impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum BytesOrText {
            Bytes(u64),
            Text(String),
        }
        match BytesOrText::deserialize(deserializer)? {
            BytesOrText::Bytes(bytes) => Ok(Self(bytes)),
            BytesOrText::Text(text) => Self::parse(&text).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_and_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("1234", 1234),
            ("512MB", 512_000_000),
            ("512m", 512_000_000),
            ("2GiB", 2 << 30),
            ("2gi", 2 << 30),
            ("1.5 GB", 1_500_000_000),
            (".5KiB", 512),
        ] {
            assert_eq!(ByteSize::parse(text), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "GB", "-1", "1e9", "1..5", "2 GBs", "18446744073709551616", "20000000TB", "1 TB2"] {
            assert!(ByteSize::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn json_numbers_and_strings_are_sizes() {
        let parse = |json: &str| serde_json::from_str::<ByteSize>(json).ok();
        assert_eq!([parse("5"), parse("\"5kB\"")], [Some(ByteSize(5)), Some(ByteSize(5000))]);
        assert_eq!([parse("-5"), parse("1.5"), parse("\"x\"")], [None; 3]);
        assert_eq!(serde_json::to_string(&ByteSize(5)).unwrap(), "5");
    }
}

//! A compact string table with lookup by index and by text, for vocabularies and merge lists.

use crate::error::{Error, Result};
use crate::gguf::value::Array;
use std::hash::{BuildHasher, RandomState};

/// An indexed string list with an open-addressing hash table.
///
/// All texts share one buffer and the table holds indices only: 150,000 tokens load in a few
/// milliseconds.
#[derive(Debug)]
pub(super) struct StringTable {
    text: String,
    /// End offset of each text.
    ends: Vec<u32>,
    /// Index plus one at the text's hash slot (linear probing); 0 is empty.
    table: Vec<u32>,
    /// Keyed hashing, so that a file cannot force collisions.
    hashes: RandomState,
}

impl StringTable {
    /// Builds the table from an array; of equal strings the first is found. `check` validates each
    /// string.
    pub(super) fn of(list: &Array, check: impl Fn(usize, &str) -> Result<()>) -> Result<Self> {
        let mut out =
            Self { text: String::new(), ends: Vec::new(), table: Vec::new(), hashes: RandomState::new() };
        out.ends.reserve(list.len());
        for (i, text) in list.strings().enumerate() {
            let text = text?;
            check(i, text)?;
            out.text.push_str(text);
            let end = u32::try_from(out.text.len());
            out.ends.push(end.map_err(|_| Error::at("", "more than four gigabytes of strings"))?);
        }
        out.table.resize((out.ends.len() * 2).next_power_of_two().max(2), 0);
        for i in 0..out.ends.len() {
            let place = out.get(i as u32).and_then(|text| out.place(text).err());
            if let Some(place) = place.and_then(|place| out.table.get_mut(place)) {
                *place = i as u32 + 1;
            }
        }
        Ok(out)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text at index `i`.
    pub(super) fn get(&self, i: u32) -> Option<&str> {
        let i = i as usize;
        let end = *self.ends.get(i)? as usize;
        let start = i.checked_sub(1).and_then(|i| self.ends.get(i)).map_or(0, |start| *start as usize);
        self.text.get(start..end)
    }

    /// All texts in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len() as u32).map_while(|i| self.get(i))
    }

    /// Index of a text.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.place(text).ok()
    }

    /// Index of a text, or the empty slot where it would be inserted.
    fn place(&self, text: &str) -> std::result::Result<u32, usize> {
        let last = self.table.len() - 1;
        // At most half of the table is used, so probing terminates.
        let mut place = self.hashes.hash_one(text) as usize & last;
        loop {
            match self.table[place].checked_sub(1) {
                None => return Err(place),
                Some(i) if self.get(i) == Some(text) => return Ok(i),
                Some(_) => place = (place + 1) & last,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use kvasir_testkit::Random;

    #[test]
    fn lookups_agree_with_a_map() {
        let mut random = Random::new(7);
        for n in [0u64, 1, 2, 3, 700] {
            let texts: Vec<String> = (0..n).map(|_| format!("{:x}", random.below(n * 2))).collect();
            let list = Array::of_strings(texts.iter().map(String::as_str));
            let strings = StringTable::of(&list, |_, _| Ok(())).unwrap();
            assert_eq!(strings.len(), texts.len());
            assert!(strings.iter().eq(texts.iter()));
            for wanted in (0..n * 2 + 1).map(|i| format!("{i:x}")).chain([String::new()]) {
                let first = texts.iter().position(|text| *text == wanted).map(|i| i as u32);
                assert_eq!(strings.find(&wanted), first, "{wanted}");
            }
            assert_eq!(strings.get(n as u32), None);
        }
    }

    #[test]
    fn a_failed_check_fails_the_table() {
        let list = Array::of_strings(["a", "b"]);
        let refused = StringTable::of(&list, |i, _| if i == 1 { Err(Error::at("b", "no")) } else { Ok(()) });
        assert_eq!(refused.unwrap_err().place(), "b");
    }
}

use crate::{Error, Result, gguf::Array};
use std::hash::{BuildHasher, RandomState};

/// A list of texts, found by number and by text. A vocabulary of 150,000 tokens is ready in a few milliseconds: the texts lie
/// in one string, and the table holds numbers only.
#[derive(Debug)]
pub(super) struct Spellings {
    text: String,
    /// Where each text ends.
    ends: Vec<u32>,
    /// Numbers plus one, at the place that the text's hash says or the next free one after it; 0 is free.
    table: Vec<u32>,
    /// Keyed, so that no file can choose texts that meet at one place.
    hashes: RandomState,
}

impl Spellings {
    /// The strings of an array; of equal ones the first is found by its text. `check` looks at each.
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

    /// Text number `i`.
    pub(super) fn get(&self, i: u32) -> Option<&str> {
        let i = i as usize;
        let end = *self.ends.get(i)? as usize;
        let start = i.checked_sub(1).and_then(|i| self.ends.get(i)).map_or(0, |start| *start as usize);
        self.text.get(start..end)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len() as u32).map_while(|i| self.get(i))
    }

    /// The number of a text.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        self.place(text).ok()
    }

    /// The number of a text, or the free place where it would be.
    fn place(&self, text: &str) -> std::result::Result<u32, usize> {
        let last = self.table.len() - 1;
        // The table is twice as long as the list: there is always a free place.
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

    #[test]
    fn texts_are_found_as_in_a_map() {
        let mut seed = 7u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for n in [0u64, 1, 2, 3, 700] {
            let texts: Vec<String> = (0..n).map(|_| format!("{:x}", random(n * 2))).collect();
            let list = Array::of_strings(texts.iter().map(String::as_str));
            let spellings = Spellings::of(&list, |_, _| Ok(())).unwrap();
            assert_eq!(spellings.len(), texts.len());
            assert!(spellings.iter().eq(texts.iter()));
            for wanted in (0..n * 2 + 1).map(|i| format!("{i:x}")).chain([String::new()]) {
                let first = texts.iter().position(|text| *text == wanted).map(|i| i as u32);
                assert_eq!(spellings.find(&wanted), first, "{wanted}");
            }
            assert_eq!(spellings.get(n as u32), None);
        }
    }

    #[test]
    fn what_a_check_refuses_is_refused() {
        let list = Array::of_strings(["a", "b"]);
        let refused = Spellings::of(&list, |i, _| if i == 1 { Err(Error::at("b", "no")) } else { Ok(()) });
        assert_eq!(refused.unwrap_err().place(), "b");
    }
}

//! `SeqTable`: a slab of live sequences with generational ids.
//!
//! An entry is reused, its id never: `SeqId` = (index, use count). The value outlives its sequence
//! so that its allocations serve the next one. The closing cache must empty it.

use crate::contract::error::CacheError;
use crate::contract::ids::SeqId;

/// The id fields come first, beside the value's hot fields.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
struct Entry<T> {
    uses: u32,
    live: bool,
    value: T,
}

/// The live sequences of a cache: a slab whose entries are reused under ids that are not. The cache
/// that closes a sequence must empty its value first.
#[derive(Clone, Debug)]
pub struct SeqTable<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    live: u32,
    limit: u32,
}

impl<T: Default> SeqTable<T> {
    /// A table that holds at most `limit` live sequences.
    pub fn new(limit: u32) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), live: 0, limit }
    }

    /// Opens a sequence; its value is as the entry's last user left it, or the default.
    pub fn open(&mut self) -> Result<SeqId, CacheError> {
        if self.live >= self.limit {
            return Err(CacheError::TooManySequences);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.entries.len()).map_err(|_| CacheError::TooManySequences)?;
                self.entries.push(Entry::default());
                index
            }
        };
        let entry = self.entries.get_mut(index as usize).ok_or(CacheError::TooManySequences)?;
        entry.live = true;
        entry.uses += 1;
        self.live += 1;
        Ok(SeqId::new(index, entry.uses))
    }

    /// Closes a sequence; its value stays in the entry for reuse.
    pub fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        let entry = self.entries.get_mut(seq.index()).filter(|entry| entry.is(seq));
        let entry = entry.ok_or(CacheError::UnknownSequence(seq))?;
        entry.live = false;
        self.live -= 1;
        // An entry whose use count is exhausted is retired, so that no id is issued twice.
        if entry.uses < u32::MAX {
            self.free.push(seq.index() as u32);
        }
        Ok(())
    }

    /// Number of live sequences.
    pub fn len(&self) -> u32 {
        self.live
    }

    /// Whether no sequence is live.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Number of sequences that can still be opened.
    pub fn remaining(&self) -> u32 {
        self.limit - self.live
    }

    /// The value of a live sequence; `UnknownSequence` for closed and foreign ids.
    pub fn get(&self, seq: SeqId) -> Result<&T, CacheError> {
        match self.entries.get(seq.index()) {
            Some(entry) if entry.is(seq) => Ok(&entry.value),
            _ => Err(CacheError::UnknownSequence(seq)),
        }
    }

    /// The value of a live sequence, mutable.
    pub fn get_mut(&mut self, seq: SeqId) -> Result<&mut T, CacheError> {
        match self.entries.get_mut(seq.index()) {
            Some(entry) if entry.is(seq) => Ok(&mut entry.value),
            _ => Err(CacheError::UnknownSequence(seq)),
        }
    }

    /// The values of the live sequences, mutable.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter(|entry| entry.live).map(|entry| &mut entry.value)
    }

    /// The live sequences, in order of table index.
    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &T)> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.live);
        live.map(|(index, entry)| (SeqId::new(index as u32, entry.uses), &entry.value))
    }
}

impl<T> Entry<T> {
    fn is(&self, seq: SeqId) -> bool {
        self.live && self.uses == seq.use_count()
    }
}

#[cfg(test)]
mod tests {
    use crate::shared::sequence_table::*;

    #[test]
    fn entries_are_reused_but_ids_are_not() {
        let mut table = SeqTable::<Vec<u32>>::new(2);
        let a = table.open().unwrap();
        table.get_mut(a).unwrap().push(1);
        table.close(a).unwrap();
        let b = table.open().unwrap();
        assert_eq!(a.index(), b.index());
        assert_ne!(a, b);
        assert_eq!(table.get(a), Err(CacheError::UnknownSequence(a)));
        assert_eq!(table.close(a), Err(CacheError::UnknownSequence(a)));
        assert_eq!(table.get(b).unwrap(), &[1], "the memory stays for the next user to empty");
    }

    #[test]
    fn a_full_table_refuses_and_exhausted_entries_are_retired() {
        let mut table = SeqTable::<()>::new(1);
        let a = table.open().unwrap();
        assert_eq!(table.open(), Err(CacheError::TooManySequences));
        table.close(a).unwrap();
        table.entries[0].uses = u32::MAX - 1;
        let last = table.open().unwrap();
        assert_eq!(last.use_count(), u32::MAX);
        table.close(last).unwrap();
        let next = table.open().unwrap();
        assert_eq!((next.index(), next.use_count()), (1, 1));
        assert_eq!(table.iter().map(|(seq, ())| seq).collect::<Vec<_>>(), [next]);
    }
}

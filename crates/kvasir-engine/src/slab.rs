use crate::{RequestId, Sequence};

/// The table of live sequences. Entries are used again; ids are not.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    /// Its id is [`VACANT`] in an entry that nobody has.
    sequence: Sequence,
    use_count: u32,
}

const VACANT: RequestId = RequestId(u64::MAX);

impl Slab {
    /// Puts `sequence` in and gives it its id.
    pub(crate) fn insert(&mut self, mut sequence: Sequence) -> u32 {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(index as usize) {
            Some(entry) => {
                entry.use_count += 1;
                sequence.id = RequestId::new(index, entry.use_count);
                entry.sequence = sequence;
            }
            None => {
                sequence.id = RequestId::new(index, 0);
                self.entries.push(Entry { use_count: 0, sequence });
            }
        }
        index
    }

    /// Takes entry `index` out.
    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize).filter(|entry| entry.sequence.id != VACANT)
        {
            entry.sequence = Sequence { id: VACANT, ..Sequence::default() };
            self.free.push(index);
        }
    }

    /// The entry that `id` names, unless it is gone.
    pub(crate) fn find(&self, id: RequestId) -> Option<u32> {
        let entry = self.entries.get(id.index() as usize)?;
        (entry.sequence.id == id && id != VACANT).then_some(id.index())
    }

    /// Looks at the memory that a new token of each of these goes to, so that the waiting for it overlaps.
    pub(crate) fn touch(&self, ids: impl Iterator<Item = RequestId>) {
        for id in ids {
            let entry = self.entries.get(id.index() as usize);
            std::hint::black_box(entry.and_then(|entry| entry.sequence.tokens.last()).copied());
        }
    }

    /// Live sequences with their entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Sequence)> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.sequence.id != VACANT);
        live.map(|(index, entry)| (index as u32, &entry.sequence))
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Sequence;
    fn index(&self, index: u32) -> &Sequence {
        &self.entries[index as usize].sequence
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, index: u32) -> &mut Sequence {
        &mut self.entries[index as usize].sequence
    }
}

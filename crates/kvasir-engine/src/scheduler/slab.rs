//! Slab of live sequences, addressed by table index. Ids carry a generation counter (use count), so
//! a stale `RequestId` finds nothing.

use crate::request::ids::RequestId;
use crate::request::sequence::Sequence;

/// The table of live sequences. Entries are reused; ids are never reissued.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    /// A vacant entry has the id `VACANT`.
    entries: Vec<Sequence>,
    uses: Vec<u32>,
    free: Vec<u32>,
}

const VACANT: RequestId = RequestId(u64::MAX);

impl Slab {
    pub(crate) fn insert(&mut self, mut sequence: Sequence) -> u32 {
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.uses.get_mut(index as usize) {
            Some(uses) => {
                *uses += 1;
                sequence.id = RequestId::new(index, *uses);
                self.entries[index as usize] = sequence;
            }
            None => {
                sequence.id = RequestId::new(index, 0);
                self.uses.push(0);
                self.entries.push(sequence);
            }
        }
        index
    }

    /// Vacates entry `index`; does nothing if it is vacant.
    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize).filter(|entry| entry.id != VACANT) {
            *entry = Sequence { id: VACANT, ..Sequence::default() };
            self.free.push(index);
        }
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<u32> {
        let entry = self.entries.get(id.index() as usize)?;
        (entry.id == id && id != VACANT).then_some(id.index())
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut Sequence> {
        self.entries.get_mut(id.index() as usize).filter(|entry| entry.id == id && id != VACANT)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Sequence)> {
        let live = self.entries.iter().enumerate().filter(|(_, entry)| entry.id != VACANT);
        live.map(|(index, entry)| (index as u32, entry))
    }
}

impl std::ops::Index<u32> for Slab {
    type Output = Sequence;
    fn index(&self, index: u32) -> &Sequence {
        &self.entries[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Slab {
    fn index_mut(&mut self, index: u32) -> &mut Sequence {
        &mut self.entries[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::Request;

    #[test]
    fn reused_entries_invalidate_old_ids() {
        let mut slab = Slab::default();
        let one = || Sequence::new(Request::default());
        let first = slab.insert(one());
        let old = slab[first].id;
        slab.insert(one());
        slab.remove(first);
        slab.remove(first);
        assert_eq!((slab.find(old), slab.iter().count()), (None, 1));
        assert_eq!(slab.insert(one()), first, "the entry is free");
        assert_ne!(slab[first].id, old);
        assert!(slab.find(old).is_none() && slab.get_mut(old).is_none());
        assert_eq!(slab.insert(one()), 2, "an entry that was freed twice is given once");
    }
}

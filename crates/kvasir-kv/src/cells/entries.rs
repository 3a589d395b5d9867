//! `Entries`: the cells one sequence owns, in order of position: an ordered map from positions to
//! slots.
//!
//! Slots are a flat list; positions are stored as breaks where a run of consecutive positions
//! begins, so a sequence without holes has one break. Appending and slicing are the hot operations.
//! The property tests compare it with a `BTreeMap`.

use crate::contract::ids::{Position, Slot};
use crate::shared::tail_buffered::TailBuffered;
use std::ops::Range;

/// Begin of a run of consecutive positions: entry index and first position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Break {
    index: u32,
    first: Position,
}

/// The cells that one sequence owns, in order of position.
///
/// This inverts the owner set per cell (llama.cpp): a list per sequence and a count per cell. A
/// decode step appends to it, a plan copies a slice of it, and any number of sequences may own a
/// cell.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Entries {
    // Hot fields first, in one cache line.
    /// Copy of the last of `breaks`, to avoid a heap access.
    last: Break,
    /// The first slot.
    first: Slot,
    /// Number of leading slots that are consecutive.
    lead: u32,
    /// Counts edits other than growth at the end.
    changes: u32,
    slots: TailBuffered,
    /// One per run of consecutive positions; more than one if a removal or a copy left holes.
    breaks: Vec<Break>,
}

/// Equal if they own the same positions and slots.
impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        (&self.slots, &self.breaks, self.lead) == (&other.slots, &other.breaks, other.lead)
    }
}

impl Entries {
    /// Reserves host memory for a sequence that may grow to `len`.
    pub(crate) fn reserve(&mut self, len: usize) {
        self.slots.reserve(len.saturating_sub(self.slots.len() as usize));
    }

    pub(crate) fn len(&self) -> u32 {
        self.slots.len()
    }

    /// The slots as heap and inline parts.
    pub(crate) fn slots(&self) -> &TailBuffered {
        &self.slots
    }

    /// The first slot.
    pub(crate) fn first(&self) -> Slot {
        self.first
    }

    /// Counter of edits other than growth at the end.
    pub(crate) fn changes(&self) -> u32 {
        self.changes
    }

    /// Number of leading slots that are consecutive.
    pub(crate) fn lead(&self) -> u32 {
        self.lead
    }

    /// Position of the first entry of the last run.
    pub(crate) fn first_position(&self) -> Position {
        self.last.first
    }

    /// Whether its positions are one run, without holes behind the first entry.
    pub(crate) fn is_one_run(&self) -> bool {
        self.last.index == 0
    }

    /// Position after the highest owned one.
    pub(crate) fn next_position(&self) -> Position {
        self.last.first + (self.len() - self.last.index)
    }

    /// Position of entry `index`.
    pub(crate) fn position(&self, index: u32) -> Position {
        if index >= self.last.index {
            return self.last.first + (index - self.last.index);
        }
        let after = self.breaks.partition_point(|b| b.index <= index);
        after.checked_sub(1).map_or(0, |i| self.breaks[i].first + (index - self.breaks[i].index))
    }

    /// Number of entries with a position below `position`.
    pub(crate) fn index_of(&self, position: Position) -> u32 {
        if position >= self.last.first {
            return self.len().min(self.last.index.saturating_add(position - self.last.first));
        }
        let after = self.breaks.partition_point(|b| b.first <= position);
        let Some(run) = after.checked_sub(1).map(|i| self.breaks[i]) else { return 0 };
        let end = self.breaks.get(after).map_or(self.len(), |next| next.index);
        end.min(run.index.saturating_add(position - run.first))
    }

    /// The runs of consecutive positions in a range of entries: (first position, entries).
    pub(crate) fn runs(&self, entries: Range<u32>) -> impl Iterator<Item = (Position, Range<u32>)> + '_ {
        let runs = if entries.start >= self.last.index {
            std::slice::from_ref(&self.last)
        } else {
            let from = self.breaks.partition_point(|b| b.index <= entries.start);
            &self.breaks[from.saturating_sub(1)..]
        };
        let (start, stop) = (entries.start, entries.end);
        runs.iter()
            .enumerate()
            .map(move |(i, run)| {
                let end = runs.get(i + 1).map_or(self.len(), |next| next.index);
                let range = run.index.max(start)..end.min(stop);
                (run.first + (range.start - run.index), range)
            })
            .take_while(|(_, range)| !range.is_empty())
    }

    /// Appends a slot at the next position.
    pub(crate) fn push(&mut self, slot: Slot) {
        self.push_at(self.next_position(), slot);
    }

    /// Appends a slot at `position`, which must be above all others.
    #[inline]
    pub(crate) fn push_at(&mut self, position: Position, slot: Slot) {
        let len = self.len();
        if len == 0 || position != self.next_position() {
            self.begin_run(position, slot);
        }
        if self.lead == len && self.first + len == slot {
            self.lead += 1;
        }
        self.slots.push(slot);
    }

    /// Begins a new run of positions with the next entry.
    #[cold]
    fn begin_run(&mut self, position: Position, slot: Slot) {
        self.last = Break { index: self.len(), first: position };
        self.breaks.push(self.last);
        if self.len() == 0 {
            self.first = slot;
        }
    }

    /// Removes a range of entries and passes each of its slots to `gone`.
    pub(crate) fn remove(&mut self, entries: Range<u32>, gone: impl FnMut(Slot)) {
        if entries.is_empty() {
            return;
        }
        let (start, end, len) = (entries.start, entries.end, self.len());
        let removed = end - start;
        self.changes = self.changes.wrapping_add(1);
        let rest = (end < len).then(|| Break { index: start, first: self.position(end) });
        self.slots.edit(|slots| slots.drain(start as usize..end as usize).for_each(gone));
        // Breaks inside the removed range go, later ones move down, and what follows begins a new
        // run.
        let inside = self.breaks.partition_point(|b| b.index < start);
        let behind = self.breaks.partition_point(|b| b.index <= end);
        for b in &mut self.breaks[behind..] {
            b.index -= removed;
        }
        self.breaks.splice(inside..behind, rest);
        self.last = self.breaks.last().copied().unwrap_or_default();
        match rest {
            Some(_) if self.lead >= start => self.find_lead(),
            _ => self.lead = self.lead.min(start),
        }
    }

    /// Merges in a range of another sequence's entries; none of their positions may be owned.
    pub(crate) fn merge(&mut self, other: &Self, entries: Range<u32>) {
        let append = entries.is_empty() || self.next_position() <= other.position(entries.start);
        let tail = if append {
            Self::default()
        } else {
            self.split_off(self.index_of(other.position(entries.start)))
        };
        let mut rest = tail.iter(0..tail.len()).peekable();
        for (position, slot) in other.iter(entries) {
            while let Some((position, slot)) = rest.next_if(|&(own, _)| own < position) {
                self.push_at(position, slot);
            }
            self.push_at(position, slot);
        }
        rest.for_each(|(position, slot)| self.push_at(position, slot));
    }

    /// Whether any position of a range of another's entries is owned.
    pub(crate) fn overlaps(&self, other: &Self, entries: Range<u32>) -> bool {
        let mut runs = other.runs(entries);
        runs.any(|(first, run)| self.index_of(first) != self.index_of(first + (run.end - run.start)))
    }

    /// (Position, slot) of a range of entries.
    pub(crate) fn iter(&self, entries: Range<u32>) -> impl Iterator<Item = (Position, Slot)> + '_ {
        self.runs(entries).flat_map(|(first, run)| (first..).zip(self.slots.range(run)))
    }

    /// Maps every slot through `to` (compaction).
    pub(crate) fn relabel(&mut self, to: impl Fn(Slot) -> Slot) {
        self.slots.edit(|slots| slots.iter_mut().for_each(|slot| *slot = to(*slot)));
        self.changes = self.changes.wrapping_add(1);
        self.find_lead();
    }

    fn split_off(&mut self, index: u32) -> Self {
        let mut tail = Self::default();
        self.iter(index..self.len()).for_each(|(position, slot)| tail.push_at(position, slot));
        self.remove(index..self.len(), |_| ());
        tail
    }

    fn find_lead(&mut self) {
        self.first = self.slots.get(0).unwrap_or(0);
        let lead = self.slots.iter().zip(self.first..).take_while(|(slot, expected)| slot == expected);
        self.lead = lead.count() as u32;
    }

    /// Consistency check.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut next = None;
        for (i, b) in self.breaks.iter().enumerate() {
            let end = self.breaks.get(i + 1).map_or(self.len(), |next| next.index);
            if end <= b.index || next.is_some_and(|next| b.first <= next) || (i == 0 && b.index != 0) {
                return Err(format!("run {i} of positions at entry {} is wrong", b.index));
            }
            next = Some(b.first + (end - b.index));
        }
        if self.breaks.is_empty() != self.slots.is_empty() {
            return Err("slots without positions".into());
        }
        let mut again = self.clone();
        again.find_lead();
        if self.last != self.breaks.last().copied().unwrap_or_default() {
            return Err("the last run of positions is not noted".into());
        }
        if again.lead == self.lead && (again.first == self.first || self.len() == 0) {
            Ok(())
        } else {
            Err(format!("{} leading slots are consecutive, {} noted", again.lead, self.lead))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cells::entries::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn entries(model: &BTreeMap<Position, Slot>) -> Entries {
        let mut entries = Entries::default();
        model.iter().for_each(|(&position, &slot)| entries.push_at(position, slot));
        entries
    }

    fn owned() -> impl Strategy<Value = BTreeMap<Position, Slot>> {
        proptest::collection::btree_map(0u32..40, 0u32..6, 0..30)
    }

    proptest! {
        #[test]
        fn entries_agree_with_a_map(model in owned(), a in 0u32..45, b in 0u32..45) {
            let mut list = entries(&model);
            prop_assert_eq!(list.check(), Ok(()));
            prop_assert_eq!(list.next_position(), model.last_key_value().map_or(0, |(p, _)| p + 1));
            prop_assert_eq!(list.index_of(a) as usize, model.range(..a).count());
            for (i, (&position, _)) in model.iter().enumerate() {
                prop_assert_eq!(list.position(i as u32), position);
            }
            let (from, to) = (list.index_of(a.min(b)), list.index_of(a.max(b)));
            let part: Vec<_> = model.range(a.min(b)..a.max(b)).map(|(&p, &s)| (p, s)).collect();
            prop_assert_eq!(list.iter(from..to).collect::<Vec<_>>(), part);
            let mut gone = Vec::new();
            list.remove(from..to, |slot| gone.push(slot));
            prop_assert_eq!(gone, model.range(a.min(b)..a.max(b)).map(|(_, &s)| s).collect::<Vec<_>>());
            let rest: BTreeMap<_, _> = model.into_iter().filter(|(p, _)| !(a.min(b)..a.max(b)).contains(p)).collect();
            prop_assert_eq!(&list, &entries(&rest));
            prop_assert_eq!(list.check(), Ok(()));
        }

        #[test]
        fn merging_is_a_disjoint_union(mut into in owned(), from in owned(), a in 0u32..45, b in 0u32..45) {
            let (mut list, other) = (entries(&into), entries(&from));
            let range = other.index_of(a.min(b))..other.index_of(a.max(b));
            let part = from.range(a.min(b)..a.max(b));
            let overlaps = part.clone().any(|(p, _)| into.contains_key(p));
            prop_assert_eq!(list.overlaps(&other, range.clone()), overlaps);
            if !overlaps {
                list.merge(&other, range);
                into.extend(part);
                prop_assert_eq!(&list, &entries(&into));
                prop_assert_eq!(list.check(), Ok(()));
            }
        }
    }
}

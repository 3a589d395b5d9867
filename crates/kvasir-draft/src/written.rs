//! [`WrittenSlots`]: the slots in which the draft model has the row of the token that the target has
//! there.
//!
//! The draft model does not run every token of the target: it pauses while drafts do not pay, and a
//! prompt may not be worth reading. A slot is then left with the row of an earlier owner, and prefix
//! hits and forks pass it on.

use kvasir_kv::{Layout, Mask, Plan, PlanRow, Segment, Slot, SlotCopy};

/// A bit for each slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenSlots {
    words: Vec<u64>,
}

impl WrittenSlots {
    pub(crate) fn new(slots: u32) -> Self {
        Self { words: vec![0; slots.div_ceil(64) as usize] }
    }

    pub(crate) fn set(&mut self, slot: Slot, written: bool) {
        let Some(word) = self.words.get_mut(slot as usize / 64) else { return };
        let bit = 1 << (slot % 64);
        *word = if written { *word | bit } else { *word & !bit };
    }

    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.words.get(slot as usize / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Follows copies of the target's slots, which run in order.
    pub(crate) fn copy(&mut self, copies: &[SlotCopy]) {
        for copy in copies {
            self.set(copy.to, self.has(copy.from));
        }
    }

    /// Written slots among `len` from `start` on.
    fn count(&self, start: Slot, len: u32) -> u32 {
        let (end, mut at, mut count) = (start + len, start, 0);
        while at < end {
            let in_word = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - in_word)) << (at % 64);
            count += self.words.get(at as usize / 64).map_or(0, |word| (word & mask).count_ones());
            at += in_word;
        }
        count
    }

    /// Number of entries before a row's own tokens that the row sees, and how many of them are written.
    /// The slots of its own tokens must not be set.
    pub(crate) fn coverage(&self, plan: &Plan, row: &PlanRow) -> (u32, u32) {
        let segments = &plan.segments[row.segments.range()];
        if !matches!(row.mask, Mask::Explicit { .. }) {
            let context = row.read_len.saturating_sub(row.queries.len);
            return (segments.iter().map(|segment| self.count_segment(plan, segment)).sum(), context);
        }
        // The first token sees itself, too.
        let (mut entry, mut written, mut context) = (0, 0, 0u32);
        for segment in segments {
            for i in (0..segment.len).filter(|i| plan.sees(row, 0, entry + i)) {
                context += 1;
                written += u32::from(self.has(plan.slot(segment, i)));
            }
            entry += segment.len;
        }
        (written, context.saturating_sub(1))
    }

    /// Written slots among those of a segment.
    fn count_segment(&self, plan: &Plan, segment: &Segment) -> u32 {
        match segment.layout {
            Layout::Run { start } => self.count(start, segment.len),
            Layout::Table { at, block, offset } => {
                let (mut from, end, mut count) = (offset, offset + segment.len, 0);
                while from < end {
                    let in_block = (block - from % block).min(end - from);
                    let start = plan.table[(at + from / block) as usize] * block + from % block;
                    count += self.count(start, in_block);
                    from += in_block;
                }
                count
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_kv::{PoolId, SeqId, Span};

    #[test]
    fn ranges_are_counted_across_words() {
        let mut written = WrittenSlots::new(300);
        for slot in (0..300).filter(|slot| slot % 3 == 0) {
            written.set(slot, true);
        }
        for (start, len) in [(0, 300), (1, 2), (60, 10), (63, 1), (64, 64), (0, 0), (130, 170)] {
            let expected = (start..start + len).filter(|slot| slot % 3 == 0).count() as u32;
            assert_eq!(written.count(start, len), expected, "{len} from {start}");
        }
        written.set(3, false);
        written.copy(&[SlotCopy { from: 6, to: 7 }, SlotCopy { from: 3, to: 6 }]);
        assert_eq!([3, 6, 7].map(|slot| written.has(slot)), [false, false, true]);
        assert!(!written.has(5000), "scratch slots are not kept");
    }

    #[test]
    fn blocks_of_a_table_are_counted_each() {
        let mut written = WrittenSlots::new(64);
        (8..12).for_each(|slot| written.set(slot, true));
        (20..24).for_each(|slot| written.set(slot, true));
        let mut plan = Plan::default();
        plan.table.make_mut().extend_from_slice(&[9, 5, 2, 7]);
        let segment = |layout, len| Segment { pool: PoolId(0), layout, len, first: 0, sparse: None };
        plan.segments.push(segment(Layout::Run { start: 6 }, 3));
        plan.segments.push(segment(Layout::Table { at: 1, block: 4, offset: 1 }, 6));
        let row = PlanRow {
            seq: SeqId(0),
            queries: Span::new(0, 2),
            segments: Span::new(0, 2),
            read_len: 9,
            mask: Mask::Causal,
            ..PlanRow::default()
        };
        // Slot 8; slots 21, 22, 23 of block 5 and 8, 9, 10 of block 2.
        assert_eq!(written.coverage(&plan, &row), (7, 7));
        // Of a mask of nine entries, the first token sees 0, 2 (slot 8), 3 and itself.
        plan.mask_words.extend_from_slice(&[0b1000_01101, 0]);
        let row = PlanRow { mask: Mask::Explicit { at: 0, words_per_query: 1 }, ..row };
        assert_eq!(written.coverage(&plan, &row), (3, 3));
    }
}

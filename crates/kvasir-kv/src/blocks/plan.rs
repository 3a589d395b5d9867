//! Plans of a block cache: slot mapping, block-table segments and masks for each claimed batch row.
//!
//! - A batch row of one token takes the decode fast path if only the end of its table is new
//!   (`extend_segments`).
//! - A single row in blocks 0, 1, 2 .. is reclassified as contiguous.
//! - A draft tree reads the committed rows, then its nodes in order of position, under an ancestor
//!   mask.
//!
//! Block tables are written incrementally by `PlanWriter`. `tests/blocks/plans.rs` compares them
//! with tables written in full.

use crate::blocks::BlockCache;
use crate::blocks::index::Index;
use crate::blocks::pending::Pending;
use crate::blocks::sequence::{ClaimedRow, Seq};
use crate::contract::error::CacheError;
use crate::contract::ids::{PoolId, Position, SeqId, StepId};
use crate::contract::mask::Mask;
use crate::contract::plan::Plan;
use crate::contract::section::{Layout, PlanKind, PlanRow, Section, Segment};
use crate::contract::span::Span;
use crate::shared::plan_writer::{OpenPlan, Placed};
use std::ops::Range;

impl<I: Index> BlockCache<I> {
    /// Writes the plan of a claimed step; see `Cache::plan`.
    pub(super) fn write_plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let flight = self.inflight.get(step)?;
        let mut open = self.writer.begin(step, self.generation, plan);
        open.plan.kind = PlanKind::Ragged;
        self.heap_grows.iter().for_each(|&row| open.prefetch_end(row));
        let written = flight.rows.iter().try_for_each(|row| self.write_row(step, row, &mut open));
        if let Err(error) = written {
            open.abandon();
            return Err(error);
        }
        self.writer.end(open);
        let section = &mut plan.full;
        self.classify(section);
        if !self.moves.is_empty() {
            section.moves.extend_from_slice(self.moves.of(step));
            section.read_bound = section.read_bound.max(section.moved_bound());
        }
        Ok(())
    }

    /// Reclassifies a single batch row in slots 0, 1, 2 .. as contiguous.
    fn classify(&self, section: &mut Section) {
        if let [row] = section.rows.as_mut_slice()
            && section.kind == PlanKind::Ragged
            && row.redirected == 0
            && let Ok(seq) = self.seqs.get(row.seq)
            && seq.holes.is_empty()
            && seq.table.is_in_place(self.size.holding(row.read_len))
        {
            let layout = Layout::Run { start: 0 };
            section.segments.clear();
            section.segments.push(Segment {
                pool: PoolId(0),
                layout,
                len: row.read_len,
                first: 0,
                sparse: None,
            });
            row.segments = Span::new(0, 1);
            section.kind = PlanKind::Contiguous;
        }
    }

    fn write_row(&self, step: StepId, row: &ClaimedRow, open: &mut OpenPlan) -> Result<(), CacheError> {
        let seq = self.seqs.get(row.seq)?;
        let claimed = seq.claimed_rows(step, row)?;
        if claimed.is_tree {
            self.write_frontier(row, seq, claimed, open);
            return Ok(());
        }
        let Plan { positions, full: section, .. } = &mut *open.plan;
        let end = claimed.end;
        section.read_bound = section.read_bound.max(seq.bound * self.config.block_size);
        let (first, queries) = (section.segments.len(), (row.redirected + row.tokens) as usize);
        let queries = Span::new(positions.len(), queries);
        let is_decode = queries.len == 1 && row.redirected == 0;
        if is_decode {
            positions.push(claimed.start);
            section.write_slots.push(self.slot(seq, claimed.start));
        } else {
            positions.extend(claimed.start - row.redirected..end);
            let redirected = claimed.start - row.redirected..claimed.start;
            section.write_slots.extend(redirected.map(|position| self.size.within(position)));
            self.write_slots(seq, claimed.start, end, section);
        }
        let read_len = if is_decode && self.extend_segments(row.seq, seq, end, open) {
            end - seq.released * self.size.rows()
        } else {
            self.write_segments(row.seq, seq, end, open)
        };
        let section = &mut open.plan.full;
        section.rows.push(PlanRow {
            seq: row.seq,
            queries,
            segments: Span::new(first, section.segments.len() - first),
            read_len,
            mask: if queries.len == 1 { Mask::None } else { Mask::Causal },
            redirected: row.redirected,
            ..PlanRow::default()
        });
        Ok(())
    }

    /// Decode fast path of `write_segments`: the table differs from the last plan's only by its
    /// end. Returns false, with nothing written, if that is not so.
    #[inline]
    fn extend_segments(&self, id: SeqId, seq: &Seq, end: u32, open: &mut OpenPlan) -> bool {
        let blocks = seq.table.blocks();
        let (heap, tail) = (blocks.heap().len() as u32, blocks.inline());
        if !seq.holes.is_empty() || self.size.holding(end) != blocks.len() || seq.released > heap {
            return false;
        }
        let placed = open.place_tail(id, seq.table.changes(), (heap - seq.released) as usize, tail);
        let Some(placed) = placed else { return false };
        self.push_whole(placed, seq.released..heap, end, &mut open.plan.segments);
        true
    }

    /// Segments of a table without holes up to `end`: heap part, then inline part. `heap` are the
    /// entries of the heap part that are not released.
    #[inline]
    fn push_whole(&self, placed: Placed, heap: Range<u32>, end: u32, segments: &mut Vec<Segment>) {
        let (start, cut) = (heap.start * self.size.rows(), (heap.end * self.size.rows()).min(end));
        if cut > start {
            segments.push(self.segment(start..cut, placed.heap, 0));
        }
        if cut < end {
            segments.push(self.segment(cut..end, placed.tail, 0));
        }
    }

    /// A draft tree: the committed rows, then the nodes in order of position, under an ancestor
    /// mask.
    fn write_frontier(&self, row: &ClaimedRow, seq: &Seq, claimed: Pending, open: &mut OpenPlan) {
        let block_size = self.config.block_size;
        let Plan { positions, full: section, .. } = &mut *open.plan;
        let nodes = &seq.nodes;
        let frontier = claimed.start - seq.next..claimed.end - seq.next;
        section.kind = PlanKind::Explicit;
        let queries = Span::new(positions.len(), row.tokens as usize);
        positions.extend(frontier.clone().map(|node| seq.next + nodes.depth(node)));
        self.write_slots(seq, claimed.start, claimed.end, section);
        let segments = section.segments.len();
        let prefix = self.write_segments(row.seq, seq, seq.next, open);
        let order = nodes.order(frontier.end);
        let slots = order.iter().map(|&node| self.slot(seq, seq.next + node));
        let at = open.place_once(slots);
        let section = &mut open.plan.full;
        section.segments.push(Segment {
            pool: PoolId::default(),
            layout: Layout::Table { at, block: 1, offset: 0 },
            len: frontier.end,
            first: seq.next,
            sparse: Some(section.read_positions.len() as u32),
        });
        section.read_positions.extend(order.iter().map(|&node| seq.next + nodes.depth(node)));
        let at = section.mask_words.len() as u32;
        let read_len = prefix + frontier.end;
        let words_per_query = nodes.write_mask(frontier, prefix, None, |_| 0, &mut section.mask_words);
        section.rows.push(PlanRow {
            seq: row.seq,
            queries,
            segments: Span::new(segments, section.segments.len() - segments),
            read_len,
            mask: Mask::Explicit { at, words_per_query },
            ..PlanRow::default()
        });
        section.read_bound = section.read_bound.max(seq.bound * block_size);
    }

    fn slot(&self, seq: &Seq, row: u32) -> u32 {
        seq.table.block(self.size.of(row)) * self.size.rows() + self.size.within(row)
    }

    /// Slot mapping of rows `start .. end`.
    fn write_slots(&self, seq: &Seq, start: u32, end: u32, section: &mut Section) {
        if self.size.rows() == 1 {
            return seq.table.blocks().copy(start..end, &mut section.write_slots);
        }
        let mut at = start;
        while at < end {
            let rows = (self.size.rows() - self.size.within(at)).min(end - at);
            let first = self.slot(seq, at);
            section.write_slots.extend(first..first + rows);
            at += rows;
        }
    }

    /// Writes block-table segments for the owned ranges below `end`: heap part, then inline part.
    /// Returns the number of entries.
    #[inline]
    fn write_segments(&self, id: SeqId, seq: &Seq, end: u32, open: &mut OpenPlan) -> u32 {
        let count = self.size.holding(end) as usize;
        let (heap, inline) = (seq.table.blocks().heap(), seq.table.blocks().inline());
        let heap = &heap[..count.min(heap.len())];
        let inline = &inline[..count - heap.len()];
        let released = seq.released as usize;
        let (held_heap, held_inline) =
            (&heap[released.min(heap.len())..], &inline[released.saturating_sub(heap.len())..]);
        let placed = open.place(id, seq.table.changes(), held_heap, held_inline);
        let segments = &mut open.plan.segments;
        let heap = seq.released..(heap.len() as u32).max(seq.released);
        let start = seq.released * self.size.rows();
        if !seq.holes.is_empty() || end == 0 {
            let held = seq.owned(end).map(|owned| owned.start.max(start)..owned.end);
            let held = held.filter(|held| !held.is_empty());
            return held.fold(0, |count, held| {
                let rows = held.end - held.start;
                self.push_segments(placed, heap.clone(), held, segments);
                count + rows
            });
        }
        self.push_whole(placed, heap, end, segments);
        end - start
    }

    /// Segments of one owned range: one in the heap part, one in the inline part. `heap` are the
    /// entries of the heap part that are not released.
    fn push_segments(
        &self,
        placed: Placed,
        heap: Range<u32>,
        owned: Range<Position>,
        segments: &mut Vec<Segment>,
    ) {
        let cut = (heap.end * self.size.rows()).clamp(owned.start, owned.end);
        let parts = [(owned.start..cut, placed.heap, heap.start), (cut..owned.end, placed.tail, heap.end)];
        for (part, at, first) in parts {
            if !part.is_empty() {
                let at = at + self.size.of(part.start) - first;
                let offset = self.size.within(part.start);
                segments.push(self.segment(part, at, offset));
            }
        }
    }

    /// The segment of consecutive positions whose blocks begin at `table[at]`.
    fn segment(&self, part: Range<Position>, at: u32, offset: u32) -> Segment {
        Segment {
            pool: PoolId::default(),
            layout: Layout::Table { at, block: self.size.rows(), offset },
            len: part.end - part.start,
            first: part.start,
            sparse: None,
        }
    }
}

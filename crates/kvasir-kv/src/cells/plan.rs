//! Plans of `cells`: slot tables or runs per sequence, sliding-window and ancestor masks, and the
//! classification of the step.
//!
//! - *Contiguous*: one batch row that reads cells `0 ..` in order of position without a hole, and
//!   no window cuts in.
//! - *Explicit*: a draft tree, or a window that cuts into a row with several queries.
//! - *Ragged*: everything else, read through slot tables.
//!
//! Without a window, slot tables are written incrementally by `PlanWriter`; with a window the read
//! begins later in every step.

use crate::cells::entries::Entries;
use crate::cells::{Cells, Row, Sequence, Written};
use crate::contract::error::CacheError;
use crate::contract::ids::{PoolId, Position, StepId};
use crate::contract::mask::{Mask, set_range, words_for};
use crate::contract::plan::Plan;
use crate::contract::section::{Layout, PlanKind, PlanRow, Section, Segment};
use crate::contract::span::Span;
use crate::shared::plan_writer::{OpenPlan, Placed};
use std::ops::Range;

/// Least number of leading consecutive cells that become a run segment of their own.
const LEAD_WORTH: u32 = 32;

impl Cells {
    /// Writes the plan of a claimed step and classifies it.
    pub(super) fn write_plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let flight = self.inflight.get(step)?;
        let mut open = self.writer.begin(step, self.generation, plan);
        if self.window.is_some() {
            // With a window the read begins later in every step.
            open.forget();
        }
        open.plan.kind = PlanKind::Ragged;
        open.plan.moves.extend_from_slice(self.moves.of(step));
        let written = flight.rows.iter().try_for_each(|row| {
            let seq = self.seqs.get(row.seq)?;
            match row.written {
                Written::Positions => self.plan_positions(row, seq, &mut open),
                Written::DraftNodes => self.plan_nodes(row, seq, &mut open),
            }
        });
        if let Err(error) = written {
            open.abandon();
            return Err(error);
        }
        self.writer.end(open);
        let section = &mut plan.full;
        let mut bound = self.cells.high_water();
        if let ([row], [segment]) = (&flight.rows[..], &section.segments[..])
            && section.kind == PlanKind::Ragged
            && self.seqs.get(row.seq)?.entries.index_of(row.end) == segment.len
            && segment.layout == (Layout::Run { start: 0 })
        {
            section.kind = PlanKind::Contiguous;
            bound = segment.len;
        }
        section.read_bound = bound.max(section.moved_bound());
        Ok(())
    }

    /// Plans a batch row of tokens; a sliding window that cuts into several queries needs an
    /// explicit mask.
    fn plan_positions(&self, row: &Row, seq: &Sequence, open: &mut OpenPlan) -> Result<(), CacheError> {
        let (entries, plan) = (&seq.entries, &mut *open.plan);
        let queries = Span::new(plan.positions.len(), row.tokens as usize);
        let is_newest = row.tokens == 1 && row.end == row.start + 1 && row.end == entries.next_position();
        if is_newest {
            plan.positions.push(row.start);
            plan.write_slots.push(entries.slots().newest());
            if self.plan_decode(row, entries, queries, open) {
                return Ok(());
            }
        }
        let Plan { positions, full: section, .. } = &mut *open.plan;
        let (start, end) = (entries.index_of(row.start), entries.index_of(row.end));
        if row.end.saturating_sub(row.start) != row.tokens || end - start != row.tokens {
            return Err(CacheError::RowGone(row.seq));
        }
        if !is_newest {
            positions.extend(row.start..row.end);
            entries.slots().copy(start..end, &mut section.write_slots);
        }
        // The first visible entry rises with the query's position, so the first query's bounds the
        // read.
        let from = |position: Position| entries.index_of(self.sees_from(position));
        let read = from(row.start)..end;
        let mask = if row.tokens == 1 {
            Mask::None
        } else if from(row.end - 1) == read.start {
            Mask::Causal
        } else {
            section.kind = PlanKind::Explicit;
            let at = section.mask_words.len();
            let per_query = words_for(read.end - read.start) as usize;
            section.mask_words.resize(at + per_query * row.tokens as usize, 0);
            for (query, words) in section.mask_words[at..].chunks_mut(per_query).enumerate() {
                let query = query as u32;
                set_range(words, from(row.start + query) - read.start, start + query + 1 - read.start);
            }
            Mask::Explicit { at: at as u32, words_per_query: per_query as u32 }
        };
        let first_segment = section.segments.len();
        self.push_entries(row, seq, read.clone(), open);
        push_row(row, queries, first_segment, read.end - read.start, mask, &mut open.plan.full);
        Ok(())
    }

    /// A draft tree: the owned entries, then the nodes in order of position, under an ancestor
    /// mask.
    fn plan_nodes(&self, row: &Row, seq: &Sequence, open: &mut OpenPlan) -> Result<(), CacheError> {
        let Plan { positions, full: section, .. } = &mut *open.plan;
        let (entries, frontier) = (&seq.entries, row.start..row.end);
        let Some(slots) = seq.node_slots.get(row.start as usize..row.end as usize) else {
            return Err(CacheError::RowGone(row.seq));
        };
        section.kind = PlanKind::Explicit;
        let base = entries.next_position();
        let position = |node: u32| base + seq.nodes.depth(node);
        let queries = Span::new(positions.len(), slots.len());
        positions.extend(frontier.clone().map(position));
        section.write_slots.extend_from_slice(slots);
        let from = |depth: u32| entries.index_of(self.sees_from(base + depth));
        let lowest = frontier.clone().map(|node| seq.nodes.depth(node)).min().unwrap_or(0);
        let read = from(lowest)..entries.len();
        let prefix = read.end - read.start;
        let first_segment = section.segments.len();
        self.push_entries(row, seq, read.clone(), open);
        let order = seq.nodes.order(row.end);
        let slots = order.iter().map(|&node| seq.node_slots[node as usize]);
        let at = open.place_once(slots);
        let section = &mut open.plan.full;
        let sparse = Some(section.read_positions.len() as u32);
        section.read_positions.extend(order.iter().map(|&node| position(node)));
        let layout = Layout::Table { at, block: 1, offset: 0 };
        section.segments.push(Segment { pool: PoolId(0), layout, len: row.end, first: base, sparse });
        let at = section.mask_words.len() as u32;
        let prefix_from = |depth: u32| from(depth) - read.start;
        let words_per_query =
            seq.nodes.write_mask(frontier, prefix, self.window, prefix_from, &mut section.mask_words);
        let mask = Mask::Explicit { at, words_per_query };
        push_row(row, queries, first_segment, prefix + row.end, mask, section);
        Ok(())
    }

    /// Appends the segments of a read, run by run of consecutive positions.
    fn push_entries(&self, row: &Row, seq: &Sequence, read: Range<u32>, open: &mut OpenPlan) {
        let entries = &seq.entries;
        let (heap, tail) = (entries.slots().heap(), entries.slots().inline());
        for (first, run) in entries.runs(read) {
            let split = split(entries, &run);
            let cut = (heap.len() as u32).clamp(split, run.end);
            let in_tail = [cut, run.end].map(|entry| entry.saturating_sub(heap.len() as u32) as usize);
            let heap = heap.get(split as usize..cut as usize).unwrap_or(&[]);
            let placed = if split < run.end {
                open.place(row.seq, entries.changes(), heap, &tail[in_tail[0]..in_tail[1]])
            } else {
                Placed::default()
            };
            push_run(entries, first, run, split, placed, &mut open.plan.full);
        }
    }

    /// Decode fast path: one token at the end of a sequence whose list differs from the last plan's
    /// only by its end. Returns false, with nothing written, if the fast path does not apply.
    #[inline]
    fn plan_decode(&self, row: &Row, entries: &Entries, queries: Span, open: &mut OpenPlan) -> bool {
        let (heap, tail) = (entries.slots().heap().len() as u32, entries.slots().inline());
        let split = split(entries, &(0..entries.len()));
        if self.window.is_some() || !entries.is_one_run() || split > heap || split == entries.len() {
            return false;
        }
        let placed = open.place_tail(row.seq, entries.changes(), (heap - split) as usize, tail);
        let Some(placed) = placed else { return false };
        let first_segment = open.plan.segments.len();
        push_run(entries, entries.first_position(), 0..entries.len(), split, placed, &mut open.plan.full);
        push_row(row, queries, first_segment, entries.len(), Mask::None, &mut open.plan.full);
        true
    }

    /// Lowest position that a token at `position` sees (sliding window).
    fn sees_from(&self, position: Position) -> Position {
        self.window.map_or(0, |window| position.saturating_sub(window - 1))
    }
}

/// End of the leading part of `run` that becomes a run segment; `run.start` if that is too short.
fn split(entries: &Entries, run: &Range<u32>) -> u32 {
    let lead = entries.lead().clamp(run.start, run.end);
    match lead - run.start {
        worth if worth >= LEAD_WORTH || lead == run.end => lead,
        _ => run.start,
    }
}

/// Appends the segments of a run of consecutive positions from `first` on: a run of slots up to
/// entry `split`, then slot tables (heap part, inline tail).
#[inline(always)]
fn push_run(
    entries: &Entries,
    first: Position,
    run: Range<u32>,
    split: u32,
    placed: Placed,
    section: &mut Section,
) {
    let cut = (entries.slots().heap().len() as u32).clamp(split, run.end);
    let position = |entry: u32| first + (entry - run.start);
    if run.start < split {
        let start = entries.first() + run.start;
        push_segment(Layout::Run { start }, position(run.start), split - run.start, section);
    }
    let table = |at| Layout::Table { at, block: 1, offset: 0 };
    if split < cut {
        push_segment(table(placed.heap), position(split), cut - split, section);
    }
    if cut < run.end {
        push_segment(table(placed.tail), position(cut), run.end - cut, section);
    }
}

#[inline(always)]
fn push_segment(layout: Layout, first: Position, len: u32, section: &mut Section) {
    section.segments.push(Segment { pool: PoolId(0), layout, len, first, sparse: None });
}

#[inline(always)]
fn push_row(
    row: &Row,
    queries: Span,
    first_segment: usize,
    read_len: u32,
    mask: Mask,
    section: &mut Section,
) {
    section.rows.push(PlanRow {
        seq: row.seq,
        queries,
        segments: Span::new(first_segment, section.segments.len() - first_segment),
        read_len,
        mask,
        ..PlanRow::default()
    });
}

use super::seq::{ClaimedRow, Pending, Seq};
use super::{BlockCache, Index};
use crate::{CacheError, Layout, Mask, Plan, PlanKind, PlanRow, PoolId, Segment, Span, StepId};

impl<I: Index> BlockCache<I> {
    pub(super) fn write_plan(&self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let flight = self.inflight.get(step)?;
        plan.reset(step, self.generation);
        plan.kind = PlanKind::Ragged;
        for row in &flight.rows {
            self.write_row(step, row, plan)?;
        }
        if !self.moves.is_empty() {
            plan.moves.extend_from_slice(self.moves.of(step));
            let highest = plan.moves.iter().map(|rows| rows.from.max(rows.to) + 1).max();
            plan.read_bound = plan.read_bound.max(highest.unwrap_or(0));
        }
        Ok(())
    }

    fn write_row(&self, step: StepId, row: &ClaimedRow, plan: &mut Plan) -> Result<(), CacheError> {
        let seq = self.seqs.get(row.seq)?;
        let claimed = seq.claimed_rows(step, row)?;
        if claimed.is_tree {
            self.write_frontier(row, seq, claimed, plan);
            return Ok(());
        }
        let queries = Span::new(plan.positions.len(), (row.redirected + row.tokens) as usize);
        for position in claimed.start - row.redirected..claimed.start {
            plan.positions.push(position);
            plan.write_slots.push(position % self.config.block_size);
        }
        plan.positions.extend(claimed.start..claimed.end);
        self.write_slots(seq, claimed.start, claimed.end, plan);
        let segments = plan.segments.len();
        let read_len = self.write_segments(seq, claimed.end, plan);
        plan.rows.push(PlanRow {
            seq: row.seq,
            queries,
            segments: Span::new(segments, plan.segments.len() - segments),
            read_len,
            mask: if queries.len == 1 { Mask::None } else { Mask::Causal },
            left_pad_blocks: 0,
            redirected: row.redirected,
        });
        plan.read_bound = plan.read_bound.max(seq.bound * self.config.block_size);
        Ok(())
    }

    /// A frontier: the committed rows, then the nodes in order of position, under an ancestor mask.
    fn write_frontier(&self, row: &ClaimedRow, seq: &Seq, claimed: Pending, plan: &mut Plan) {
        let block_size = self.config.block_size;
        let Some(nodes) = &seq.nodes else { return };
        let frontier = claimed.start - seq.next..claimed.end - seq.next;
        plan.kind = PlanKind::Explicit;
        let queries = Span::new(plan.positions.len(), row.tokens as usize);
        plan.positions.extend(frontier.clone().map(|node| seq.next + nodes.depth(node)));
        self.write_slots(seq, claimed.start, claimed.end, plan);
        let segments = plan.segments.len();
        let prefix = self.write_segments(seq, seq.next, plan);
        let order = nodes.order(frontier.end);
        plan.segments.push(Segment {
            pool: PoolId::default(),
            layout: Layout::Table { at: plan.table.len() as u32, block: 1, offset: 0 },
            len: frontier.end,
            first: seq.next,
            sparse: Some(plan.read_positions.len() as u32),
        });
        for &node in order {
            plan.table.push(self.slot(seq, seq.next + node));
            plan.read_positions.push(seq.next + nodes.depth(node));
        }
        let at = plan.mask_words.len() as u32;
        let read_len = prefix + frontier.end;
        let words_per_query = nodes.write_mask(frontier, prefix, None, |_| 0, &mut plan.mask_words);
        plan.rows.push(PlanRow {
            seq: row.seq,
            queries,
            segments: Span::new(segments, plan.segments.len() - segments),
            read_len,
            mask: Mask::Explicit { at, words_per_query },
            left_pad_blocks: 0,
            redirected: 0,
        });
        plan.read_bound = plan.read_bound.max(seq.bound * block_size);
    }

    fn slot(&self, seq: &Seq, row: u32) -> u32 {
        seq.table[self.size.of(row) as usize] * self.size.rows() + self.size.within(row)
    }

    /// The slots of rows `start .. end`.
    fn write_slots(&self, seq: &Seq, start: u32, end: u32, plan: &mut Plan) {
        let mut at = start;
        while at < end {
            let rows = (self.size.rows() - self.size.within(at)).min(end - at);
            let first = self.slot(seq, at);
            plan.write_slots.extend(first..first + rows);
            at += rows;
        }
    }

    /// One segment per owned range below `end`; their entries altogether.
    fn write_segments(&self, seq: &Seq, end: u32, plan: &mut Plan) -> u32 {
        let mut entries = 0;
        for owned in seq.owned(end) {
            let blocks = self.size.of(owned.start) as usize..self.size.holding(owned.end) as usize;
            let (at, offset) = (plan.table.len() as u32, self.size.within(owned.start));
            plan.table.extend_from_slice(&seq.table[blocks]);
            plan.segments.push(Segment {
                pool: PoolId::default(),
                layout: Layout::Table { at, block: self.size.rows(), offset },
                len: owned.end - owned.start,
                first: owned.start,
                sparse: None,
            });
            entries += owned.end - owned.start;
        }
        entries
    }
}

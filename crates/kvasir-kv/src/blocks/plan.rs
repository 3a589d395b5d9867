use super::claims::Pending;
use super::seq::{ClaimedRow, Seq};
use super::{BlockCache, Index};
use crate::{CacheError, Layout, Mask, Plan, PlanKind, PlanRow, PoolId, Segment, SeqId, Span, StepId};

impl<I: Index> BlockCache<I> {
    pub(super) fn write_plan(&self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let flight = self.inflight.get(step)?;
        plan.begin(step, self.generation, &self.identity);
        plan.kind = PlanKind::Ragged;
        for row in &flight.rows {
            self.write_row(step, row, plan)?;
        }
        plan.kept.end();
        self.classify(plan);
        if !self.moves.is_empty() {
            plan.moves.extend_from_slice(self.moves.of(step));
            let highest = plan.moves.iter().map(|rows| rows.from.max(rows.to) + 1).max();
            plan.read_bound = plan.read_bound.max(highest.unwrap_or(0));
        }
        Ok(())
    }

    /// One row that lies in the slots 0, 1, 2 .. is as fast as a sequence alone.
    fn classify(&self, plan: &mut Plan) {
        if let ([row], [segment]) = (plan.rows.as_slice(), plan.segments.as_mut_slice())
            && plan.kind == PlanKind::Ragged
            && row.redirected == 0
            && segment.first == 0
            && self.seqs.get(row.seq).is_ok_and(|seq| seq.table.is_in_place(self.size.holding(segment.len)))
        {
            segment.layout = Layout::Run { start: 0 };
            plan.kind = PlanKind::Contiguous;
        }
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
        let read_len = self.write_segments(row.seq, seq, claimed.end, plan);
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
        let prefix = self.write_segments(row.seq, seq, seq.next, plan);
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
        plan.kept.note_unused(order.len());
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
        seq.table.block(self.size.of(row)) * self.size.rows() + self.size.within(row)
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
    fn write_segments(&self, id: SeqId, seq: &Seq, end: u32, plan: &mut Plan) -> u32 {
        let blocks = &seq.table[..self.size.holding(end) as usize];
        let table = plan.kept.place(id, seq.table.changes(), blocks, &mut plan.table);
        let mut entries = 0;
        for owned in seq.owned(end) {
            let (at, offset) = (table + self.size.of(owned.start), self.size.within(owned.start));
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

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
        let frontier = claimed.start - seq.next..claimed.end - seq.next;
        plan.kind = PlanKind::Explicit;
        let queries = Span::new(plan.positions.len(), row.tokens as usize);
        plan.positions.extend(frontier.clone().map(|node| seq.next + seq.nodes.depth(node)));
        self.write_slots(seq, claimed.start, claimed.end, plan);
        let segments = plan.segments.len();
        let prefix = self.write_segments(seq, seq.next, plan);
        let order = seq.nodes.order(frontier.end);
        plan.segments.push(Segment {
            pool: PoolId::default(),
            layout: Layout::Table { at: plan.table.len() as u32, block: 1, offset: 0 },
            len: frontier.end,
            first: seq.next,
            sparse: Some(plan.read_positions.len() as u32),
        });
        for &node in order {
            let at = seq.next + node;
            plan.table.push(seq.table[(at / block_size) as usize] * block_size + at % block_size);
            plan.read_positions.push(seq.next + seq.nodes.depth(node));
        }
        let at = plan.mask_words.len() as u32;
        let read_len = prefix + frontier.end;
        let words_per_query = seq.nodes.write_mask(frontier, prefix, None, |_| 0, &mut plan.mask_words);
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

    /// The slots of rows `start .. end`.
    fn write_slots(&self, seq: &Seq, start: u32, end: u32, plan: &mut Plan) {
        let block_size = self.config.block_size;
        let mut at = start;
        while at < end {
            let within = at % block_size;
            let rows = (block_size - within).min(end - at);
            let first = seq.table[(at / block_size) as usize] * block_size + within;
            plan.write_slots.extend(first..first + rows);
            at += rows;
        }
    }

    /// One segment per owned range below `end`; their entries altogether.
    fn write_segments(&self, seq: &Seq, end: u32, plan: &mut Plan) -> u32 {
        let block_size = self.config.block_size;
        let mut entries = 0;
        for owned in seq.owned(end) {
            let blocks = owned.start / block_size..owned.end.div_ceil(block_size);
            let layout = Layout::Table {
                at: plan.table.len() as u32,
                block: block_size,
                offset: owned.start % block_size,
            };
            plan.table.extend_from_slice(&seq.table[blocks.start as usize..blocks.end as usize]);
            let len = owned.end - owned.start;
            let pool = PoolId::default();
            plan.segments.push(Segment { pool, layout, len, first: owned.start, sparse: None });
            entries += len;
        }
        entries
    }
}

//! Checks that a step fits a device of static shapes: one prefill chunk, or a rectangular decode
//! batch padded with blocks.
//!
//! The check recomputes every number from the step and knows nothing of the policy that padded it.
//! So it can serve as the oracle of the rectangular policy. `tkv` is a row's left padding plus its
//! length, in slots.

use kvasir_exec::{Batch, BatchRow, Step};
use kvasir_kv::{BlockId, Layout, Mask, Plan, PlanRow, PoolId};

/// The static shapes of a device: one chunk of one prompt, or one token for each row of a rectangle
/// of KV blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticShape {
    /// Slots per KV block. Block 0 is the dummy block.
    pub block: u32,
    /// Positions of a prefill step.
    pub chunk: u32,
    /// Maximum rows of a decode step.
    pub max_rows: u32,
    /// Upper bound of rows times largest tkv.
    pub max_volume: u64,
    /// Upper bound of the largest tkv.
    pub max_model_len: u32,
}

impl StaticShape {
    /// Returns what is wrong with a step's shape, if anything.
    pub fn check(&self, step: &Step) -> Result<(), String> {
        let Step { batch, plan, .. } = step;
        if batch.is_dummy() {
            return Ok(());
        }
        ensure(!batch.rows.is_empty(), || "no rows".into())?;
        ensure(batch.rows.len() == plan.rows.len(), || "batch and plan differ in rows".into())?;
        ensure(plan.moves.is_empty(), || "row moves".into())?;
        for (row, planned) in batch.rows.iter().zip(&plan.rows) {
            self.check_row(row, planned, plan).map_err(|why| format!("request {}: {why}", row.request))?;
        }
        let ((prefills, _), (decodes, _)) = batch.counts();
        match (prefills, decodes) {
            (1, 0) => self.check_chunk(batch, plan),
            (0, _) => self.check_rectangle(plan),
            (prefills, decodes) => Err(format!("{prefills} prompts and {decodes} decodes in one step")),
        }
    }

    /// Checks one row: no drafts, no explicit mask, whole blocks, and each token written to its own
    /// block (redirected ones to the dummy block).
    fn check_row(&self, row: &BatchRow, planned: &PlanRow, plan: &Plan) -> Result<(), String> {
        ensure(row.drafts.count == 0, || "drafts".into())?;
        ensure(!matches!(planned.mask, Mask::Explicit { .. }), || "an explicit mask".into())?;
        let table = self.table(planned, plan)?;
        ensure(table.len() as u32 == planned.read_len.div_ceil(self.block), || {
            format!("{} blocks for {} rows", table.len(), planned.read_len)
        })?;
        ensure(!table.contains(&0), || "reads the dummy block".into())?;
        let queries = plan.positions.get(planned.queries.range()).unwrap_or(&[]);
        let slots = plan.write_slots.get(planned.queries.range()).unwrap_or(&[]);
        ensure(!queries.is_empty() && queries.len() == slots.len(), || "no queries".into())?;
        ensure(queries.windows(2).all(|two| two[1] == two[0] + 1), || "its positions are no run".into())?;
        ensure(queries.last().map(|last| last + 1) == Some(planned.read_len), || {
            "its queries are not the end of what it reads".into()
        })?;
        for (i, (&position, &slot)) in queries.iter().zip(slots).enumerate() {
            let expected = if (i as u32) < planned.redirected {
                0
            } else {
                table.get((position / self.block) as usize).copied().unwrap_or(0)
            };
            let fits = slot / self.block == expected
                && (expected == 0 || slot % self.block == position % self.block);
            ensure(fits, || {
                format!("position {position} is written to slot {slot}, not to block {expected}")
            })?;
        }
        Ok(())
    }

    /// The block table of a row.
    fn table(&self, planned: &PlanRow, plan: &Plan) -> Result<Vec<BlockId>, String> {
        let mut blocks = Vec::new();
        let mut at = 0;
        for segment in plan.segments.get(planned.segments.range()).unwrap_or(&[]) {
            ensure(segment.pool == PoolId(0) && segment.sparse.is_none() && segment.first == at, || {
                "reads something that is not a run of its own positions".into()
            })?;
            ensure(at.is_multiple_of(self.block), || "a segment begins inside a block".into())?;
            let count = segment.len.div_ceil(self.block);
            match segment.layout {
                Layout::Run { start } => {
                    ensure(start.is_multiple_of(self.block), || "reads from inside a block".into())?;
                    blocks.extend((0..count).map(|i| start / self.block + i));
                }
                Layout::Table { at, block, offset } => {
                    ensure(block == self.block && offset == 0, || "reads parts of blocks".into())?;
                    let range = at as usize..(at + count) as usize;
                    blocks.extend_from_slice(plan.table.get(range).unwrap_or(&[]));
                }
            }
            at += segment.len;
        }
        Ok(blocks)
    }

    /// Checks a prefill step: it starts at a chunk boundary, left padding included, and fills the
    /// chunk or ends the prompt.
    fn check_chunk(&self, batch: &Batch, plan: &Plan) -> Result<(), String> {
        let (row, planned) = (&batch.rows[0], &plan.rows[0]);
        let queries = plan.positions.get(planned.queries.range()).unwrap_or(&[]);
        let (first, end) = (queries.first().copied().unwrap_or(0), planned.read_len);
        let left = planned.left_pad_blocks * self.block;
        ensure(left < self.chunk, || format!("left padding of {left} is a chunk or more"))?;
        ensure(first.is_multiple_of(self.block), || format!("begins inside a block, at {first}"))?;
        ensure(first == 0 || (left + first).is_multiple_of(self.chunk), || {
            format!("begins inside a chunk, at {first} behind {left}")
        })?;
        let chunk_end = (left + first) / self.chunk * self.chunk + self.chunk;
        let is_full = left + end == chunk_end;
        let ends_prompt = row.samples() && (left + end).next_multiple_of(self.block) == chunk_end;
        ensure(is_full || ends_prompt, || format!("ends at {end} behind {left}, the chunk at {chunk_end}"))?;
        ensure(planned.redirected.is_multiple_of(self.block), || "redirects part of a block".into())
    }

    /// Checks a decode step: one token per row, and rows of equal width in blocks, left padding
    /// included, within the limits.
    fn check_rectangle(&self, plan: &Plan) -> Result<(), String> {
        ensure(plan.rows.len() <= self.max_rows as usize, || format!("{} rows", plan.rows.len()))?;
        let width = |row: &PlanRow| row.left_pad_blocks + row.read_len.div_ceil(self.block);
        let widest = plan.rows.iter().map(width).max().unwrap_or(0);
        if let Some(row) = plan.rows.iter().find(|row| width(row) != widest) {
            return Err(format!("not a rectangle: rows of {} and of {widest} blocks", width(row)));
        }
        ensure(plan.rows.iter().any(|row| row.left_pad_blocks == 0), || "every row is padded".into())?;
        ensure(plan.rows.iter().all(|row| row.queries.len == 1), || "a row of several tokens".into())?;
        let tkv =
            plan.rows.iter().map(|row| row.left_pad_blocks * self.block + row.read_len).max().unwrap_or(0);
        ensure(tkv <= self.max_model_len, || format!("tkv {tkv}"))?;
        let volume = plan.rows.len() as u64 * u64::from(tkv);
        ensure(volume <= self.max_volume, || format!("{} rows times tkv {tkv}", plan.rows.len()))
    }
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_exec::{PoolRow, RowKind};
    use kvasir_kv::{Segment, SeqId, SlotCopy, Span};

    const SHAPE: StaticShape =
        StaticShape { block: 4, chunk: 8, max_rows: 2, max_volume: 30, max_model_len: 32 };

    /// Adds a row that reads `len` tokens through `table` and feeds the last `queries` of them.
    fn add(step: &mut Step, kind: RowKind, table: &[BlockId], len: u32, queries: u32, left: u32) {
        let Step { batch, plan, .. } = step;
        let seq = SeqId(batch.rows.len() as u64);
        let tokens = Span::new(batch.tokens.len(), queries as usize);
        batch.tokens.extend(0..queries);
        batch.rows.push(BatchRow {
            request: seq.0,
            seq,
            kind,
            tokens,
            cached: len - queries,
            context_len: len,
            last_block_tokens: 1,
            sample_from: queries - 1,
            pool_row: PoolRow(0),
            scored: Span::default(),
            drafts: Default::default(),
            feeds_draft: false,
            draft_depth: 0,
            sampling: Default::default(),
        });
        plan.positions.extend(len - queries..len);
        let section = &mut plan.full;
        let layout = Layout::Table { at: section.table.len() as u32, block: 4, offset: 0 };
        section.table.make_mut().extend_from_slice(table);
        section.segments.push(Segment { pool: PoolId(0), layout, len, first: 0, sparse: None });
        section.write_slots.extend((len - queries..len).map(|at| table[at as usize / 4] * 4 + at % 4));
        section.rows.push(PlanRow {
            seq,
            queries: tokens,
            segments: Span::new(section.segments.len() - 1, 1),
            read_len: len,
            mask: Mask::Causal,
            left_pad_blocks: left,
            redirected: 0,
        });
    }

    fn rectangle() -> Step {
        let mut step = Step::default();
        add(&mut step, RowKind::Decode, &[3, 1, 7], 11, 1, 0);
        add(&mut step, RowKind::Decode, &[2, 5], 7, 1, 1);
        step
    }

    fn chunk() -> Step {
        let mut step = Step::default();
        add(&mut step, RowKind::Prefill, &[3, 1, 2], 10, 6, 1);
        step
    }

    fn breaks(step: fn() -> Step, change: fn(&mut Step)) -> String {
        let mut step = step();
        change(&mut step);
        SHAPE.check(&step).unwrap_err()
    }

    #[test]
    fn a_rectangle_and_a_chunk_pass() {
        assert_eq!(SHAPE.check(&rectangle()), Ok(()));
        assert_eq!(SHAPE.check(&chunk()), Ok(()));
    }

    #[test]
    fn every_breach_is_named() {
        assert!(breaks(rectangle, |s| s.plan.rows[1].left_pad_blocks = 0).contains("not a rectangle"));
        assert!(
            breaks(rectangle, |s| s.plan.rows.iter_mut().for_each(|r| r.left_pad_blocks += 1))
                .contains("every row")
        );
        assert!(breaks(rectangle, |s| s.plan.write_slots[0] = 4).contains("written to slot 4"));
        assert!(breaks(rectangle, |s| s.plan.table[0] = 0).contains("dummy"));
        assert!(breaks(rectangle, |s| s.plan.moves.push(SlotCopy { from: 1, to: 2 })).contains("moves"));
        assert!(breaks(rectangle, |s| s.batch.rows[0].drafts.count = 1).contains("drafts"));
        assert!(
            breaks(rectangle, |s| s.batch.rows[0].kind = RowKind::Prefill)
                .contains("1 prompts and 1 decodes")
        );
        assert!(breaks(rectangle, |s| add(s, RowKind::Decode, &[8, 9, 10], 9, 1, 0)).contains("3 rows"));
        let wide = StaticShape { max_volume: 21, ..SHAPE };
        assert!(wide.check(&rectangle()).is_err_and(|why| why.contains("2 rows times tkv 11")));
        let short = StaticShape { max_model_len: 10, ..SHAPE };
        assert!(short.check(&rectangle()).is_err_and(|why| why.contains("tkv 11")));
        assert!(breaks(chunk, |s| s.plan.rows[0].left_pad_blocks = 0).contains("begins inside a chunk"));
        assert!(breaks(chunk, |s| s.plan.rows[0].left_pad_blocks = 2).contains("a chunk or more"));
        assert!(breaks(chunk, |s| s.batch.rows[0].sample_from = 6).contains("ends at 10"));
        assert!(breaks(chunk, |s| s.plan.rows[0].redirected = 4).contains("not to block 0"));
    }
}

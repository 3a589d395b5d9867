//! Padding of steps to static shapes: dummy rows up to a declared batch size, and the rectangles of
//! the `rectangular` policy.
//!
//! A rectangle of blocks of `B` slots:
//!
//! | part of a row | real tokens or entries | padding |
//! |---|---|---|
//! | read, left | | `left_pad_blocks` dummy blocks, masked out |
//! | read | the row's KV entries, each query masked to what it sees | |
//! | read, right | | the rest of the last block, masked out |
//! | queries, left | | of a prompt's first chunk: `left_pad_blocks * B` dummy tokens |
//! | queries, right | | of a prompt's last chunk: dummy tokens to the end of the block |
//!
//! So all rows of a decode step are equally wide, and every prefill step feeds a whole chunk. Dummy
//! tokens are rows of their own ([`RowKind::Dummy`]): they write their K and V to the dummy slot and
//! read nothing.
//!
//! A dummy row has an empty state row, so recurrent layers neither read nor write a state for it.
//! Plans with window sections are not padded: for executors of static shapes, window layers are in
//! group 0.
//!
//! Invariant: a real row keeps its tokens, its write slots and the entries that each query sees, in
//! the same order.

use crate::batch::{Batch, BatchRow, RowKind, StepKind};
use crate::executor::{Abilities, Executor, Refused, Step, StepError};
use kvasir_kv::{Layout, Lowering, Mask, Plan, PlanKind, PlanRow, PoolId, Segment, Slot, Span, StateRow};

/// Token id that dummy rows feed.
const DUMMY_TOKEN: u32 = 0;

/// The static shapes of an executor, and the dummy slot of its pool.
#[derive(Clone, Debug, Default)]
pub struct Padding {
    dummy: Slot,
    /// Slots per block of the rectangles that steps are padded to; `None` leaves rows as long as they
    /// are.
    block: Option<u32>,
    batch_sizes: Vec<u32>,
}

impl Padding {
    /// Padding to what an executor declares. `dummy` is the cache's dummy slot, `block` the block size
    /// of a policy whose steps are rectangles, and `most_rows` bounds the batch sizes that are used.
    pub fn new(abilities: &Abilities, dummy: Slot, block: Option<u32>, most_rows: u32) -> Self {
        let block = block.filter(|block| abilities.rectangles && *block > 0);
        let used = abilities.batch_sizes.iter().copied().filter(|size| *size <= most_rows);
        Self { dummy, block, batch_sizes: used.collect() }
    }

    /// Runs a dummy step of every batch size, or of one row if there is none, so that the first
    /// request does not wait for what a first step does. No step may be in flight.
    pub fn warm_up<E: Executor>(&self, executor: &mut E) -> Result<(), StepError> {
        let abilities = executor.abilities();
        let sizes = if self.batch_sizes.is_empty() { &[1][..] } else { &self.batch_sizes };
        for rows in sizes {
            Box::new(Step::dummy(*rows, self.dummy)).run_alone(executor, &abilities).1?;
        }
        Ok(())
    }

    /// The padded form of a step; `None` if it has a static shape already, or none applies.
    pub(crate) fn pad(&self, step: &Step) -> Option<(Batch, Plan)> {
        if !step.plan.windows.is_empty() {
            return None;
        }
        let has_masks = || step.plan.rows.iter().any(|row| matches!(row.mask, Mask::Explicit { .. }));
        let block = self.block.filter(|_| !step.batch.is_dummy() && !has_masks());
        let missing = self.missing_rows(&step.batch);
        let mut padded = match block {
            Some(block) => Padded::rectangle(step, block, self.dummy),
            None if missing == 0 => return None,
            None => {
                let has_states = !step.plan.states.is_empty();
                Padded { batch: step.batch.clone(), plan: step.plan.clone(), has_states }
            }
        };
        (0..missing).for_each(|_| padded.push_dummy(1, self.dummy));
        Some((padded.batch, padded.plan))
    }

    /// Dummy rows that a decode step lacks to the next batch size. Rows with drafts count as one.
    fn missing_rows(&self, batch: &Batch) -> usize {
        let rows = batch.rows.len();
        let Some(size) = self.batch_sizes.iter().find(|size| **size as usize >= rows) else { return 0 };
        let decodes = batch.kind == StepKind::Decode && batch.rows.iter().all(|row| !row.kind.is_prefill());
        if decodes { *size as usize - rows } else { 0 }
    }
}

impl Step {
    /// A dummy step of `rows` rows, which write to the slot `dummy` and read nothing.
    pub fn dummy(rows: u32, dummy: Slot) -> Self {
        let mut padded = Padded::default();
        padded.batch.kind = StepKind::Dummy;
        (0..rows).for_each(|_| padded.push_dummy(1, dummy));
        Self { batch: padded.batch, plan: padded.plan, ..Self::default() }
    }

    /// Runs a dummy step to its end on an executor with these abilities. No other step may be in
    /// flight.
    pub fn run_alone<E: Executor>(
        mut self: Box<Self>,
        executor: &mut E,
        abilities: &Abilities,
    ) -> (Box<Self>, Result<(), StepError>) {
        if let Err(error) = self.lower(abilities, &mut Lowering::default()) {
            return (self, Err(error));
        }
        match executor.submit(self) {
            Ok(pending) => executor.wait(pending),
            Err(Refused { step, error }) => (step, Err(error)),
        }
    }
}

/// A step under construction.
#[derive(Default)]
struct Padded {
    batch: Batch,
    plan: Plan,
    /// Whether the plan has state rows; each dummy row then gets an empty one.
    has_states: bool,
}

impl Padded {
    /// Pads a step to a rectangle of blocks.
    fn rectangle(step: &Step, block: u32, dummy: Slot) -> Self {
        let (batch, plan) = (&step.batch, &step.plan);
        let mut padded = Self { has_states: !plan.states.is_empty(), ..Self::default() };
        padded.batch.clone_from(batch);
        padded.batch.tokens.clear();
        padded.batch.rows.clear();
        padded.plan.reset(plan.step, plan.generation);
        padded.plan.states.saves.clone_from(&plan.states.saves);
        padded.plan.states.bound = plan.states.bound;
        let section = &mut padded.plan.full;
        section.kind = PlanKind::Explicit;
        section.moves.clone_from(&plan.moves);
        section.table.clone_from(&plan.table);
        section.read_positions.clone_from(&plan.read_positions);
        section.read_bound = plan.read_bound;
        for (i, (row, planned)) in batch.rows.iter().zip(&plan.rows).enumerate() {
            let begins = plan.positions.get(planned.queries.range()).and_then(<[_]>::first) == Some(&0);
            if row.kind.is_prefill() && begins {
                padded.push_dummy(planned.left_pad_blocks * block, dummy);
            }
            padded.push_row(step, row, planned, block, dummy);
            padded.plan.states.rows.extend(plan.states.rows.get(i));
            if row.kind.is_prefill() {
                padded.push_dummy(planned.read_len.next_multiple_of(block) - planned.read_len, dummy);
            }
        }
        padded
    }

    /// Appends a row of the step with dummy blocks on the left of its read and the rest of its last
    /// block on the right.
    fn push_row(&mut self, step: &Step, row: &BatchRow, planned: &PlanRow, block: u32, dummy: Slot) {
        let (from, Plan { positions, full: section, .. }) = (&step.plan, &mut self.plan);
        let tokens = Span::new(self.batch.tokens.len(), row.tokens.len as usize);
        self.batch.tokens.extend_from_slice(&step.batch.tokens[row.tokens.range()]);
        self.batch.rows.push(BatchRow { tokens, ..*row });
        positions.extend_from_slice(&from.positions[planned.queries.range()]);
        section.write_slots.extend_from_slice(&from.write_slots[planned.queries.range()]);

        let (first, left) = (section.segments.len(), planned.left_pad_blocks * block);
        if left > 0 {
            let (at, sparse) = (section.table.len() as u32, Some(section.read_positions.len() as u32));
            section.table.make_mut().extend((0..planned.left_pad_blocks).map(|_| dummy / block));
            section.read_positions.extend((0..left).map(|_| 0));
            let layout = Layout::Table { at, block, offset: 0 };
            section.segments.push(Segment { pool: PoolId(0), layout, len: left, first: 0, sparse });
            section.read_bound = section.read_bound.max((dummy / block + 1) * block);
        }
        let own = &from.segments[planned.segments.range()];
        section.segments.extend_from_slice(own);
        let last = own.last().filter(|last| last.pool == PoolId(0) && last.len > 0);
        let newest = last.map(|last| (from.slot(last, last.len - 1), from.position(last, last.len - 1)));
        let right = newest.map_or(0, |(slot, _)| block - 1 - slot % block);
        if let Some((slot, position)) = newest.filter(|_| right > 0) {
            let (start, first) = (slot + 1, position + 1);
            let layout = Layout::Run { start };
            section.segments.push(Segment { pool: PoolId(0), layout, len: right, first, sparse: None });
            section.read_bound = section.read_bound.max(start + right);
        }

        let read_len = left + planned.read_len + right;
        let (at, words_per_query) = (section.mask_words.len(), read_len.div_ceil(64));
        section.mask_words.resize(at + (words_per_query * planned.queries.len) as usize, 0);
        for query in 0..planned.queries.len {
            let words = &mut section.mask_words[at + (query * words_per_query) as usize..];
            for entry in (0..planned.read_len).filter(|entry| from.sees(planned, query, *entry)) {
                words[((left + entry) / 64) as usize] |= 1 << ((left + entry) % 64);
            }
        }
        section.rows.push(PlanRow {
            queries: tokens,
            segments: Span::new(first, section.segments.len() - first),
            read_len,
            mask: Mask::Explicit { at: at as u32, words_per_query },
            ..*planned
        });
    }

    /// Appends a dummy row of `count` tokens, if that is more than none.
    fn push_dummy(&mut self, count: u32, dummy: Slot) {
        if count == 0 {
            return;
        }
        let Batch { tokens, rows, .. } = &mut self.batch;
        let Plan { positions, full: section, states, .. } = &mut self.plan;
        let span = Span::new(tokens.len(), count as usize);
        tokens.resize(tokens.len() + count as usize, DUMMY_TOKEN);
        rows.push(BatchRow { kind: RowKind::Dummy, tokens: span, sample_from: count, ..BatchRow::default() });
        positions.resize(positions.len() + count as usize, 0);
        section.write_slots.resize(section.write_slots.len() + count as usize, dummy);
        section.rows.push(PlanRow {
            seq: BatchRow::default().seq,
            queries: span,
            segments: Span::new(section.segments.len(), 0),
            read_len: 0,
            mask: Mask::None,
            ..PlanRow::default()
        });
        if section.kind == PlanKind::Contiguous {
            section.kind = PlanKind::Ragged;
        }
        if self.has_states {
            states.rows.push(StateRow::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::PoolRow;
    use crate::fitting::Fitting;
    use crate::output::{DraftProposal, OutputRow};
    use kvasir_kv::blocks::BlockConfig;
    use kvasir_kv::{Cache, CacheError, ClaimRow, Paged, SeqId, StepId};

    const BLOCK: u32 = 4;

    fn cache() -> Result<Paged, CacheError> {
        Paged::new(BlockConfig { block_size: BLOCK, blocks: 16, dummy: true, ..BlockConfig::default() })
    }

    fn abilities(batch_sizes: &[u32], rectangles: bool) -> Abilities {
        Abilities { batch_sizes: batch_sizes.to_vec(), rectangles, ..Abilities::all(1, 64, 8) }
    }

    /// A claimed step; `fed` lists sequences with the number of tokens of each.
    fn step(cache: &mut dyn Cache, id: u64, fed: &[(SeqId, u32)], left: u32) -> Result<Step, CacheError> {
        let claims: Vec<ClaimRow> = fed.iter().map(|(seq, n)| ClaimRow::new(*seq, *n)).collect();
        let mut step = Step::default();
        cache.claim(StepId(id), &claims)?;
        cache.plan(StepId(id), &mut step.plan)?;
        cache.retire(StepId(id))?;
        for (i, (seq, n)) in fed.iter().enumerate() {
            let tokens = Span::new(step.batch.tokens.len(), *n as usize);
            step.batch.tokens.extend(7..7 + n);
            let kind = if *n == 1 { RowKind::Decode } else { RowKind::Prefill };
            let pool_row = PoolRow(i as u32);
            let row =
                BatchRow { seq: *seq, kind, tokens, sample_from: n - 1, pool_row, ..BatchRow::default() };
            step.batch.rows.push(row);
        }
        step.plan.rows[0].left_pad_blocks = left;
        Ok(step)
    }

    /// Slots that a query of a row sees, in order.
    fn seen(plan: &Plan, row: usize, query: u32) -> Vec<Slot> {
        let row = &plan.rows[row];
        let entries = plan.entries(row).enumerate();
        entries.filter(|(i, _)| plan.sees(row, query, *i as u32)).map(|(_, entry)| entry.1).collect()
    }

    #[test]
    fn a_chunk_gets_dummy_blocks_and_tokens() -> Result<(), CacheError> {
        let mut cache = cache()?;
        let seq = cache.open()?;
        let mut chunk = step(&mut cache, 1, &[(seq, 6)], 1)?;
        let before = chunk.clone();
        let abilities = abilities(&[], true);
        let mut fitting = Fitting::new(Padding::new(&abilities, cache.shape().dummy_slot, Some(BLOCK), 8));
        let original = fitting.fit(&mut chunk, &abilities).unwrap_or_default();
        assert_eq!(chunk.check_sizes(64), Ok(()));
        let kinds: Vec<_> = chunk.batch.rows.iter().map(|row| (row.kind, row.tokens.len)).collect();
        assert_eq!(kinds, [(RowKind::Dummy, 4), (RowKind::Prefill, 6), (RowKind::Dummy, 2)]);
        let row = &chunk.plan.rows[1];
        assert_eq!(row.read_len, 3 * BLOCK, "a dummy block, and two blocks of the sequence");
        let read: Vec<Slot> = chunk.plan.entries(row).map(|entry| entry.1).collect();
        assert_eq!(read[..6], [0, 1, 2, 3, 4, 5], "block 0 is the dummy");
        for query in 0..6 {
            assert_eq!(seen(&chunk.plan, 1, query), seen(&before.plan, 0, query));
        }
        assert!(
            chunk.plan.write_slots.iter().enumerate().all(|(i, slot)| (4..10).contains(&i) || *slot == 0)
        );
        chunk.output.rows =
            vec![OutputRow::default(), OutputRow { tokens: Span::new(0, 1) }, OutputRow::default()];
        chunk.output.broken = vec![1];
        chunk.output.proposals = vec![DraftProposal { row: 1, ..DraftProposal::default() }];
        original.restore(&mut chunk);
        assert_eq!((&chunk.batch, &chunk.plan), (&before.batch, &before.plan));
        assert_eq!(chunk.output.rows, [OutputRow { tokens: Span::new(0, 1) }]);
        assert_eq!((&chunk.output.broken[..], chunk.output.proposals[0].row), (&[0][..], 0));
        assert_eq!(chunk.output.padding, 6);
        Ok(())
    }

    #[test]
    fn decode_rows_are_equally_wide_and_as_many_as_declared() -> Result<(), CacheError> {
        let mut cache = cache()?;
        let seqs = [cache.open()?, cache.open()?, cache.open()?];
        step(&mut cache, 1, &[(seqs[0], 3), (seqs[1], 9), (seqs[2], 8)], 0)?;
        let decode = step(&mut cache, 2, &[(seqs[0], 1), (seqs[1], 1), (seqs[2], 1)], 2)?;
        let padded = |abilities: &Abilities| {
            let padding = Padding::new(abilities, cache.shape().dummy_slot, Some(BLOCK), 8);
            padding.pad(&decode).map(|(batch, plan)| Step { batch, plan, ..Step::default() })
        };
        assert_eq!(padded(&abilities(&[], false)), None);
        assert_eq!(padded(&abilities(&[1, 2, 3], false)), None);
        assert_eq!(padded(&abilities(&[1, 2, 9], false)), None, "9 is more than the bound of 8");
        let ragged = padded(&abilities(&[2, 5, 8], false)).unwrap_or_default();
        assert_eq!(ragged.check_sizes(64), Ok(()));
        assert_eq!((ragged.batch.rows.len(), ragged.plan.rows[0]), (5, decode.plan.rows[0]));
        let wide = padded(&abilities(&[4], true)).unwrap_or_default();
        assert_eq!(wide.check_sizes(64), Ok(()));
        let widths: Vec<_> = wide.plan.rows.iter().map(|row| row.read_len).collect();
        assert_eq!(widths, [12, 12, 12, 0]);
        for row in 0..3 {
            assert_eq!(seen(&wide.plan, row, 0), seen(&decode.plan, row, 0));
        }
        let prefill = step(&mut cache, 3, &[(seqs[0], 2)], 0)?;
        assert_eq!(Padding::new(&abilities(&[4], false), 0, None, 8).pad(&prefill), None);
        Ok(())
    }

    #[test]
    fn a_row_with_drafts_counts_as_one_row() -> Result<(), CacheError> {
        let mut cache = cache()?;
        let seqs = [cache.open()?, cache.open()?];
        let mut drafts = step(&mut cache, 1, &[(seqs[0], 1), (seqs[1], 3)], 0)?;
        drafts.batch.rows[1].kind = RowKind::MultiDecode;
        let with_drafts =
            Padding::new(&abilities(&[4], false), cache.shape().dummy_slot, None, 8).pad(&drafts);
        let tokens = with_drafts.map(|(batch, _)| batch.rows.iter().map(|row| row.tokens.len).collect());
        assert_eq!(tokens, Some(vec![1, 3, 1, 1]));
        Ok(())
    }
}

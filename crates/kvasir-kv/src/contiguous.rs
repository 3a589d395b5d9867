use crate::{
    BlockId, BlockUse, Cache, CacheError, CacheKind, ClaimRow, Layout, Mask, Plan, PlanKind, PlanRow,
    Position, Rewind, Rings, Room, Segment, SeqId, SharedPrefix, Span, StepId, line::Line, prefix::Lease,
};

/// One sequence and a length counter: row `i` of the sequence lies in slot `i`. The fastest single stream.
///
/// It may stand on a [`SharedPrefix`]; its positions then begin behind the prefix and every read has the prefix in front.
/// It may have [`Rings`]; it then refuses to rewind into what a ring has lost.
#[derive(Debug)]
pub struct Contiguous {
    line: Line,
    prefix: Option<Lease>,
    rings: Option<Rings>,
}

impl Contiguous {
    /// A cache of `capacity` slots.
    pub fn new(capacity: u32) -> Self {
        Self { line: Line::new(capacity), prefix: None, rings: None }
    }

    /// A cache whose layers with a window keep rings.
    pub fn with_rings(capacity: u32, rings: Rings) -> Self {
        Self { rings: Some(rings), ..Self::new(capacity) }
    }

    /// A cache behind a frozen prefix.
    pub(crate) fn behind(prefix: Lease, capacity: u32) -> Result<Self, CacheError> {
        match prefix.rows().checked_add(capacity) {
            Some(_) => Ok(Self { prefix: Some(prefix), ..Self::new(capacity) }),
            None => Err(CacheError::BadConfig("prefix and capacity together are too long")),
        }
    }

    /// Rows of the sequence in slots of its own, without those of a shared prefix.
    pub fn own_rows(&self) -> u32 {
        self.line.len()
    }

    /// Lowest position that every layer still holds.
    pub fn retained_from(&self) -> Position {
        self.rings.as_ref().map_or(0, |rings| rings.retained_from(self.line.peak()))
    }

    /// Makes what it holds a read-only prefix, which the backend then keeps as `pool`. Refused, and the cache given
    /// back, while a step is in flight.
    pub fn freeze(self, pool: crate::PoolId) -> Result<SharedPrefix, Box<(Self, CacheError)>> {
        if self.line.is_flying() {
            return Err(Box::new((self, CacheError::InFlight)));
        }
        if self.rings.is_some() {
            return Err(Box::new((self, CacheError::BadConfig("a cache with rings cannot be frozen"))));
        }
        let rows = self.line.len();
        Ok(SharedPrefix::new(pool, rows, self.prefix))
    }

    /// Position of the first row in a slot of its own.
    fn base(&self) -> Position {
        self.prefix.as_ref().map_or(0, Lease::rows)
    }
}

impl Cache for Contiguous {
    fn kind(&self) -> CacheKind {
        CacheKind::Contiguous
    }

    fn capacity(&self) -> u32 {
        self.line.capacity()
    }

    fn block_size(&self) -> u32 {
        1
    }

    fn room(&self) -> Room {
        self.line.room(0)
    }

    fn survey(&self, blocks: &mut Vec<BlockUse>) {
        self.room().survey_line(blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.line.check_seq(seq)?;
        into.extend(0..self.room().held);
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.line.generation()
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        self.line.open()
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.line.close(seq)
    }

    fn can_extend(&self, seq: SeqId, tokens: u32) -> bool {
        self.line.check_seq(seq).is_ok() && tokens <= self.line.room(0).free
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.line.check_seq(seq)?;
        Ok(self.base() + self.line.len())
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.line.check_seq(seq)?;
        Ok(self.base() + self.line.claimed())
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.claimed_len(seq)
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        let row = self.line.check_claim(step, rows, 0)?;
        if let Some(longest) = self.rings.as_ref().map(Rings::longest_write)
            && row.tokens > longest
        {
            return Err(CacheError::WriteTooLong { tokens: row.tokens, longest });
        }
        self.line.claim_rows(step, row)
    }

    fn plan(&self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let row = self.line.row(step)?;
        self.line.begin_plan(step, plan, PlanKind::Contiguous);
        if let Some(prefix) = &self.prefix {
            plan.kind = PlanKind::Ragged;
            prefix.push_segments(&mut plan.segments);
        }
        let base = self.base();
        plan.positions.extend(base + row.start..base + row.end);
        plan.write_slots.extend(row.start..row.end);
        let (layout, len) = (Layout::Run { start: 0 }, row.end);
        plan.segments.push(Segment { pool: crate::PoolId(0), layout, len, first: base, sparse: None });
        plan.rows.push(PlanRow {
            seq: row.seq,
            queries: Span::new(0, row.tokens as usize),
            segments: Span::new(0, plan.segments.len()),
            read_len: base + row.end,
            mask: if row.tokens == 1 { Mask::None } else { Mask::Causal },
            left_pad_blocks: 0,
            redirected: 0,
        });
        plan.read_bound = row.end;
        Ok(())
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.line.retire(step).map(|_| ())
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        self.line.cancel(step).map(|_| ())
    }

    fn clear(&mut self) -> Result<(), CacheError> {
        self.line.clear()
    }

    fn check(&self) -> Result<(), String> {
        self.line.check(0)
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Ok(self)
    }
}

impl Rewind for Contiguous {
    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        let length = self.claimed_len(seq)?;
        let lost = self.rings.as_ref().map_or(0, |rings| rings.lowest_rewind(self.line.peak()));
        // Nothing is lost for a rewind that drops nothing.
        let lowest = self.base().max(lost.min(length));
        if to < lowest || to > length {
            return Err(CacheError::RewindOutOfRange { to, lowest, length });
        }
        self.line.rewind(to - self.base());
        Ok(())
    }
}

//! `--cache tree`: one sequence plus draft trees for speculative decoding.
//!
//! Row `i` lies in slot `i`, draft node `n` in the slot `n` past the last row. `commit` keeps the
//! accepted chain: it queues slot copies that move the accepted nodes down to the sequence's end. A
//! step without nodes has a contiguous plan; a step with nodes has an ancestor mask. Guarded by
//! `tests/random_operations.rs`.

use crate::contract::cache::{Cache, CacheShape, ClaimRow};
use crate::contract::capabilities::{Inspect, MemoryHints, Rewind, Tree, VictimSearch, Victims};
use crate::contract::usage::{BlockUse, PoolUsage};

use crate::contract::error::CacheError;
use crate::contract::group::{GroupId, Slots};
use crate::contract::ids::{BlockId, PoolId, Position, SeqId, StepId};
use crate::contract::kind::CacheKind;
use crate::contract::mask::Mask;
use crate::contract::plan::Plan;
use crate::contract::section::{Layout, PlanKind, PlanRow, Section, Segment, SlotCopy};
use crate::contract::span::Span;
use crate::shared::draft_nodes::DraftNodes;
use crate::shared::rewind_target::check_rewind_target;
use crate::shared::single_sequence::{SingleSequence, SingleSequenceRow, Written};
use crate::shared::slot_copies::SlotCopies;

/// One sequence with draft trees behind it: row `i` lies in slot `i`, node `n` in the slot `n` past
/// the last row. A commit moves the accepted nodes' KV rows down to the sequence's end.
#[derive(Debug)]
pub struct TreeCache {
    single: SingleSequence,
    shape: CacheShape,
    nodes: DraftNodes,
    moves: SlotCopies,
    /// Slot copies of the last commit.
    committed: Vec<SlotCopy>,
}

impl TreeCache {
    /// A cache of `capacity` slots.
    pub fn new(capacity: u32) -> Self {
        let (nodes, moves) = (DraftNodes::default(), SlotCopies::default());
        let shape = CacheShape::tokens(CacheKind::Tree, capacity);
        Self { single: SingleSequence::new(capacity), shape, nodes, moves, committed: Vec::new() }
    }

    fn forget_nodes(&mut self) {
        self.nodes.settle();
        self.moves.clear();
    }

    /// A step without draft nodes: a contiguous plan.
    fn plan_rows(&self, row: SingleSequenceRow, plan: &mut Plan) {
        plan.positions.extend(row.start..row.end);
        plan.full.write_slots.extend(row.start..row.end);
        push_run(&mut plan.full, 0, row.end, 0, None);
        let mask = if row.tokens == 1 { Mask::None } else { Mask::Causal };
        push_row(&mut plan.full, row, row.end, mask);
    }

    /// A frontier: the committed rows, then the draft nodes in order of position, under an ancestor
    /// mask.
    fn plan_nodes(&self, row: SingleSequenceRow, plan: &mut Plan) {
        let base = self.single.claimed();
        let frontier = row.start..row.end;
        let Plan { positions, full: section, .. } = plan;
        section.kind = PlanKind::Explicit;
        positions.extend(frontier.clone().map(|node| base + self.nodes.depth(node)));
        section.write_slots.extend(frontier.clone().map(|node| base + node));
        if base > 0 {
            push_run(section, 0, base, 0, None);
        }
        let order = self.nodes.order(row.end);
        section.read_positions.extend(order.iter().map(|&node| base + self.nodes.depth(node)));
        if order.is_sorted() {
            push_run(section, base, row.end, base, Some(0));
        } else {
            section.table.make_mut().extend(order.iter().map(|&node| base + node));
            let layout = Layout::Table { at: 0, block: 1, offset: 0 };
            section.segments.push(Segment {
                pool: PoolId(0),
                layout,
                len: row.end,
                first: base,
                sparse: Some(0),
            });
        }
        let words_per_query = self.nodes.write_mask(frontier, base, None, |_| 0, &mut section.mask_words);
        push_row(section, row, base + row.end, Mask::Explicit { at: 0, words_per_query });
    }
}

fn push_run(section: &mut Section, start: u32, len: u32, first: Position, sparse: Option<u32>) {
    let layout = Layout::Run { start };
    section.segments.push(Segment { pool: PoolId(0), layout, len, first, sparse });
}

fn push_row(section: &mut Section, row: SingleSequenceRow, read_len: u32, mask: Mask) {
    section.rows.push(PlanRow {
        seq: row.seq,
        queries: Span::new(0, row.tokens as usize),
        segments: Span::new(0, section.segments.len()),
        read_len,
        mask,
        ..PlanRow::default()
    });
    section.read_bound = read_len.max(section.moved_bound());
}

impl Cache for TreeCache {
    fn shape(&self) -> &CacheShape {
        &self.shape
    }

    fn usage(&self) -> PoolUsage {
        self.single.usage(self.nodes.unsettled())
    }

    fn generation(&self) -> u64 {
        self.single.generation()
    }

    fn open(&mut self) -> Result<SeqId, CacheError> {
        self.single.open()
    }

    fn close(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.single.close(seq)?;
        self.forget_nodes();
        Ok(())
    }

    fn len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.single.check_seq(seq)?;
        Ok(self.single.len())
    }

    fn claimed_len(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.single.check_seq(seq)?;
        Ok(self.single.claimed())
    }

    fn next_position(&self, seq: SeqId) -> Result<Position, CacheError> {
        self.claimed_len(seq)
    }

    fn claim(&mut self, step: StepId, rows: &[ClaimRow]) -> Result<(), CacheError> {
        let row = self.single.check_claim(step, rows, self.nodes.unsettled())?;
        match self.nodes.proposed() {
            0 if self.nodes.unsettled() > 0 => return Err(CacheError::Unsettled),
            0 => self.single.claim_rows(step, row)?,
            proposed if proposed != row.tokens => return Err(CacheError::BadClaim),
            _ => {
                let frontier = self.nodes.claim();
                self.single.claim_nodes(step, row.seq, frontier)?;
            }
        }
        self.moves.claim(step);
        Ok(())
    }

    fn plan(&mut self, step: StepId, plan: &mut Plan) -> Result<(), CacheError> {
        let row = self.single.row(step)?;
        if row.written == Written::DraftNodes && row.end > self.nodes.unsettled() {
            return Err(CacheError::RowGone(row.seq));
        }
        self.single.begin_plan(step, plan, PlanKind::Contiguous);
        plan.moves.extend_from_slice(self.moves.of(step));
        match row.written {
            Written::Rows => self.plan_rows(row, plan),
            Written::DraftNodes => self.plan_nodes(row, plan),
        }
        Ok(())
    }

    fn retire(&mut self, step: StepId) -> Result<(), CacheError> {
        self.single.retire(step)?;
        self.moves.retire(step);
        Ok(())
    }

    fn cancel(&mut self, step: StepId) -> Result<(), CacheError> {
        if let Some(row) = self.single.cancel(step)?
            && row.written == Written::DraftNodes
        {
            self.nodes.unclaim();
        }
        self.moves.cancel(step);
        Ok(())
    }

    fn rewind(&mut self) -> Result<&mut dyn Rewind, CacheError> {
        Ok(self)
    }

    fn tree(&mut self) -> Result<&mut dyn Tree, CacheError> {
        Ok(self)
    }
}

impl Inspect for TreeCache {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.usage().visit_contiguous(blocks);
        self.moves.lease_sources(blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.single.check_seq(seq)?;
        into.extend(0..self.usage().held);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.single.check(self.nodes.unsettled())
    }
}

impl MemoryHints for TreeCache {}

impl Victims for TreeCache {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let extra = self.nodes.unsettled();
        self.single.victims(search, extra, victims)
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        GroupId::FULL.slots(self.single.slots_held_by(sequences, self.nodes.unsettled()))
    }
}

impl Rewind for TreeCache {
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.claimed_len(seq)?)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        self.single.check_seq(seq)?;
        if !self.nodes.is_idle() {
            return Err(CacheError::Unsettled);
        }
        self.rewind_floor(seq, to)?;
        self.single.rewind(to);
        Ok(())
    }
}

impl Tree for TreeCache {
    fn propose(&mut self, seq: SeqId, parents: &[i32]) -> Result<(), CacheError> {
        self.single.check_seq(seq)?;
        self.nodes.propose(parents)?;
        self.single.touch();
        Ok(())
    }

    fn commit(&mut self, seq: SeqId, accepted: &[u32]) -> Result<&[SlotCopy], CacheError> {
        self.single.check_seq(seq)?;
        self.nodes.check_chain(accepted)?;
        if self.single.has_nodes_in_flight(seq) {
            return Err(CacheError::InFlight);
        }
        let base = self.single.claimed();
        let moves = accepted.iter().enumerate();
        let moves = moves.map(|(i, node)| SlotCopy { from: base + node, to: base + i as u32 });
        self.committed.clear();
        self.committed.extend(moves.filter(|m| m.from != m.to));
        self.moves.push(&self.committed);
        self.nodes.settle();
        self.single.commit(accepted.len() as u32);
        Ok(&self.committed)
    }

    fn unsettled(&self, seq: SeqId) -> Result<u32, CacheError> {
        self.single.check_seq(seq)?;
        Ok(self.nodes.unsettled())
    }
}

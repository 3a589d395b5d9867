use crate::{BlockId, SeqId};
use std::sync::Arc;

/// Tells one cache from every other; a clone is another cache.
#[derive(Debug, Default)]
pub(crate) struct Identity(Arc<()>);

impl Clone for Identity {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What stands where in a plan's table, from the last time that the plan was written: in the next one only what was added
/// since is copied. Steps of many rows, or of long tables, would otherwise copy all of them every time.
///
/// Each table has some room behind it to grow into. One that outgrows it, or that changed, is written anew at the end;
/// when more than half of the whole is out of use everything is.
#[derive(Clone, Debug, Default)]
pub struct KeptTables {
    /// The cache whose tables they are.
    cache: Option<Arc<()>>,
    /// One per row of the plan, in its order.
    tables: Vec<KeptTable>,
    /// Rows of the plan that were written so far.
    rows: usize,
    /// Entries that belong to no row.
    unused: usize,
}

#[derive(Clone, Copy, Debug)]
struct KeptTable {
    seq: SeqId,
    changes: u32,
    at: u32,
    blocks: u32,
    room: u32,
}

/// Two plans are equal if they say the same, whatever they remember.
impl PartialEq for KeptTables {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KeptTables {}

impl KeptTables {
    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.cache = None;
        self.tables.clear();
        self.rows = 0;
        self.unused = 0;
    }

    /// Begins a plan of `cache` in the memory of an earlier one.
    pub(crate) fn begin(&mut self, cache: &Identity, table: &mut Vec<BlockId>) {
        let is_same = self.cache.as_ref().is_some_and(|of| Arc::ptr_eq(of, &cache.0));
        if !is_same || self.unused > table.len() / 2 {
            self.clear();
            table.clear();
            self.cache = Some(Arc::clone(&cache.0));
        }
        self.rows = 0;
    }

    /// Entries that something else than a sequence's table took at the end.
    pub(crate) fn note_unused(&mut self, entries: usize) {
        self.unused += entries;
    }

    /// Brings the next row's blocks into `table` and says where they begin. `changes` tells whether those that were
    /// there are the same still.
    pub(crate) fn place(
        &mut self,
        seq: SeqId,
        changes: u32,
        blocks: &[BlockId],
        table: &mut Vec<BlockId>,
    ) -> u32 {
        self.find(seq);
        let count = blocks.len() as u32;
        if let Some(kept) = self.tables.get_mut(self.rows) {
            self.rows += 1;
            if kept.changes == changes && (kept.blocks..=kept.room).contains(&count) {
                if kept.blocks < count {
                    let (from, to) = ((kept.at + kept.blocks) as usize, (kept.at + count) as usize);
                    table[from..to].copy_from_slice(&blocks[kept.blocks as usize..]);
                    kept.blocks = count;
                }
                return kept.at;
            }
            self.unused += kept.room as usize;
            *kept = write(seq, changes, blocks, table);
            return kept.at;
        }
        self.rows += 1;
        let kept = write(seq, changes, blocks, table);
        self.tables.push(kept);
        kept.at
    }

    /// Drops what is kept for rows that are gone, so that the next one is that of `seq`, or the end is reached.
    fn find(&mut self, seq: SeqId) {
        let rest = self.tables.get(self.rows..).unwrap_or(&[]);
        if rest.first().is_none_or(|kept| kept.seq == seq) {
            return;
        }
        let gone = rest.iter().position(|kept| kept.seq == seq).unwrap_or(rest.len());
        let gone = self.rows..self.rows + gone;
        self.unused += self.tables.drain(gone).map(|kept| kept.room as usize).sum::<usize>();
    }

    /// Ends a plan: rows that it does not have are dropped.
    pub(crate) fn end(&mut self) {
        self.unused += self.tables.drain(self.rows..).map(|kept| kept.room as usize).sum::<usize>();
    }

    /// Most entries that the tables of a plan come to, when those in use are `blocks` in `rows` rows.
    pub(crate) fn most_entries(blocks: usize, rows: usize) -> usize {
        // Half may be out of use when a plan begins, and all may then be written anew.
        4 * (blocks + blocks / 8 + rows * LEAST_ROOM)
    }
}

/// Entries that a table may at least grow by before it is written anew.
const LEAST_ROOM: usize = 4;

fn write(seq: SeqId, changes: u32, blocks: &[BlockId], table: &mut Vec<BlockId>) -> KeptTable {
    let at = table.len();
    let room = blocks.len() + blocks.len() / 8 + LEAST_ROOM;
    table.extend_from_slice(blocks);
    table.resize(at + room, 0);
    KeptTable { seq, changes, at: at as u32, blocks: blocks.len() as u32, room: room as u32 }
}

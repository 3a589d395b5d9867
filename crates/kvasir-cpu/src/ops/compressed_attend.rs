//! Attention to a sliding window and to compressed entries (DeepSeek-V4), as ordinary attention
//! over the KV pool and a second pool.
//!
//! 1. Choose the complete key pools that each query attends to: all, or those that an indexer
//!    selected.
//! 2. Compute their compressed entries once per step, in parallel, into the slots of an
//!    [`EntryBuffer`].
//! 3. Build a view per query: its compressed entries, then its window. Entry `i` has position `i`,
//!    a token of the window has its own position plus [`FIRST_TOKEN_POSITION`]. So the order of
//!    the softmax sums depends on positions only.
//!
//! Compressed entries come first, because the queries of a row share them, and their views then
//! have a common prefix.

use crate::attention::build_views::PlanQuery;
use crate::attention::views::{COMPRESSED_POOL, Run, Views};
use crate::isa::features::Isa;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::{LayerPool, Pool};
use crate::ops::pooled_key::KeySource;
use crate::threads::pool::ThreadPool;
use kvasir_kv::{GroupId, Plan, Slot};
use kvasir_program::LayerFacts;
use std::io;

/// Position of a sequence's first token in views: larger than that of any compressed entry.
const FIRST_TOKEN_POSITION: u32 = 1 << 30;

/// Storage of the compressed entries of one layer in one step.
#[derive(Default)]
pub(crate) struct EntryBuffer {
    pool: Option<Pool>,
}

impl EntryBuffer {
    /// Makes room for `entries` keys of a layer. Previous contents are lost. Fails if the memory
    /// cannot be mapped.
    fn grow(&mut self, facts: &LayerFacts, kind: KvType, entries: usize) -> io::Result<()> {
        let entries = Slot::try_from(entries).map_err(io::Error::other)?;
        let facts = LayerFacts { window: None, index_dim: 0, ..*facts };
        let fits =
            |pool: &&Pool| pool.slots()[0] >= entries && pool.kind() == kind && pool.facts() == [facts];
        if self.pool.as_ref().filter(fits).is_none() {
            self.pool = Some(Pool::new(
                &[facts],
                kind,
                entries.max(1).checked_next_power_of_two().unwrap_or(entries),
            )?);
        }
        if let Some(pool) = &self.pool {
            pool.grow(GroupId::FULL, entries);
        }
        Ok(())
    }

    /// The stored entries.
    pub(crate) fn layer(&self) -> Option<&LayerPool> {
        self.pool.as_ref().map(|pool| &pool.layers[0])
    }
}

/// Operands of attention to a layer's sliding window and compressed entries.
pub(crate) struct CompressedAttention<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) facts: &'a LayerFacts,
    pub(crate) kind: KvType,
    pub(crate) keys: KeySource<'a>,
    /// Entries of the pools that an indexer selected, by token; `None` if all are attended to.
    pub(crate) selected: Option<&'a [Vec<u32>]>,
    pub(crate) window: u32,
}

impl CompressedAttention<'_> {
    /// Computes the compressed entries into `buffer`, and builds the views of all queries.
    ///
    /// # Safety
    /// The KV slots that the plan reads must exist. No other thread may write them concurrently.
    pub(crate) unsafe fn prepare(
        &self,
        threads: &ThreadPool,
        isa: Isa,
        buffer: &mut EntryBuffer,
        views: &mut Views,
    ) -> io::Result<()> {
        let pools = self.keys.pools;
        let attended: Vec<Vec<u32>> =
            (0..self.plan.positions.len()).map(|token| self.attended(token)).collect();
        // The slot of each pool's compressed entry, in order of position within a row.
        let mut slots = vec![Slot::MAX; pools.len()];
        attended.iter().flatten().for_each(|pool| slots[*pool as usize] = 0);
        let wanted: Vec<u32> = (0..pools.len() as u32).filter(|pool| slots[*pool as usize] == 0).collect();
        (0..).zip(&wanted).for_each(|(slot, pool)| slots[*pool as usize] = slot);
        buffer.grow(self.facts, self.kind, wanted.len())?;
        let Some(layer) = buffer.layer() else { return Ok(()) };
        // SAFETY: upheld by the caller; each slot is written once.
        unsafe {
            self.keys.compute(threads, isa, &wanted, &|slot, key| {
                layer.keys.write(isa, slot as Slot, key);
            });
        }
        views.build_queries(self.plan, |PlanQuery { row, query, token }, runs| {
            runs.extend(attended[token].iter().map(|pool| {
                let (position, slot) = (pools.pool(*pool).number, slots[*pool as usize]);
                Run { position, pool: COMPRESSED_POOL, slot, len: 1 }
            }));
            let (read, position) = (pools.read(row), self.plan.positions[token]);
            // Padding entries of the read have low positions and come first. So the search ends at
            // or before the window, and each entry is checked again.
            let first = read.partition_point(|entry| entry.2 + self.window <= position);
            let plan_row = &self.plan.rows[row];
            for (entry, (pool, slot, at)) in (first as u32..).zip(&read[first..]) {
                let in_window = at + self.window > position;
                if in_window && self.plan.sees(plan_row, query, entry) {
                    let position = FIRST_TOKEN_POSITION + at;
                    runs.push(Run { position, pool: pool.0, slot: *slot, len: 1 });
                }
            }
        });
        Ok(())
    }

    /// The pools whose compressed entries a token attends to, in order of position.
    fn attended(&self, token: usize) -> Vec<u32> {
        let pools = self.keys.pools.query(token).pools();
        match self.selected {
            None => pools.collect(),
            Some(selected) => {
                let entries = &selected[token];
                pools
                    .filter(|pool| entries.binary_search(&self.keys.pools.entries(*pool)[0]).is_ok())
                    .collect()
            }
        }
    }
}

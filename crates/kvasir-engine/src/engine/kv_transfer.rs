//! K/V transfer between engines: exports blocks of prompts that another engine will decode, and
//! imports such blocks into the prefix cache.
//!
//! - *Export*: each step completes blocks of requests with
//!   [`Params::hand_off`](crate::Params::hand_off). The core publishes them, and the executor reads
//!   their rows. The transfer thus overlaps with later chunks of the prompt.
//! - *Import*: a request hits imported blocks like any cached prefix. The engine computes blocks
//!   that were not imported.
//!
//! The core handles blocks, the executor rows; only this file uses both. Guarded by
//! `tests/kv_transfer.rs`.

use crate::engine::Engine;
use crate::request::ids::RequestId;
use crate::request::kv_transfer::{KvExport, KvImport};
use kvasir_exec::{Executor, KvLayout, NoKvAccess, RowKind, Step};
use kvasir_kv::{BlockId, CacheError, Slot};
use std::{fmt, sync::Arc};

/// Receives exports on the executor's thread. It must not block.
pub type ExportKv = Arc<dyn Fn(KvExport) + Send + Sync>;

/// Maximum bytes of an export; one block if a block is larger.
const EXPORT_BYTES: usize = 4 << 20;

/// Why an engine can neither export nor import K/V blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvTransferError {
    /// Its cache has no prefix cache, or one that cannot be transferred.
    Cache(CacheError),
    /// Its executor gives no access to its pool.
    Executor(NoKvAccess),
}

impl fmt::Display for KvTransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(error) => error.fmt(f),
            Self::Executor(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KvTransferError {}

/// Receiver of exports, and bytes of a slot.
pub(super) struct Exporter {
    send: ExportKv,
    slot_bytes: usize,
}

impl<E: Executor> Engine<E> {
    /// The layout of its rows, if it can export and import K/V blocks.
    pub fn kv_layout(&mut self) -> Result<KvLayout, KvTransferError> {
        self.core.check_kv_transfer().map_err(KvTransferError::Cache)?;
        self.executor.kv_layout().map_err(KvTransferError::Executor)
    }

    /// Sends the computed blocks of requests with [`Params::hand_off`](crate::Params::hand_off) to
    /// `send`. Returns the layout of their rows.
    pub fn export_kv(&mut self, send: ExportKv) -> Result<KvLayout, KvTransferError> {
        let layout = self.kv_layout()?;
        self.exporter = Some(Exporter { send, slot_bytes: layout.slot_bytes });
        Ok(layout)
    }

    /// Exports the blocks that a step completed.
    pub(super) fn export_computed(&mut self, step: &Step) {
        let Some(Exporter { send, slot_bytes }) = &self.exporter else { return };
        let block_size = self.core.cache().shape().block_size;
        let block_bytes = (*slot_bytes * block_size as usize).max(1);
        let prefills = step.batch.rows.iter().filter(|row| row.kind == RowKind::Prefill);
        for row in prefills {
            let Some(computed) = self.core.take_computed(RequestId(row.request)) else { continue };
            let mut parts = computed.blocks.chunks((EXPORT_BYTES / block_bytes).max(1)).peekable();
            let (tag, mut start) = (computed.tag, computed.start);
            loop {
                let blocks = parts.next().unwrap_or(&[]).to_vec();
                let tokens = blocks.len() as u32 * block_size;
                let is_last = computed.is_last && parts.peek().is_none();
                let (send, bytes) = (Arc::clone(send), *slot_bytes);
                self.executor.access_kv(Box::new(move |pool| {
                    let mut rows = vec![0; bytes * tokens as usize];
                    let parts = rows.chunks_exact_mut(bytes.max(1));
                    slots_of(&blocks, block_size).zip(parts).for_each(|(slot, row)| pool.read(slot, row));
                    send(KvExport { tag, start, tokens, rows, is_last });
                }));
                start += tokens;
                if parts.peek().is_none() {
                    break;
                }
            }
        }
    }

    /// Adds blocks that another engine has computed to the prefix cache, and counts them in the
    /// outbox. Refuses an import if its rows are missing, if the blocks before it are not cached,
    /// or if the pool is in use.
    pub fn import_kv(&mut self, import: KvImport) {
        let tokens = (import.tokens.len() as u32).saturating_sub(import.start);
        let stored = self.store(import, tokens);
        self.core.count_import(tokens, stored);
    }

    /// Stores an import. Returns the number of stored tokens, `None` if the import is refused.
    fn store(&mut self, import: KvImport, tokens: u32) -> Option<u32> {
        let bytes = self.executor.kv_layout().ok()?.slot_bytes;
        if import.rows.len() != bytes.checked_mul(tokens as usize)? {
            return None;
        }
        let (first, blocks) = self.core.import(&import)?;
        let block_size = self.core.cache().shape().block_size;
        let stored = blocks.len() as u32 * block_size;
        if stored > 0 {
            let cached = (first - import.start) as usize * bytes;
            self.executor.access_kv(Box::new(move |pool| {
                let rows = import.rows[cached..].chunks_exact(bytes.max(1));
                slots_of(&blocks, block_size).zip(rows).for_each(|(slot, row)| pool.write(slot, row));
            }));
        }
        Some(stored)
    }
}

fn slots_of(blocks: &[BlockId], block_size: u32) -> impl Iterator<Item = Slot> + '_ {
    blocks.iter().flat_map(move |block| (0..block_size).map(move |i| block * block_size + i))
}

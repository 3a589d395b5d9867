//! Export of the computed blocks of a request, and import of blocks that another engine has
//! computed.

use crate::core::Core;
use crate::request::ids::RequestId;
use crate::request::kv_transfer::KvImport;
use crate::request::sequence::Status;
use kvasir_kv::{BlockId, CacheError};

/// Blocks of a request that were computed since its last export.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ComputedBlocks {
    pub(crate) tag: u64,
    /// First token of the blocks.
    pub(crate) start: u32,
    pub(crate) blocks: Vec<BlockId>,
    /// Whether its prompt is computed.
    pub(crate) is_last: bool,
}

impl Core {
    /// Whether blocks can be exported and imported.
    pub(crate) fn check_kv_transfer(&mut self) -> Result<(), CacheError> {
        self.state.kv.check_transfer()
    }

    /// The blocks of a request with `Params::hand_off` that were computed since its last export.
    /// `None` if there are none yet. Publishes them, so no step writes to them again.
    pub(crate) fn take_computed(&mut self, id: RequestId) -> Option<ComputedBlocks> {
        let state = &mut self.state;
        let entry = state.requests.find(id)?;
        let sequence = &state.requests[entry];
        let (from, upto) = sequence.cold.export.filter(|_| sequence.status == Status::Running)?;
        state.publish(entry, true);
        let (sequence, block) = (&mut state.requests[entry], state.kv.block());
        let (seq, is_last) = (sequence.cache?, sequence.computed >= upto);
        let cache = state.kv.cache_mut();
        let published = cache.prefix().and_then(|prefix| prefix.published(seq)).unwrap_or(0);
        let (first, behind) = (from / block, published.min(upto) / block);
        let mut blocks = Vec::new();
        if first < behind && cache.blocks_of(seq, &mut blocks).is_ok() {
            blocks.truncate(behind as usize);
            blocks.drain(..(first as usize).min(blocks.len()));
        }
        sequence.cold.export = (!is_last).then_some((from.max(behind * block), upto));
        let computed = ComputedBlocks { tag: sequence.tag, start: first * block, blocks, is_last };
        (computed.is_last || !computed.blocks.is_empty()).then_some(computed)
    }

    /// Adds blocks that another engine has computed to the prefix cache. Returns the index of the
    /// first token that was not cached, and the blocks from there on. The caller must write their
    /// rows before it submits another step. `None` if the import is refused.
    pub(crate) fn import(&mut self, import: &KvImport) -> Option<(u32, Vec<BlockId>)> {
        self.state.kv.import(import)
    }

    /// Counts an import of this many tokens. `stored` is the number of stored tokens, `None` if the
    /// import was refused.
    pub(crate) fn count_import(&mut self, tokens: u32, stored: Option<u32>) {
        let counts = &mut self.state.outbox.imports;
        counts.handled += 1;
        match stored {
            Some(stored) => counts.stored += stored,
            None => counts.refused += tokens,
        }
    }
}

//! Import of blocks that another engine has computed into the prefix cache.
//!
//! 1. Open a sequence and attach the cached prefix of the tokens. If the blocks before the import
//!    are not cached, refuse it: a lookup finds a block only after its parents.
//! 2. Import the missing blocks, publish them, and close the sequence.
//!
//! The blocks are then evictable, so an import does not reduce the number of available slots. It is
//! refused if too few slots are available.

use crate::request::kv_transfer::KvImport;
use crate::scheduler::kv_manager::KvManager;
use kvasir_kv::{BlockId, CacheError, Lookup, SeqId};

impl KvManager {
    /// Whether blocks can be exported and imported: prefix caching is on, without a shared prefix,
    /// recurrent states and window groups.
    pub(crate) fn check_transfer(&mut self) -> Result<(), CacheError> {
        self.cache.prefix()?;
        if !self.has_prefix {
            return Err(CacheError::BadConfig("K/V transfer needs prefix caching, which is disabled"));
        }
        if self.has_states() {
            return Err(CacheError::BadConfig(
                "K/V transfer is impossible with recurrent layers: their states are not transferred",
            ));
        }
        if self.has_windows() {
            return Err(CacheError::BadConfig(
                "K/V transfer is impossible with window groups: it transfers blocks of the full group",
            ));
        }
        if self.base > 0 {
            return Err(CacheError::BadConfig("K/V transfer is impossible with a shared prefix"));
        }
        Ok(())
    }

    /// See `Core::import`.
    pub(crate) fn import(&mut self, import: &KvImport) -> Option<(u32, Vec<BlockId>)> {
        let (block, end) = (self.block(), u32::try_from(import.tokens.len()).ok()?);
        let is_whole = import.start.is_multiple_of(block) && end.is_multiple_of(block);
        if self.check_transfer().is_err() || !is_whole || import.start >= end {
            return None;
        }
        let seq = self.cache.open().ok()?;
        let imported = self.import_into(seq, import, end);
        let closed = self.cache.close(seq);
        debug_assert!(closed.is_ok(), "{closed:?}");
        self.retained.note_change();
        imported.ok().flatten()
    }

    fn import_into(
        &mut self,
        seq: SeqId,
        import: &KvImport,
        end: u32,
    ) -> Result<Option<(u32, Vec<BlockId>)>, CacheError> {
        let KvImport { tokens, salt, .. } = import;
        // A lookup excludes the last token, whose logits a request needs.
        let lookup = [&tokens[..], &[0]].concat();
        let prefix = self.cache.prefix()?;
        let cached = prefix.attach(seq, &lookup, *salt, u32::MAX, Lookup::default())?.tokens;
        if cached < import.start {
            return Ok(None);
        }
        let mut blocks = Vec::new();
        if cached < end {
            prefix.import(seq, end)?;
            self.cache.blocks_of(seq, &mut blocks)?;
            blocks.drain(..(cached / self.block()) as usize);
            self.cache.prefix()?.publish(seq, tokens, end)?;
        }
        Ok(Some((cached, blocks)))
    }
}

//! Prefix caching in a block cache: lookup, attach, publish and evict.
//!
//! A lookup never covers the last token of a prompt, because its logits are needed. Publishing
//! stops at the first block that is partial, not retired, a destination of a pending slot copy, or
//! no function of its preceding tokens. Where the index already holds the same content, the
//! sequence adopts the canonical block and releases its own (deduplication).

use crate::blocks::BlockCache;
use crate::blocks::index::{Index, Offer};
use crate::blocks::miss_history::Miss;
use crate::contract::capabilities::{Anchors, Hit, Lookup, Prefix};
use crate::contract::error::CacheError;
use crate::contract::group::{Anchor, GroupId};
use crate::contract::ids::{SeqId, Token};
use crate::contract::kv_event::KvEvent;
use crate::shared::runs::runs;

impl<I: Index> Prefix for BlockCache<I> {
    fn lookup(&mut self, tokens: &[Token], salt: u64) -> Hit {
        let hit = self.find(tokens, salt, u32::MAX);
        self.lookups += 1;
        let hit = Hit { lookup: Lookup(self.lookups), ..hit };
        self.looked_up = Some((hit, salt));
        hit
    }

    fn attach(
        &mut self,
        id: SeqId,
        tokens: &[Token],
        salt: u64,
        limit: u32,
        lookup: Lookup,
    ) -> Result<Hit, CacheError> {
        let seq = self.seqs.get_mut(id)?;
        if seq.end() > 0 {
            return Err(CacheError::CopyOverlaps);
        }
        seq.salt = salt;
        let hit = match self.looked_up.take() {
            // A hit cut by `limit` may end inside a radix node, so it is looked up again.
            Some((hit, of)) if hit.lookup.0 == lookup.0 && of == salt && hit.tokens <= limit => hit,
            _ => self.find(tokens, salt, limit),
        };
        let seq = self.seqs.get_mut(id)?;
        seq.next = hit.tokens;
        seq.published = self.found.len() as u32;
        let is_unused = hit.evictable == GroupId::FULL.slots(hit.tokens);
        for run in runs(&self.found) {
            seq.bound = seq.bound.max(run.end);
            seq.table.extend(run.clone());
            if is_unused { self.ledger.own_unused(run) } else { self.ledger.own_all(run) }
        }
        Ok(hit)
    }

    fn publish(&mut self, seq: SeqId, tokens: &[Token], computed: u32) -> Result<(), CacheError> {
        let from = self.seqs.get(seq)?.published;
        self.publish_blocks(seq, tokens, from, computed / self.config.block_size).map(|_| ())
    }

    fn published(&self, seq: SeqId) -> Result<u32, CacheError> {
        Ok(self.seqs.get(seq)?.published * self.config.block_size)
    }

    fn import(&mut self, seq: SeqId, upto: u32) -> Result<(), CacheError> {
        self.import_rows(seq, upto)
    }

    fn evict(&mut self, slots: u32) -> Result<u32, CacheError> {
        let evicted = self.ledger.index.evict(slots.div_ceil(self.config.block_size));
        if evicted > 0 {
            self.changed();
        }
        Ok(evicted * self.config.block_size)
    }

    fn record_events(&mut self) -> Result<(), CacheError> {
        if !self.config.sharing {
            return Err(CacheError::BadConfig("KV events need prefix caching, which is disabled"));
        }
        // A mirror of the events starts empty.
        self.forget();
        self.ledger.index.record_events();
        Ok(())
    }

    fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        self.ledger.index.take_events(into);
    }
}

impl<I: Index> Anchors for BlockCache<I> {
    fn matched(&self, into: &mut Vec<Anchor>) {
        if self.looked_up.is_some() {
            into.extend(self.found.iter().filter_map(|&block| self.ledger.index.anchor(block)));
        }
    }

    fn anchor_of(&self, seq: SeqId, block: u32) -> Result<Option<Anchor>, CacheError> {
        let block = self.seqs.get(seq)?.block(block);
        Ok(block.and_then(|block| self.ledger.index.anchor(block)))
    }

    fn hash_of(&self, seq: SeqId, block: u32) -> Result<Option<u64>, CacheError> {
        let block = self.seqs.get(seq)?.block(block);
        Ok(block.and_then(|block| self.ledger.index.block_hash(block)))
    }

    fn record_unpublished(&mut self) {
        self.ledger.index.unpublished_anchors().record();
    }

    fn take_unpublished(&mut self, into: &mut Vec<Anchor>) {
        self.ledger.index.unpublished_anchors().take(into);
    }
}

impl<I: Index> BlockCache<I> {
    /// Looks up `tokens`; leaves the blocks in `self.found`.
    fn find(&mut self, tokens: &[Token], salt: u64, limit: u32) -> Hit {
        self.looked_up = None;
        self.found.clear();
        if !self.config.sharing {
            return Hit::default();
        }
        // The last token is always computed, because its logits are needed.
        let block_size = self.config.block_size;
        let max_blocks = tokens.len().saturating_sub(1).min(limit as usize) as u32 / block_size;
        let index = &mut self.ledger.index;
        let found = index.find(tokens, salt, max_blocks, &mut self.found);
        let reason = (found.blocks < max_blocks).then(|| {
            let next = (found.blocks * block_size) as usize..((found.blocks + 1) * block_size) as usize;
            index.explain(Miss { parent: self.found.last().copied(), salt, tokens: &tokens[next] })
        });
        Hit {
            tokens: found.blocks * block_size,
            evictable: GroupId::FULL.slots(found.evictable * block_size),
            matched: found.blocks * block_size,
            cache_end: reason.map(|reason| reason.cache_end),
            other_salt: reason.map_or(0, |reason| reason.other_salt),
            lookup: Lookup::default(),
        }
    }

    /// Publishes a sequence's blocks `from .. to` as far as they are full, retired and without
    /// holes, but never past an unpublished block. Returns how many leading blocks of it are
    /// findable then.
    pub(crate) fn publish_blocks(
        &mut self,
        id: SeqId,
        tokens: &[Token],
        from: u32,
        to: u32,
    ) -> Result<u32, CacheError> {
        let block_size = self.config.block_size;
        let seq = self.seqs.get_mut(id)?;
        let known = tokens.len().min(u32::MAX as usize) as u32;
        let mut to =
            to.min(seq.retired_next(self.inflight.retired()).min(seq.impure_from).min(known) / block_size);
        if !self.config.sharing || from > seq.published {
            return Ok(seq.published);
        }
        if !self.moves.is_empty() {
            // A block that a pending slot copy still has to fill is not complete.
            let is_filled = |&block: &u32| !self.moves.fills(block);
            to = seq.table.range(0..to).take_while(is_filled).count() as u32;
        }
        if to == 0 {
            return Ok(seq.published);
        }
        // Even with nothing new, the index refreshes the eviction order of the prefix.
        let offer = Offer {
            table: seq.table.blocks(),
            tokens: &tokens[..(to * block_size) as usize],
            salt: seq.salt,
            from: from.min(to),
        };
        self.looked_up = None;
        let mut canonical = std::mem::take(&mut self.found);
        canonical.clear();
        let published = self.ledger.index.publish(offer, &mut canonical);
        seq.published = seq.published.max(published);
        self.adopt(id, &canonical)?;
        self.found = canonical;
        Ok(published)
    }

    /// Deduplication: replaces blocks of a sequence by canonical ones with equal content and
    /// releases its own.
    fn adopt(&mut self, id: SeqId, canonical: &[u32]) -> Result<(), CacheError> {
        let same = self.seqs.get(id)?.table.blocks().common_prefix(canonical);
        let mut replaced = false;
        for (at, &block) in canonical.iter().enumerate().skip(same) {
            let seq = self.seqs.get_mut(id)?;
            let last_step = seq.last_step;
            let own = seq.table.block(at as u32);
            if own != block {
                seq.table.edit(|blocks| blocks[at] = block);
                seq.bound = seq.bound.max(block + 1);
                self.ledger.own(block);
                self.release(last_step, own);
                replaced = true;
            }
        }
        if replaced {
            self.changed();
        }
        Ok(())
    }
}

//! Inspection and the optional capabilities of `Grouped`: truncation, forks and prefix hits, each
//! at a length that has a state.

use crate::contract::capabilities::{
    Hit, Inspect, Lookup, MemoryHints, Prefix, Rewind, Sequences, VictimSearch, Victims,
};
use crate::contract::error::CacheError;
use crate::contract::ids::{BlockId, Position, SeqId, Token};
use crate::contract::kv_event::KvEvent;
use crate::contract::usage::BlockUse;
use crate::grouped::Grouped;
use crate::shared::rewind_target::check_rewind_target;
use std::ops::Range;

impl Inspect for Grouped {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.primary.visit_blocks(blocks);
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.primary.blocks_of(seq, into)
    }

    fn check(&self) -> Result<(), String> {
        self.primary.check()?;
        self.states.check()?;
        for seq in self.states.ids() {
            let (len, covered) = (self.primary.next_position(seq), self.states.covered_len(seq));
            if len != covered {
                return Err(format!("{seq:?} has length {len:?}, its states cover {covered:?}"));
            }
        }
        Ok(())
    }
}

impl MemoryHints for Grouped {
    fn reserve_memory(&mut self, seq: SeqId, tokens: u32) {
        self.primary.reserve_memory(seq, tokens);
    }

    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        self.primary.reserve_plan_memory(blocks, rows);
    }

    fn compact(&mut self) -> Result<u32, CacheError> {
        self.primary.compact()
    }
}

/// Victims are chosen by the K/V slots of group 0.
impl Victims for Grouped {
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        self.primary.victims(search, victims)
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> u32 {
        self.primary.slots_held_by(sequences)
    }
}

impl Grouped {
    /// Fails with `NoCheckpoint` if no state is at length `to`.
    fn check_floor(&mut self, seq: SeqId, to: Position) -> Result<(), CacheError> {
        let floor = self.rewind_floor(seq, to)?;
        if floor == to { Ok(()) } else { Err(CacheError::NoCheckpoint { to, nearest: floor }) }
    }

    /// The hit `matched` of the primary cache, with the reason why only `usable` of its tokens can
    /// be used. `self.anchors` must hold the anchors of its blocks, up to the caller's limit.
    fn with_reason(&self, matched: Hit, usable: u32) -> Hit {
        let block_size = self.shape.block_size;
        let unusable = &self.anchors[(usable / block_size) as usize..];
        if !unusable.is_empty() {
            let short = Some(self.states.miss_reason(unusable));
            return Hit { short, other_salt: 0, ..matched };
        }
        let is_limited = usable < matched.tokens;
        Hit { short: if is_limited { None } else { matched.short }, ..matched }
    }

    /// Completes a copy of `src` up to `upto`, which the primary has made in `dst`: shares the
    /// checkpoints and truncates `dst` to the last one.
    fn share_states(&mut self, src: SeqId, dst: SeqId, upto: Position) -> Result<(), CacheError> {
        let len = self.states.share_checkpoints(src, dst, upto);
        if len < self.primary.next_position(dst)? {
            self.primary.rewind()?.rewind_to(dst, len)
        } else {
            Ok(())
        }
    }
}

impl Rewind for Grouped {
    fn rewind_floor(&self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.primary.next_position(seq)?)?;
        self.states.floor(seq, to)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        self.check_floor(seq, to)?;
        self.primary.rewind()?.rewind_to(seq, to)?;
        self.states.rewind(seq, to);
        Ok(())
    }

    fn rewind_to_checkpoint(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.primary.next_position(seq)?)?;
        let len = self.states.checkpoint_floor(seq, to)?;
        self.primary.rewind()?.rewind_to(seq, len)?;
        self.states.rewind(seq, len);
        self.states.release_idle_tail(seq);
        Ok(len)
    }
}

impl Sequences for Grouped {
    /// Accepts only copies from position 0 into an empty sequence: no other has a state at its end.
    fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let (len, next) = (self.primary.len(src)?, self.primary.next_position(dst)?);
        let upto = range.end.min(len);
        if range.start > 0 && range.start < upto {
            return Err(CacheError::NoCheckpoint { to: upto, nearest: next });
        }
        self.primary.sequences()?.copy(src, dst, range.start..upto)?;
        if range.start < upto { self.share_states(src, dst, upto) } else { Ok(()) }
    }

    fn remove(&mut self, seq: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let next = self.primary.next_position(seq)?;
        if range.start >= range.end || range.start >= next {
            return self.primary.sequences()?.remove(seq, range);
        }
        if range.end < next {
            let nearest = self.states.floor(seq, range.start)?;
            return Err(CacheError::NoCheckpoint { to: range.start, nearest });
        }
        self.check_floor(seq, range.start)?;
        self.primary.sequences()?.remove(seq, range.clone())?;
        self.states.rewind(seq, range.start);
        Ok(())
    }

    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.primary.sequences()?.keep(seq)?;
        let closed: Vec<SeqId> = self.states.ids().filter(|&id| self.primary.len(id).is_err()).collect();
        closed.into_iter().for_each(|id| self.states.close(id));
        Ok(())
    }

    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError> {
        let upto = self.primary.len(seq)?;
        let forks = self.primary.sequences()?.fork(seq, n)?;
        forks.iter().for_each(|&fork| self.states.open(fork));
        forks.iter().try_for_each(|&fork| self.share_states(seq, fork, upto))?;
        Ok(forks)
    }
}

impl Prefix for Grouped {
    fn lookup(&mut self, tokens: &[Token], salt: u64) -> Hit {
        let matched = self.match_prompt(tokens, salt).unwrap_or_default();
        let usable = self.states.usable_blocks(&self.anchors) * self.shape.block_size;
        let explained = self.with_reason(matched, usable);
        match self.primary.prefix() {
            // A second lookup, of the usable prefix, counts its evictable slots.
            Ok(prefix) if usable < matched.tokens => {
                let hit = prefix.lookup(tokens.get(..usable as usize + 1).unwrap_or(tokens), salt);
                Hit { tokens: hit.tokens, evictable: hit.evictable, lookup: hit.lookup, ..explained }
            }
            _ => explained,
        }
    }

    fn attach(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        salt: u64,
        limit: u32,
        _lookup: Lookup,
    ) -> Result<Hit, CacheError> {
        if self.primary.next_position(seq)? > 0 {
            return Err(CacheError::CopyOverlaps);
        }
        // Checkpoints may have been evicted since the lookup.
        let matched = self.match_prompt(tokens, salt)?;
        let block_size = self.shape.block_size;
        self.anchors.truncate((limit / block_size) as usize);
        let usable = self.states.usable_blocks(&self.anchors) * block_size;
        let explained = self.with_reason(matched, usable);
        let hit = self.primary.prefix()?.attach(seq, tokens, salt, usable, matched.lookup)?;
        self.anchors.truncate((hit.tokens / block_size) as usize);
        self.states.attach(seq, &self.anchors);
        self.states.mark(seq, &[matched.tokens])?;
        Ok(Hit { tokens: hit.tokens, evictable: hit.evictable, lookup: hit.lookup, ..explained })
    }

    fn publish(&mut self, seq: SeqId, tokens: &[Token], computed: u32) -> Result<(), CacheError> {
        let prefix = self.primary.prefix()?;
        prefix.publish(seq, tokens, computed)?;
        let published = prefix.published(seq)?;
        self.unlink_evicted();
        if let Some(anchors) = self.primary.anchors() {
            self.states.link(seq, published, |block| anchors.anchor_of(seq, block).ok().flatten());
        }
        Ok(())
    }

    fn published(&self, _seq: SeqId) -> Result<u32, CacheError> {
        Err(CacheError::BadConfig(NO_TRANSFER))
    }

    fn import(&mut self, _seq: SeqId, _upto: u32) -> Result<(), CacheError> {
        Err(CacheError::BadConfig(NO_TRANSFER))
    }

    fn evict(&mut self, slots: u32) -> Result<u32, CacheError> {
        let evicted = self.primary.prefix()?.evict(slots)?;
        self.unlink_evicted();
        Ok(evicted)
    }

    fn record_events(&mut self) -> Result<(), CacheError> {
        self.primary.prefix()?.record_events()?;
        self.unlink_evicted();
        Ok(())
    }

    fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        if let Ok(prefix) = self.primary.prefix() {
            prefix.take_events(into);
        }
    }
}

const NO_TRANSFER: &str =
    "K/V transfer does not support recurrent states: K/V blocks without a state cannot be resumed";

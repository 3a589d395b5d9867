//! Inspection and the optional capabilities of `Grouped`: truncation, forks and prefix hits, each
//! at a length at which every group can continue.

use crate::contract::cache_end::CacheEnd;
use crate::contract::capabilities::{
    Hit, Inspect, Lookup, MemoryHints, Prefix, Rewind, Sequences, VictimSearch, Victims,
};
use crate::contract::error::CacheError;
use crate::contract::group::{GroupId, Slots};
use crate::contract::ids::{BlockId, Position, SeqId, Token};
use crate::contract::kv_event::KvEvent;
use crate::contract::usage::BlockUse;
use crate::grouped::Grouped;
use crate::grouped::states::group::StateGroup;
use crate::shared::rewind_target::check_rewind_target;
use std::collections::HashSet;
use std::ops::Range;

impl Inspect for Grouped {
    fn visit_blocks(&self, blocks: &mut Vec<BlockUse>) {
        self.primary.visit_blocks(blocks);
    }

    fn visit_blocks_of(&self, group: GroupId, blocks: &mut Vec<BlockUse>) {
        match self.window(group) {
            Some(window) => window.visit_blocks(blocks),
            None => self.primary.visit_blocks_of(group, blocks),
        }
    }

    fn blocks_of(&self, seq: SeqId, into: &mut Vec<BlockId>) -> Result<(), CacheError> {
        self.primary.blocks_of(seq, into)
    }

    fn check(&self) -> Result<(), String> {
        self.primary.check()?;
        self.windows.iter().try_for_each(|window| window.check(&*self.primary))?;
        let Some(states) = &self.states else { return Ok(()) };
        states.check()?;
        for seq in states.ids() {
            let (len, covered) = (self.primary.next_position(seq), states.covered_len(seq));
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
        self.windows.iter_mut().for_each(|window| window.reserve_memory(seq, tokens));
    }

    fn reserve_plan_memory(&mut self, blocks: usize, rows: usize) {
        self.primary.reserve_plan_memory(blocks, rows);
        self.windows.iter_mut().for_each(|window| window.reserve_plan_memory(rows));
    }

    fn compact(&mut self) -> Result<u32, CacheError> {
        self.primary.compact()
    }
}

impl Victims for Grouped {
    /// If one group is short of slots, selects victims by its search. If several are, selects the
    /// union of their victims. Then drops each victim, from the last to the first, if the others
    /// suffice in all groups.
    fn victims(&mut self, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let short_groups: Vec<GroupId> =
            self.shape.groups.iter().map(|(id, _)| id).filter(|id| search.slots[id.index()] > 0).collect();
        if let [] | [_] = short_groups[..] {
            let group = short_groups.first().copied().unwrap_or_default();
            return self.victims_in(group, search, victims);
        }
        let (mut group_victims, mut all_victims) = (Vec::new(), HashSet::new());
        for &group in &short_groups {
            if !self.victims_in(group, search, &mut group_victims) {
                victims.clear();
                return false;
            }
            all_victims.extend(group_victims.drain(..));
        }
        victims.clear();
        victims.extend(search.candidates.iter().filter(|seq| all_victims.contains(seq)));
        for at in (0..victims.len()).rev() {
            let victim = victims.remove(at);
            let others = VictimSearch { candidates: victims, ..*search };
            if !short_groups.iter().all(|&group| self.victims_in(group, &others, &mut group_victims)) {
                victims.insert(at, victim);
            }
        }
        true
    }

    fn slots_held_by(&mut self, sequences: &[SeqId]) -> Slots {
        let mut slots = self.primary.slots_held_by(sequences);
        for (count, window) in slots.iter_mut().skip(1).zip(&mut self.windows) {
            *count = window.slots_held_by(sequences);
        }
        if let Some((group, states)) = self.shape.groups.states().zip(self.states.as_ref()) {
            slots[group.index()] = states.tails_held_by(sequences, true);
        }
        slots
    }
}

impl Grouped {
    /// Selects victims by the slots of one group.
    fn victims_in(&mut self, group: GroupId, search: &VictimSearch<'_>, victims: &mut Vec<SeqId>) -> bool {
        let slots = search.slots[group.index()];
        let search = VictimSearch { slots: GroupId::FULL.slots(slots), ..*search };
        if group == GroupId::FULL {
            return self.primary.victims(&search, victims);
        }
        if let Some(window) = self.windows.get_mut(group.index() - 1) {
            return window.victims(&search, victims);
        }
        self.states.as_ref().is_some_and(|states| states.victims(&search, victims))
    }

    /// Shortens the hit `matched` of the primary cache to the longest one, at most `limit` blocks,
    /// at whose end every group can continue. `self.anchors` must hold the anchors of its blocks,
    /// and then holds those of the usable ones.
    fn usable_hit(&mut self, matched: Hit, limit: u32) -> Hit {
        let usable = self.usable_blocks(limit);
        let tokens = usable * self.shape.block_size;
        let hit = Hit { tokens, ..self.with_reason(matched, usable, limit) };
        self.anchors.truncate(usable as usize);
        hit
    }

    /// The hit `matched` of the primary cache, with the reason why only `usable` of its blocks can
    /// be used. `self.anchors` must hold the anchors of its blocks; `limit` is the caller's, in
    /// blocks.
    fn with_reason(&self, matched: Hit, usable: u32, limit: u32) -> Hit {
        let found = (self.anchors.len() as u32).min(limit);
        let unusable = &self.anchors[usable as usize..found as usize];
        if !unusable.is_empty() {
            let are_windows_cached = self.windows.iter().all(|window| window.caches_window_before(found));
            let states = self.states.as_ref().filter(|_| are_windows_cached);
            let cache_end = states.map_or(CacheEnd::WindowReleased, |states| states.miss_reason(unusable));
            return Hit { cache_end: Some(cache_end), other_salt: 0, ..matched };
        }
        let is_limited = usable * self.shape.block_size < matched.tokens;
        Hit { cache_end: if is_limited { None } else { matched.cache_end }, ..matched }
    }

    /// Completes a copy of `src` up to `upto`, which the other groups have made in `dst`: shares
    /// the checkpoints and truncates `dst` to the last one at which every window can continue.
    fn share_states(&mut self, src: SeqId, dst: SeqId, upto: Position) -> Result<(), CacheError> {
        let Some(states) = &mut self.states else { return Ok(()) };
        let len = states.share_checkpoints(src, dst, upto);
        if len == self.primary.next_position(dst)? {
            return Ok(());
        }
        self.rewind_groups(dst, self.window_floor(dst, len)?)
    }

    /// Truncates a sequence in every group to `to`, a length at which all of them can continue.
    fn rewind_groups(&mut self, seq: SeqId, to: Position) -> Result<(), CacheError> {
        self.primary.rewind()?.rewind_to(seq, to)?;
        if let Some(states) = &mut self.states {
            states.rewind(seq, to);
        }
        self.windows.iter_mut().try_for_each(|window| window.rewind(seq, to))
    }
}

impl Rewind for Grouped {
    fn rewind_floor(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.primary.next_position(seq)?)?;
        self.floor(seq, to)
    }

    fn rewind_to(&mut self, seq: SeqId, to: u32) -> Result<(), CacheError> {
        check_rewind_target(to, 0..=self.primary.next_position(seq)?)?;
        self.check_floor(seq, to)?;
        self.rewind_groups(seq, to)
    }

    fn rewind_to_checkpoint(&mut self, seq: SeqId, to: u32) -> Result<u32, CacheError> {
        check_rewind_target(to, 0..=self.primary.next_position(seq)?)?;
        let state_floor = self.states.as_mut().map_or(Ok(to), |states| states.checkpoint_floor(seq, to))?;
        let len = self.window_floor(seq, state_floor)?;
        self.rewind_groups(seq, len)?;
        if let Some(states) = &mut self.states {
            states.release_idle_tail(seq);
        }
        Ok(len)
    }
}

impl Sequences for Grouped {
    /// With states, accepts only copies from position 0 into an empty sequence: no other has a
    /// state at its end.
    fn copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let (end, next) = (self.retired_end(src)?, self.primary.next_position(dst)?);
        let range = range.start..range.end.min(end);
        if self.states.is_some() && range.start > 0 && !range.is_empty() {
            return Err(CacheError::NoCheckpoint { to: range.end, nearest: next });
        }
        self.windows.iter().try_for_each(|window| window.check_copy(src, dst, range.clone()))?;
        self.primary.sequences()?.copy(src, dst, range.clone())?;
        self.windows.iter_mut().try_for_each(|window| window.copy(src, dst, range.clone()))?;
        if range.is_empty() { Ok(()) } else { self.share_states(src, dst, range.end) }
    }

    fn remove(&mut self, seq: SeqId, range: Range<Position>) -> Result<(), CacheError> {
        let next = self.primary.next_position(seq)?;
        if range.start >= range.end || range.start >= next {
            return self.primary.sequences()?.remove(seq, range);
        }
        if range.end >= next {
            self.check_floor(seq, range.start)?;
        } else if self.states.is_some() {
            let nearest = self.floor(seq, range.start)?;
            return Err(CacheError::NoCheckpoint { to: range.start, nearest });
        } else {
            self.windows.iter().try_for_each(|window| window.check_retired(seq, range.end))?;
        }
        self.primary.sequences()?.remove(seq, range.clone())?;
        if let Some(states) = &mut self.states {
            states.rewind(seq, range.start);
        }
        self.windows.iter_mut().try_for_each(|window| window.remove(seq, range.clone()))
    }

    fn keep(&mut self, seq: SeqId) -> Result<(), CacheError> {
        self.primary.sequences()?.keep(seq)?;
        self.windows.iter_mut().try_for_each(|window| window.keep(seq))?;
        if let Some(states) = &mut self.states {
            let closed: Vec<SeqId> = states.ids().filter(|&id| self.primary.len(id).is_err()).collect();
            closed.into_iter().for_each(|id| states.close(id));
        }
        Ok(())
    }

    fn fork(&mut self, seq: SeqId, n: u32) -> Result<Vec<SeqId>, CacheError> {
        let upto = self.retired_end(seq)?;
        self.windows.iter().try_for_each(|window| window.check_fork(seq, n))?;
        let forks = self.primary.sequences()?.fork(seq, n)?;
        for window in &mut self.windows {
            let opened = window.fork(seq, n)?;
            debug_assert_eq!(opened, forks);
        }
        if let Some(states) = &mut self.states {
            forks.iter().for_each(|&fork| states.open(fork));
        }
        forks.iter().try_for_each(|&fork| self.share_states(seq, fork, upto))?;
        Ok(forks)
    }
}

impl Prefix for Grouped {
    fn lookup(&mut self, tokens: &[Token], salt: u64) -> Hit {
        let matched = self.match_prompt(tokens, salt).unwrap_or_default();
        let usable = self.usable_hit(matched, u32::MAX);
        let hit = match self.primary.prefix() {
            // A second lookup, of the usable prefix, counts its evictable slots.
            Ok(prefix) if usable.tokens < matched.tokens => {
                let hit = prefix.lookup(tokens.get(..usable.tokens as usize + 1).unwrap_or(tokens), salt);
                Hit { tokens: hit.tokens, evictable: hit.evictable, lookup: hit.lookup, ..usable }
            }
            _ => usable,
        };
        Hit { evictable: self.evictable_slots(hit.evictable), ..hit }
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
        // Window blocks and checkpoints may have been evicted since the lookup.
        let matched = self.match_prompt(tokens, salt)?;
        let usable = self.usable_hit(matched, limit / self.shape.block_size);
        let hit = self.primary.prefix()?.attach(seq, tokens, salt, usable.tokens, matched.lookup)?;
        debug_assert_eq!(hit.tokens, usable.tokens);
        let evictable = self.evictable_slots(hit.evictable);
        for window in &mut self.windows {
            window.attach(seq, &self.anchors)?;
            window.mark(seq, &[matched.tokens]);
        }
        if let Some(states) = &mut self.states {
            states.attach(seq, &self.anchors);
            states.mark(seq, &[matched.tokens])?;
        }
        Ok(Hit { tokens: hit.tokens, evictable, lookup: hit.lookup, ..usable })
    }

    fn publish(&mut self, seq: SeqId, tokens: &[Token], computed: u32) -> Result<(), CacheError> {
        let prefix = self.primary.prefix()?;
        prefix.publish(seq, tokens, computed)?;
        let published = prefix.published(seq)?;
        self.unlink_evicted();
        let Some(anchors) = self.primary.anchors() else { return Ok(()) };
        let anchor_of = |block| anchors.anchor_of(seq, block).ok().flatten();
        for window in &mut self.windows {
            window.link(seq, published, anchor_of)?;
        }
        if let Some(states) = &mut self.states {
            states.link(seq, published, anchor_of, |block| anchors.hash_of(seq, block).ok().flatten());
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
        self.states.iter_mut().for_each(StateGroup::record_events);
        Ok(())
    }

    fn take_events(&mut self, into: &mut Vec<KvEvent>) {
        self.unlink_evicted();
        let from = into.len();
        if let Ok(prefix) = self.primary.prefix() {
            prefix.take_events(into);
        }
        if let Some(states) = &mut self.states {
            let is_cleared = into[from..].contains(&KvEvent::AllBlocksCleared);
            states.take_events(is_cleared, into);
        }
    }
}

const NO_TRANSFER: &str =
    "K/V transfer supports neither recurrent states nor window groups: it transfers blocks of the full group";

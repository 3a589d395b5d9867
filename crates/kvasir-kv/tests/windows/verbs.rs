//! The operations of the simulation on whole sequences: open with a prefix hit, close, publish,
//! rewind, mark, fork, copy, remove, keep.

use crate::Simulation;
use crate::model::{CachedPrefixes, Sequence};
use kvasir_kv::{CacheEnd, CacheError, Lookup, Position, SeqId, Token};
use std::ops::Range;

impl Simulation {
    fn prompt(&mut self) -> Vec<Token> {
        let (prefix_id, len) = (self.below(3), 1 + self.below(5 * self.block + 60));
        let cut = if self.random.chance(60) { len } else { self.below(len + 1) };
        (0..len).map(|i| if i < cut { prefix_id * 7 + i % 5 } else { self.below(2) + 90 }).collect()
    }

    pub(crate) fn open(&mut self) {
        let Ok(seq) = self.cache.open() else { return };
        self.families += 1;
        let prompt = self.prompt();
        let mut model = Sequence::new(self.windows.len());
        model.family = self.families;
        if self.cache.prefix().is_ok() && self.random.chance(80) {
            model.salt = u64::from(self.below(4) / 3);
            let limit = if self.random.chance(20) { self.below(40) } else { u32::MAX };
            let prefix = self.cache.prefix().unwrap();
            let found = prefix.lookup(&prompt, model.salt);
            let lookup = if limit % 2 == 0 { Lookup::default() } else { found.lookup };
            let before: Vec<u32> = self.evictable();
            let hit = self.cache.prefix().unwrap().attach(seq, &prompt, model.salt, limit, lookup).unwrap();
            assert!(hit.tokens <= found.tokens.min(limit) && hit.tokens < prompt.len() as u32);
            // In window groups, the counted slots are no longer evictable.
            let taken = before.iter().zip(self.evictable()).map(|(before, after)| before - after);
            let counted = hit.evictable[1..].iter().copied();
            assert!(counted.zip(taken).all(|(counted, taken)| counted == taken), "{hit:?}");
            if self.is_exact {
                let expected = self.prefixes.hit(&prompt, model.salt, &self.windows, self.block);
                assert_eq!(found.tokens, expected, "prompt {prompt:?}");
                let matched = self.prefixes.hit(&prompt, model.salt, &[], self.block);
                assert_eq!((found.matched, hit.matched), (matched, matched));
                let is_released = found.cache_end == Some(CacheEnd::WindowReleased);
                assert_eq!(is_released, expected < matched, "{found:?}");
                let most = (prompt.len() as u32 - 1) / self.block * self.block;
                assert_eq!(found.cache_end.is_some(), expected < most, "{found:?}");
                self.totals.missed += matched - expected;
            }
            prompt[..hit.tokens as usize].iter().for_each(|token| model.push(*token));
            for (window, released) in self.windows.iter().zip(&mut model.released) {
                *released = (hit.tokens + 1).saturating_sub(window.window) / self.block;
            }
            self.totals.hits += hit.tokens;
        }
        model.prompt = prompt;
        self.seqs.insert(seq, model);
    }

    /// Evictable slots of each window group.
    fn evictable(&self) -> Vec<u32> {
        let groups = self.cache.shape().groups.iter().skip(1).take(self.windows.len());
        groups.map(|(group, _)| self.cache.usage_of(group).evictable).collect()
    }

    pub(crate) fn close(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        if self.random.chance(60) {
            self.publish(seq);
        }
        self.cache.close(seq).unwrap();
        self.seqs.remove(&seq);
    }

    pub(crate) fn publish(&mut self, seq: SeqId) {
        let model = &self.seqs[&seq];
        let (tokens, computed) = (model.leading_tokens(), model.retired_next());
        let Ok(prefix) = self.cache.prefix() else { return };
        prefix.publish(seq, &tokens, computed).unwrap();
        if self.is_exact {
            self.prefixes.publish(seq, model, computed, self.block);
        }
    }

    pub(crate) fn mark(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let at = self.seqs[&seq].next() + self.below(30);
        self.cache.mark_checkpoints(seq, &[at]).unwrap();
    }

    /// Whether the windows hold the rows that a query at `to` reads.
    fn holds_windows(&self, seq: SeqId, to: Position) -> bool {
        let mut groups = self.windows.iter().zip(&self.seqs[&seq].released);
        groups.all(|(window, released)| *released == 0 || to + 1 >= released * self.block + window.window)
    }

    pub(crate) fn rewind(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let next = self.seqs[&seq].next();
        let to =
            if self.random.chance(50) { next - self.below(next.min(9) + 1) } else { self.below(next + 1) };
        let floor = self.cache.rewind().unwrap().rewind_floor(seq, to).unwrap();
        if self.is_exact {
            assert_eq!(floor, if self.holds_windows(seq, to) { to } else { 0 });
        }
        let before = self.observed();
        let result = self.cache.rewind().unwrap().rewind_to(seq, to);
        if floor < to {
            match result {
                Err(CacheError::WindowReleased { to: refused, nearest }) => {
                    assert_eq!((refused, nearest), (to, floor));
                    self.totals.window_released += 1;
                }
                other => {
                    assert_eq!(other, Err(CacheError::NoCheckpoint { to, nearest: floor }));
                    assert!(self.has_states);
                }
            }
            assert_eq!(self.observed(), before);
            if self.random.chance(50) {
                return;
            }
            self.cache.rewind().unwrap().rewind_to(seq, floor).unwrap();
        } else {
            result.unwrap();
        }
        self.truncate(seq, floor);
    }

    /// Truncates as for a retained session: to 0 if a group cannot continue at the length.
    pub(crate) fn rewind_to_checkpoint(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let to = self.seqs[&seq].next() - self.below(self.seqs[&seq].next().min(30) + 1);
        let held = self.holds_windows(seq, to);
        let len = self.cache.rewind().unwrap().rewind_to_checkpoint(seq, to).unwrap();
        if !self.has_states && self.is_exact {
            assert_eq!(len, if held { to } else { 0 });
        }
        assert!(len <= to && (!self.has_states || len.is_multiple_of(self.block)));
        self.truncate(seq, len);
        let next = self.seqs[&seq].next();
        assert_eq!(self.cache.rewind().unwrap().rewind_floor(seq, next), Ok(next));
    }

    /// Adds copied rows to the model of `dst`. With states, the copy ends at a checkpoint.
    fn record_copy(&mut self, src: SeqId, dst: SeqId, range: Range<Position>) {
        let source = self.seqs[&src].clone();
        let model = self.seqs.get_mut(&dst).unwrap();
        model.copy(&source, range);
        let next = self.cache.next_position(dst).unwrap();
        assert!(next == model.next() || self.has_states && next < model.next());
        model.truncate(next);
    }

    pub(crate) fn fork(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let n = self.below(3);
        let before = self.observed();
        match self.cache.sequences().unwrap().fork(seq, n) {
            Ok(forks) => {
                for fork in forks {
                    let family = self.seqs[&seq].family;
                    let salt = self.seqs[&seq].salt;
                    let mut model = Sequence::new(self.windows.len());
                    (model.family, model.salt) = (family, salt);
                    self.seqs.insert(fork, model);
                    self.record_copy(seq, fork, 0..Position::MAX);
                }
            }
            Err(CacheError::Full { .. } | CacheError::TooManySequences) => {
                assert_eq!(self.observed(), before);
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn copy(&mut self) {
        let (Some(src), Some(dst)) = (self.random_sequence(), self.random_sequence()) else { return };
        let retired = self.seqs[&src].retired_next();
        let from = if self.random.chance(40) { self.below(retired) } else { 0 };
        let to = if self.random.chance(50) { Position::MAX } else { from + self.below(60) };
        let before = self.observed();
        match self.cache.sequences().unwrap().copy(src, dst, from..to) {
            Ok(()) => return self.record_copy(src, dst, from..to),
            Err(CacheError::WindowReleased { .. }) => self.totals.window_released += 1,
            Err(CacheError::NoCheckpoint { .. }) => assert!(self.has_states && from > 0),
            Err(
                CacheError::NothingToCopy
                | CacheError::CopyOverlaps
                | CacheError::NotInFamily
                | CacheError::InFlight
                | CacheError::Full { .. },
            ) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(self.observed(), before);
    }

    pub(crate) fn remove(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        let next = self.seqs[&seq].next();
        let (from, to) = (self.below(next + 1), self.below(next + 9));
        let before = self.observed();
        match self.cache.sequences().unwrap().remove(seq, from..to) {
            Ok(()) if from < to => return self.seqs.get_mut(&seq).unwrap().remove(from..to),
            Ok(()) => return,
            Err(CacheError::WindowReleased { to, .. }) => {
                assert_eq!(to, from);
                self.totals.window_released += 1;
            }
            Err(CacheError::NoCheckpoint { .. }) => assert!(self.has_states),
            Err(CacheError::InFlight) => assert!(to > self.seqs[&seq].retired_next()),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(self.observed(), before);
    }

    pub(crate) fn keep(&mut self) {
        let Some(seq) = self.random_sequence() else { return };
        self.cache.sequences().unwrap().keep(seq).unwrap();
        let closed: Vec<SeqId> =
            self.seqs.keys().copied().filter(|id| self.cache.len(*id).is_err()).collect();
        let family = self.seqs[&seq].family;
        closed.iter().for_each(|id| assert_eq!(self.seqs.remove(id).unwrap().family, family));
        self.prefixes = CachedPrefixes::new(self.windows.len());
    }
}

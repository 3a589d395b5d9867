//! K and V that outlive their request: what a session has computed stays in the pool until somebody needs the room.

use crate::{Core, Sequence, sequence::Moves, world::World};
use kvasir_kv::{SeqId, Token};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A session: requests that go on where another one ended. Who gives it out sees to it that no two conversations share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(pub u64);

/// What one session left: a sequence of the cache without a request, which always ends with a whole block.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) seq: SeqId,
    /// The tokens that its rows stand for.
    pub(crate) tokens: Vec<Token>,
    salt: u64,
    /// Larger is later.
    used: u64,
}

/// What all sessions left. It holds slots as running requests do, and gives them up to whoever runs.
#[derive(Debug, Default)]
pub(crate) struct KeptSessions {
    entries: BTreeMap<SessionId, Kept>,
    uses: u64,
}

impl KeptSessions {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Kept)> {
        self.entries.iter().map(|(session, kept)| (*session, kept))
    }

    fn len_of(&self, session: SessionId) -> u32 {
        self.entries.get(&session).map_or(0, |kept| kept.tokens.len() as u32)
    }

    fn insert(&mut self, session: SessionId, mut kept: Kept) {
        self.uses += 1;
        kept.used = self.uses;
        self.entries.insert(session, kept);
    }

    /// The session that was used longest ago, `except` apart.
    fn oldest(&self, except: Option<SessionId>) -> Option<SessionId> {
        let others = self.entries.iter().filter(|(session, _)| Some(**session) != except);
        others.min_by_key(|(_, kept)| kept.used).map(|(session, _)| *session)
    }
}

impl World {
    /// Slots of whole blocks within `tokens`.
    fn blocks_within(&self, tokens: u32) -> u32 {
        tokens / self.block * self.block
    }

    /// Keeps what an ending request of a session has computed, in place of what the session left before. The request then
    /// owns nothing in the cache.
    pub(crate) fn keep(&mut self, entry: u32) {
        let sequence = &self.slab[entry];
        let (Some(session), Some(seq)) = (sequence.rest.params.session, sequence.cache) else { return };
        let len = self.blocks_within(sequence.computed.min(sequence.tokens.len()));
        // Rows that a move is still to fill are not there yet.
        if len == 0 || sequence.moves != Moves::None {
            return;
        }
        // A step in flight may have claimed more; it writes what nobody will read.
        if self.cache.rewind().and_then(|face| face.rewind_to(seq, len)).is_err() {
            return;
        }
        self.forget(session);
        let sequence = &mut self.slab[entry];
        sequence.cache = None;
        let tokens = sequence.tokens.gather().iter().take(len as usize).copied().collect();
        let kept = Kept { seq, tokens, salt: sequence.rest.params.salt, used: 0 };
        self.kept.insert(session, kept);
    }

    /// Says what is left of an ended request's session.
    pub(crate) fn tell_kept(&mut self, entry: u32) {
        if let Some(session) = self.slab[entry].rest.params.session {
            self.outbox.kept.push((session, self.kept.len_of(session)));
        }
    }

    /// Tokens of a waiting request that its session left, in whole blocks. Never all: the last one is always computed.
    pub(crate) fn kept_hit(&self, sequence: &Sequence) -> u32 {
        let kept = sequence.rest.params.session.and_then(|session| self.kept.entries.get(&session));
        let Some(kept) = kept.filter(|kept| kept.salt == sequence.rest.params.salt) else { return 0 };
        let most = sequence.tokens.len().saturating_sub(1);
        let same = sequence.tokens.common_prefix(&kept.tokens) as u32;
        self.blocks_within(same.min(most))
    }

    /// Makes what a waiting request's session left fit the request: cut where the two part, given up where the request
    /// finds more elsewhere. Returns the tokens that it can go on from.
    pub(crate) fn fit_kept(&mut self, entry: u32, elsewhere: u32, limit: u32) -> u32 {
        let sequence = &self.slab[entry];
        let Some(session) = sequence.rest.params.session else { return 0 };
        let hit = self.blocks_within(self.kept_hit(sequence).min(limit));
        let len = if hit >= elsewhere { hit } else { 0 };
        self.cut_kept(session, len);
        self.kept.len_of(session)
    }

    /// Hands what a session left over to its request.
    pub(crate) fn take_kept(&mut self, entry: u32) -> Option<(SeqId, u32)> {
        let session = self.slab[entry].rest.params.session?;
        let kept = self.kept.entries.remove(&session)?;
        Some((kept.seq, kept.tokens.len() as u32))
    }

    /// Drops what a session left from `len` on.
    fn cut_kept(&mut self, session: SessionId, len: u32) {
        let len = self.blocks_within(len);
        let Some(kept) = self.kept.entries.get_mut(&session) else { return };
        if len as usize >= kept.tokens.len() {
            return;
        }
        let cut = self.cache.rewind().and_then(|face| face.rewind_to(kept.seq, len));
        if len == 0 || cut.is_err() {
            return self.forget(session);
        }
        kept.tokens.truncate(len as usize);
        self.outbox.kept.push((session, len));
    }

    /// Gives up what a session left.
    pub(crate) fn forget(&mut self, session: SessionId) {
        if let Some(kept) = self.kept.entries.remove(&session) {
            let closed = self.cache.close(kept.seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            self.outbox.kept.push((session, 0));
        }
    }

    /// Gives up what was used longest ago, that of `except` apart. False if there is nothing.
    pub(crate) fn evict_kept(&mut self, except: Option<SessionId>) -> bool {
        let oldest = self.kept.oldest(except);
        oldest.inspect(|session| self.forget(*session)).is_some()
    }

    /// Gives up what was used longest ago, if that may help somebody who is `short` of slots. While others run, who will give theirs
    /// back, nothing goes that would not be enough.
    pub(crate) fn evict_kept_for(&mut self, short: u32, except: Option<SessionId>) -> bool {
        let others = self.kept.entries.iter().filter(|(session, _)| Some(**session) != except);
        let slots: usize = others.map(|(_, kept)| kept.tokens.len().saturating_sub(self.base as usize)).sum();
        // A cache may hold more for a sequence than its rows: a radix tree keeps whole edges.
        (self.running.is_empty() || slots >= short as usize) && self.evict_kept(except)
    }

    /// Lets `into` own the first `at` tokens of what `from` left; they stay where they are. Returns how many it owns.
    fn fork_kept(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        self.forget(into);
        let len = self.blocks_within(at.min(self.kept.len_of(from)));
        let Some(source) = self.kept.entries.get(&from).filter(|_| len > 0) else { return 0 };
        let (tokens, salt) = (source.tokens.iter().take(len as usize).copied().collect(), source.salt);
        let source = source.seq;
        // A cache of one sequence, or one that is full of them, shares nothing: the fork computes its own.
        if self.cache.sequences().is_err() {
            return 0;
        }
        let Ok(seq) = self.cache.open() else { return 0 };
        let copied = self.cache.sequences().and_then(|face| face.copy(source, seq, 0..len));
        if copied.is_err() || self.cache.claimed_len(seq) != Ok(len) {
            let closed = self.cache.close(seq);
            debug_assert!(closed.is_ok(), "{closed:?}");
            return 0;
        }
        self.kept.insert(into, Kept { seq, tokens, salt, used: 0 });
        len
    }
}

impl Core {
    /// Tokens whose K and V a session has in the cache while none of its requests runs.
    pub fn kept(&self, session: SessionId) -> u32 {
        self.world.kept.len_of(session)
    }

    /// Lets session `into` begin with the first `at` tokens of what `from` left, without copying. What it got is in the
    /// outbox, and returned; it may be nothing.
    pub fn fork_session(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        let len = self.world.fork_kept(from, into, at);
        self.world.outbox.kept.push((into, len));
        len
    }

    /// Drops what a session left from token `to` on. What it has then is in the outbox.
    pub fn rewind_session(&mut self, session: SessionId, to: u32) {
        self.world.cut_kept(session, to);
        self.world.outbox.kept.push((session, self.world.kept.len_of(session)));
    }

    /// Ends a session: what it left is given up, and what runs under it leaves nothing.
    pub fn end_session(&mut self, session: SessionId) {
        self.world.forget(session);
        self.world.outbox.kept.push((session, 0));
        let of_it = |(entry, sequence): (u32, &Sequence)| {
            (sequence.rest.params.session == Some(session)).then_some(entry)
        };
        let entries: Vec<u32> = self.world.slab.iter().filter_map(of_it).collect();
        entries.into_iter().for_each(|entry| self.world.slab[entry].rest.params.session = None);
    }
}

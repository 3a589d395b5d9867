//! `SessionHomes`: the worker that retains each session's K/V, for a bounded number of sessions.
//!
//! LRU eviction: the caller must call `evict_excess` after `set`, and release the evicted sessions
//! at their workers. Operations on one session take O(log n); `remove_all_on` is linear in all
//! sessions.

use kvasir_engine::SessionId;
use std::collections::{BTreeMap, HashMap};

/// Maximum number of sessions.
const MAX_SESSIONS: usize = 1 << 18;

#[derive(Clone, Copy, Debug)]
struct Home {
    replica: usize,
    used_at: u64,
}

#[derive(Debug)]
pub(crate) struct SessionHomes {
    homes: HashMap<SessionId, Home>,
    /// Sessions by the time of their last use.
    by_use: BTreeMap<u64, SessionId>,
    clock: u64,
    max: usize,
}

impl Default for SessionHomes {
    fn default() -> Self {
        Self::with_limit(MAX_SESSIONS)
    }
}

impl SessionHomes {
    /// Homes of at most `max` sessions.
    pub(crate) fn with_limit(max: usize) -> Self {
        Self { homes: HashMap::new(), by_use: BTreeMap::new(), clock: 0, max: max.max(1) }
    }

    pub(crate) fn get(&self, session: SessionId) -> Option<usize> {
        self.homes.get(&session).map(|home| home.replica)
    }

    /// Assigns a session to a worker, and returns the worker that it had before.
    pub(crate) fn set(&mut self, session: SessionId, replica: usize) -> Option<usize> {
        let before = self.remove(session);
        self.clock += 1;
        self.homes.insert(session, Home { replica, used_at: self.clock });
        self.by_use.insert(self.clock, session);
        before
    }

    pub(crate) fn remove(&mut self, session: SessionId) -> Option<usize> {
        let home = self.homes.remove(&session)?;
        self.by_use.remove(&home.used_at);
        Some(home.replica)
    }

    /// Removes and returns the least recently used session if there are more than the limit.
    pub(crate) fn evict_excess(&mut self) -> Option<(SessionId, usize)> {
        if self.homes.len() <= self.max {
            return None;
        }
        let (_, session) = self.by_use.pop_first()?;
        self.homes.remove(&session).map(|home| (session, home.replica))
    }

    /// Removes all sessions of a worker and returns them, the least recently used first.
    pub(crate) fn remove_all_on(&mut self, replica: usize) -> Vec<SessionId> {
        let is_there = |session: &SessionId| self.get(*session) == Some(replica);
        let sessions: Vec<SessionId> = self.by_use.values().copied().filter(is_there).collect();
        for session in &sessions {
            self.remove(*session);
        }
        sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_session_is_evicted() {
        let mut homes = SessionHomes::with_limit(3);
        for session in 0..3 {
            assert_eq!(homes.set(SessionId(session), 1), None);
        }
        assert_eq!((homes.set(SessionId(0), 2), homes.evict_excess()), (Some(1), None));
        homes.set(SessionId(9), 1);
        assert_eq!((homes.evict_excess(), homes.evict_excess()), (Some((SessionId(1), 1)), None));
        assert_eq!(homes.remove_all_on(1), [SessionId(2), SessionId(9)]);
        assert_eq!((homes.get(SessionId(0)), homes.get(SessionId(2))), (Some(2), None));
        assert_eq!((homes.homes.len(), homes.by_use.len()), (1, 1));
    }
}

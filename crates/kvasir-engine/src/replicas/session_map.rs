//! `SessionMap`: which replica serves a session, for a bounded number of sessions.
//!
//! Two generations: a full young generation replaces the old one, so sessions that were not set
//! since the last replacement are forgotten.

use crate::request::ids::SessionId;
use std::collections::HashMap;

/// Maximum number of sessions in a generation.
const MAX_YOUNG: usize = 1 << 19;

/// The replica of each recent session.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionMap {
    young: HashMap<SessionId, u32>,
    old: HashMap<SessionId, u32>,
}

impl SessionMap {
    pub(crate) fn replica(&self, session: SessionId) -> Option<u32> {
        self.young.get(&session).or_else(|| self.old.get(&session)).copied()
    }

    /// Assigns a session to a replica.
    pub(crate) fn set(&mut self, session: SessionId, replica: u32) {
        if self.young.len() >= MAX_YOUNG && !self.young.contains_key(&session) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(session, replica);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_set_sessions_are_kept_and_others_forgotten() {
        let mut sessions = SessionMap::default();
        for session in 0..2 * MAX_YOUNG as u64 {
            sessions.set(SessionId(session), 1);
            sessions.set(SessionId(7), 2);
        }
        assert_eq!(sessions.replica(SessionId(7)), Some(2));
        assert_eq!(sessions.replica(SessionId(8)), None);
        assert!(sessions.young.len() + sessions.old.len() <= 2 * MAX_YOUNG);
    }
}

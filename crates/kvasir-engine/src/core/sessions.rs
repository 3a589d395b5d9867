//! Operations on the retained K/V of sessions between steps: fork, truncate, cut and end.

use crate::core::Core;
use crate::request::ids::SessionId;
use crate::request::sequence::Sequence;
use kvasir_kv::CacheKind;
use std::{fmt, ops::Range};

/// What keeps a range from being cut out of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CutObstacle {
    /// The cache holds one sequence without gaps.
    Cache(CacheKind),
    /// The policy of this name schedules no sequence with gaps.
    Policy(&'static str),
    /// The state of recurrent layers depends on every token before it.
    RecurrentState,
}

impl fmt::Display for CutObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(kind) => write!(f, "a {kind} cache cannot remove a range of tokens"),
            Self::Policy(name) => write!(f, "the {name} policy takes no sequence with gaps"),
            Self::RecurrentState => {
                write!(f, "the state of recurrent layers depends on every token before it")
            }
        }
    }
}

impl std::error::Error for CutObstacle {}

impl Core {
    /// Retained tokens of a session; 0 while one of its requests runs.
    pub fn retained_len(&self, session: SessionId) -> u32 {
        self.state.kv.retained().len_of(session)
    }

    /// KV slots that only retained sessions and pins own; they are evicted when requests need them.
    /// Counted when a step is scheduled and when the engine becomes idle. It may lag a few steps
    /// behind requests that begin or cease to share these slots.
    pub fn retained_slots(&self) -> u32 {
        self.state.kv.retained().slots()
    }

    pub(crate) fn recount_retained(&mut self) {
        self.state.kv.recount_retained();
    }

    /// Forks a session without copying K/V: `into` starts with the first `at` retained tokens of
    /// `from`, in whole blocks; what `into` retained before is dropped. Returns the shared length,
    /// which may be 0, and reports it in the outbox.
    pub fn fork_session(&mut self, from: SessionId, into: SessionId, at: u32) -> u32 {
        let steps_in_flight = self.state.steps_in_flight;
        let (retained, cache) = self.state.kv.retained_mut();
        let len = retained.fork(cache, from, into, at, steps_in_flight);
        retained.report(into);
        len
    }

    /// Truncates a session's retained K/V to `to` tokens and reports the resulting length in the
    /// outbox.
    pub fn rewind_session(&mut self, session: SessionId, to: u32) {
        let (retained, cache) = self.state.kv.retained_mut();
        retained.truncate(cache, session, to);
        retained.report(session);
    }

    /// Why `cut_session` would drop all K/V behind a range, if it would.
    pub fn cut_obstacle(&self) -> Option<CutObstacle> {
        let shape = self.cache().shape();
        if shape.kind.holds_one_sequence() {
            return Some(CutObstacle::Cache(shape.kind));
        }
        if shape.states.is_some() {
            return Some(CutObstacle::RecurrentState);
        }
        self.policy.redirects().then(|| CutObstacle::Policy(self.policy.name()))
    }

    /// Cuts a range of tokens out of a session's retained K/V and reports the resulting length in the
    /// outbox. The tokens behind it keep their positions, and their K/V remains what it was computed
    /// to be, in the presence of the range.
    pub fn cut_session(&mut self, session: SessionId, range: Range<u32>) {
        let (retained, cache) = self.state.kv.retained_mut();
        retained.cut(cache, session, range);
        retained.report(session);
    }

    /// Ends a session or a pin: drops its retained K/V, and requests that run will retain nothing for
    /// it.
    pub fn end_session(&mut self, session: SessionId) {
        let (retained, cache) = self.state.kv.retained_mut();
        retained.evict(cache, session);
        retained.report(session);
        let requests = &mut self.state.requests;
        let is_of_it = |sequence: &Sequence| {
            let params = &sequence.cold.params;
            params.session == Some(session) || params.pins.iter().any(|pin| pin.session == session)
        };
        let entries: Vec<u32> =
            requests.iter().filter(|(_, sequence)| is_of_it(sequence)).map(|(entry, _)| entry).collect();
        for entry in entries {
            let params = &mut requests[entry].cold.params;
            params.session = params.session.filter(|own| *own != session);
            params.pins.retain(|pin| pin.session != session);
        }
    }
}

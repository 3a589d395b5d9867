//! Isolation of suspects: requests that may be the cause of the loss of their workers.
//!
//! 1. A request whose workers are lost repeatedly before its next token becomes a *suspect*
//!    ([`OpenRequest::is_suspect`](crate::open_request::OpenRequest::is_suspect)).
//! 2. A suspect gets a worker for itself. Requests on that worker move to others or wait.
//! 3. Its next token clears it, and the worker takes other requests again. If several workers are
//!    lost while it is isolated on them, it fails.
//!
//! Invariant: the loss of a worker fails a request only if it was isolated there. Guarded by
//! `only_requests_that_crash_their_workers_fail` in `front/tests.rs`.

use crate::front::{Front, route_of};
use std::sync::Arc;

/// A worker that is reserved for a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isolation {
    /// The caller's tag of the suspect.
    pub(super) tag: u64,
    /// Whether the worker had no other request before. Otherwise its loss counts half, because it
    /// may not have aborted the other requests yet.
    pub(super) was_empty: bool,
}

impl Front {
    /// The isolation of the suspect that a worker is reserved for.
    pub(super) fn isolation(&self, replica: usize) -> Option<Isolation> {
        self.isolations.get(replica).copied().flatten()
    }

    /// Places a suspect alone on a worker. It waits if too many workers are reserved already.
    pub(super) fn place_suspect(&mut self, tag: u64) {
        let ready = (0..self.is_ready.len()).filter(|replica| self.is_ready[*replica]);
        // The last worker is left to other requests, unless there is only one.
        let all_but_one = ready.clone().count().saturating_sub(1).max(1);
        let max_isolations = if self.workers_fail_together { 1 } else { all_but_one };
        if self.isolations.iter().flatten().count() >= max_isolations {
            return;
        }
        let unreserved = ready.filter(|replica| self.isolation(*replica).is_none());
        let Some(replica) = unreserved.min_by_key(|replica| self.run_count(*replica)) else { return };
        let was_empty = self.run_count(replica) == 0;
        let displaced = self.displace_all(replica);
        let Some(open) = self.requests.get(&tag) else { return };
        let (request, phase, tokens) = (Arc::clone(&open.request), open.phase(), open.tokens());
        let charge = self.router.pick(phase, &route_of(&request, tokens, Some(replica)));
        if let Ok(charge) = charge {
            self.isolations[replica] = Some(Isolation { tag, was_empty });
            self.router.set_available(replica, false);
            self.start(tag, vec![charge], false);
        }
        displaced.into_iter().for_each(|tag| self.place(tag, 1));
    }

    /// Ends the isolation of requests that have ended, were moved, or are no longer suspects.
    pub(super) fn end_isolations(&mut self) {
        let mut has_ended = false;
        for replica in 0..self.isolations.len() {
            let Some(Isolation { tag, .. }) = self.isolations[replica] else { continue };
            let is_isolated = self.requests.get(&tag).is_some_and(|open| {
                let placement = open.placement.as_ref();
                open.is_suspect() && placement.is_some_and(|placement| placement.replica == replica)
            });
            if !is_isolated {
                self.isolations[replica] = None;
                self.router.set_available(replica, self.is_ready[replica]);
                has_ended = true;
            }
        }
        if has_ended {
            self.place_waiting();
        }
    }
}

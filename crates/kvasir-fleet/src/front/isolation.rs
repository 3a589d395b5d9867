//! Isolation of suspects: requests that may be the cause of the loss of their workers.
//!
//! 1. A request whose workers are lost repeatedly before its next token becomes a *suspect*
//!    ([`OpenRequest::is_suspect`](crate::open_request::OpenRequest::is_suspect)).
//! 2. A suspect gets a worker for itself. Requests on that worker move to others or wait.
//! 3. With its next token it is a suspect no longer, and the worker takes requests again. If it
//!    loses several workers while it is alone, it fails.
//!
//! So only a request that ends its worker itself fails, however many workers are lost for other
//! reasons.

use crate::front::{Front, route_of};
use std::sync::Arc;

/// A worker that is reserved for a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Isolation {
    pub(super) tag: u64,
    /// Whether the worker had no other request before. Else it may be lost by one that it has not
    /// removed yet, so its loss counts half.
    pub(super) was_empty: bool,
}

impl Front {
    /// The isolation on a worker.
    pub(super) fn isolation(&self, replica: usize) -> Option<Isolation> {
        self.isolated.get(replica).copied().flatten()
    }

    /// Places a suspect alone on a worker. It waits if too many workers are reserved already.
    pub(super) fn place_suspect(&mut self, tag: u64) {
        let ready = (0..self.is_ready.len()).filter(|replica| self.is_ready[*replica]);
        let reserved = self.isolated.iter().flatten().count();
        // The last worker is left to other requests, unless there is only one.
        let most = if self.loses_all_workers { 1 } else { ready.clone().count().saturating_sub(1).max(1) };
        let is_allowed = reserved < most;
        let free = ready.filter(|replica| self.isolation(*replica).is_none());
        let Some(replica) = free.min_by_key(|replica| self.run_count(*replica)).filter(|_| is_allowed) else {
            return;
        };
        let was_empty = self.run_count(replica) == 0;
        let displaced = self.displace_all(replica);
        let Some(open) = self.requests.get(&tag) else { return };
        let (request, phase, tokens) = (Arc::clone(&open.request), open.phase(), open.tokens());
        let charge = self.router.pick(phase, &route_of(&request, tokens, Some(replica)));
        if let Ok(charge) = charge {
            self.isolated[replica] = Some(Isolation { tag, was_empty });
            self.router.set_available(replica, false);
            self.start(tag, vec![charge], false);
        }
        displaced.into_iter().for_each(|tag| self.place(tag, 1));
    }

    /// Ends the isolation of requests that have ended, were moved, or are suspects no longer.
    pub(super) fn end_isolations(&mut self) {
        let mut has_ended = false;
        for replica in 0..self.isolated.len() {
            let Some(Isolation { tag, .. }) = self.isolated[replica] else { continue };
            let is_isolated = self.requests.get(&tag).is_some_and(|open| {
                let placement = open.placement.as_ref();
                open.is_suspect() && placement.is_some_and(|placement| placement.replica == replica)
            });
            if !is_isolated {
                self.isolated[replica] = None;
                self.router.set_available(replica, self.is_ready[replica]);
                has_ended = true;
            }
        }
        if has_ended {
            self.place_waiting();
        }
    }
}

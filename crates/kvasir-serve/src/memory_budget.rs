//! Process-wide memory budgets of request handling, shared by tenants.
//!
//! | budget | charges |
//! |---|---|
//! | [`BODIES`] | request bodies, raw and parsed |
//! | [`TOKENIZING`] | working memory of tokenizations |
//! | [`ANSWERS`] | JSON answers that are collected as a whole, until the client has read them |
//! | [`STREAMS`] | streamed output that the client has not read |
//! | [`SOCKETS`] | messages that open WebSockets may send |
//!
//! A tenant may hold three quarters of a budget. The last eighth is for holders of at most
//! [`SMALL`] bytes, of which a tenant may hold half. So one tenant's large requests lock out
//! neither other tenants nor small requests. A refused request gets 503 and keeps what it holds
//! until it is dropped.

use crate::context::request_context::{RequestContext, Tenant};
use crate::error::ApiError;
use std::{
    collections::HashMap,
    sync::{
        Condvar, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Request bodies. One of the maximum size, parsed, takes a third.
pub(crate) static BODIES: LazyLock<MemoryBudget> =
    LazyLock::new(|| MemoryBudget::new(512 << 20, "too many large requests are being read; try again"));
/// Working memory of tokenizations of long texts.
pub(crate) static TOKENIZING: LazyLock<MemoryBudget> =
    LazyLock::new(|| MemoryBudget::new(1 << 30, "too many long texts are being tokenized; try again"));
/// Answers that are collected as a whole.
pub(crate) static ANSWERS: LazyLock<MemoryBudget> = LazyLock::new(|| {
    MemoryBudget::new(512 << 20, "too many large answers are being built or read; try again")
});

/// Unread output of streams.
pub(crate) static STREAMS: LazyLock<MemoryBudget> =
    LazyLock::new(|| MemoryBudget::new(256 << 20, "too many streams are not read; try again"));
/// Maximum unread bytes of one streamed answer.
pub(crate) const MAX_UNREAD: usize = 32 << 20;
/// Messages of WebSockets: each connection reserves the maximum size of a message.
pub(crate) static SOCKETS: LazyLock<MemoryBudget> =
    LazyLock::new(|| MemoryBudget::new(512 << 20, "too many WebSocket connections are open; try again"));

/// Most bytes of a holder that may use the reserve.
const SMALL: usize = 1 << 20;

/// Interval at which a waiting holder looks at its request's cancellation.
const POLL: Duration = Duration::from_millis(50);

/// A number of bytes that requests share.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes: usize,
    /// Message of a refusal.
    refusal: &'static str,
    /// Bytes held, of each tenant that holds any.
    held: Mutex<HashMap<Tenant, usize>>,
    /// Notified when bytes are returned.
    returned: Condvar,
}

impl MemoryBudget {
    fn new(bytes: usize, refusal: &'static str) -> Self {
        Self { bytes, refusal, held: Mutex::default(), returned: Condvar::new() }
    }

    /// Most bytes that one tenant may hold for large requests.
    pub(crate) fn tenant_bytes(&self) -> usize {
        self.bytes / 4 * 3
    }

    /// A holder of nothing yet, for the tenant of the current request.
    pub(crate) fn hold(&'static self) -> HeldMemory {
        self.hold_for(RequestContext::current().tenant())
    }

    /// A holder of nothing yet, for a tenant.
    pub(crate) fn hold_for(&'static self, tenant: Tenant) -> HeldMemory {
        HeldMemory { budget: self, tenant, bytes: 0 }
    }

    /// Bytes that a tenant holds.
    #[cfg(test)]
    pub(crate) fn held_of(&self, tenant: Tenant) -> usize {
        self.lock().get(&tenant).copied().unwrap_or(0)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Tenant, usize>> {
        // No holder of the lock can leave it half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes for a tenant's holder that then has `size`. False if they do not fit.
    fn take(&self, tenant: Tenant, more: usize, size: usize) -> bool {
        let eighth = self.bytes / 8;
        let (most, most_of_tenant) = if size <= SMALL {
            (self.bytes, self.tenant_bytes() + eighth / 2)
        } else {
            (self.bytes - eighth, self.tenant_bytes())
        };
        let mut held = self.lock();
        let all = held.values().sum::<usize>().saturating_add(more);
        let own = held.get(&tenant).copied().unwrap_or(0).saturating_add(more);
        let fits = all <= most && own <= most_of_tenant;
        if fits {
            held.insert(tenant, own);
        }
        fits
    }

    fn give_back(&self, tenant: Tenant, bytes: usize) {
        let mut held = self.lock();
        if let Some(own) = held.get_mut(&tenant) {
            *own -= bytes;
            if *own == 0 {
                held.remove(&tenant);
            }
        }
        drop(held);
        self.returned.notify_all();
    }
}

/// Bytes taken from a budget, returned on drop.
#[derive(Debug)]
pub(crate) struct HeldMemory {
    budget: &'static MemoryBudget,
    tenant: Tenant,
    bytes: usize,
}

impl HeldMemory {
    /// Grows to at least `bytes`. On error it is unchanged.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), ApiError> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !self.budget.take(self.tenant, more, bytes) {
            return Err(ApiError::unavailable(self.budget.refusal));
        }
        self.bytes += more;
        Ok(())
    }

    /// Grows to at least `bytes`; fails above `max`. On error it is unchanged.
    pub(crate) fn grow_within(&mut self, bytes: usize, max: usize) -> Result<(), ApiError> {
        if bytes > max { Err(ApiError::unavailable(self.budget.refusal)) } else { self.grow_to(bytes) }
    }

    /// Grows to at least `bytes`; blocks until other holders return enough. For threads of the work
    /// pool only. Fails if the request is canceled or `bytes` exceeds a tenant's share.
    pub(crate) fn wait_to_grow(&mut self, bytes: usize, canceled: &AtomicBool) -> Result<(), ApiError> {
        loop {
            let refused = match self.grow_to(bytes) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            if bytes > self.budget.tenant_bytes() || canceled.load(Ordering::Relaxed) {
                return Err(refused);
            }
            // Bytes that are returned between the refusal and the wait are noticed after `POLL`.
            let held = self.budget.lock();
            drop(self.budget.returned.wait_timeout(held, POLL));
        }
    }

    /// Holds all of the reserve for small requests that the tenant may use.
    #[cfg(test)]
    pub(crate) fn fill_reserve(&mut self) {
        loop {
            let mut small = self.budget.hold_for(self.tenant);
            if small.grow_to(16 << 10).is_err() {
                return;
            }
            self.bytes += std::mem::take(&mut small.bytes);
        }
    }

    /// Shrinks to at most `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.give_back(self.tenant, less);
        self.bytes -= less;
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn budget(bytes: usize) -> &'static MemoryBudget {
        Box::leak(Box::new(MemoryBudget::new(bytes, "full")))
    }

    fn holder(budget: &'static MemoryBudget, key: u64) -> HeldMemory {
        HeldMemory { budget, tenant: Tenant::Key(key), bytes: 0 }
    }

    #[test]
    fn holders_grow_shrink_and_give_back() {
        let budget = budget(64 * SMALL);
        let (mut one, mut other) = (holder(budget, 1), holder(budget, 2));
        one.grow_to(40 * SMALL).unwrap();
        one.grow_to(SMALL).unwrap();
        assert_eq!(one.bytes, 40 * SMALL, "growing never shrinks");
        assert_eq!(other.grow_to(40 * SMALL).unwrap_err(), ApiError::unavailable("full"));
        assert_eq!(other.bytes, 0, "a refusal changes nothing");
        one.shrink_to(10 * SMALL);
        other.grow_to(40 * SMALL).unwrap();
        drop((one, other));
        assert!(budget.lock().is_empty());
    }

    #[test]
    fn waiting_ends_with_returned_bytes_or_cancellation() {
        let (budget, canceled) = (budget(64 * SMALL), AtomicBool::new(false));
        let mut first = holder(budget, 1);
        first.grow_to(48 * SMALL).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| holder(budget, 1).wait_to_grow(40 * SMALL, &canceled));
            drop(first);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        assert!(holder(budget, 1).wait_to_grow(49 * SMALL, &canceled).is_err(), "it never fits");
        let mut first = holder(budget, 1);
        first.grow_to(48 * SMALL).unwrap();
        canceled.store(true, Ordering::Relaxed);
        assert!(holder(budget, 1).wait_to_grow(SMALL * 8, &canceled).is_err());
    }

    #[test]
    fn large_requests_of_one_tenant_leave_room_for_others() {
        let budget = budget(64 * SMALL);
        let mut large: Vec<_> = (0..32).map(|_| holder(budget, 1)).collect();
        let taken = large.iter_mut().filter_map(|holder| holder.grow_to(2 * SMALL).ok()).count();
        assert_eq!(taken, 24, "three quarters");
        assert!(holder(budget, 2).grow_to(8 * SMALL).is_ok(), "another tenant's large request");
        assert!(holder(budget, 1).grow_to(SMALL).is_ok(), "its own small request");
    }

    #[test]
    fn large_requests_of_many_tenants_leave_room_for_small_ones() {
        let budget = budget(64 * SMALL);
        let mut large: Vec<_> = (0..64).map(|key| holder(budget, key)).collect();
        let taken = large.iter_mut().filter_map(|holder| holder.grow_to(2 * SMALL).ok()).count();
        assert_eq!(taken, 28, "seven eighths");
        let mut small: Vec<_> = (0..10).map(|_| holder(budget, 100)).collect();
        assert_eq!(small.iter_mut().filter_map(|holder| holder.grow_to(SMALL).ok()).count(), 8);
    }
}

//! [`Endpoint`]: one rank's access to the shared memory of its group: publish and wait.
//!
//! A rank publishes by storing a counter on a cache line of its own. A waiting rank polls [`SPINS`]
//! times, then yields [`YIELDS`] times, then sleeps on its *doorbell*, a futex.
//!
//! Ordering: data is written before its counter is stored (`Release`), and read after the counter
//! is loaded (`Acquire`). No wake-up is lost:
//!
//! - *Waiter*: add 1 to `sleepers`; `fence(SeqCst)`; read the doorbell; check the counters; sleep
//!   if the doorbell is unchanged; repeat from reading the doorbell.
//! - *Publisher*: store the counter; `fence(SeqCst)`; read `sleepers`; if it is not 0, add 1 to the
//!   doorbell and wake its sleepers.
//!
//! If the publisher's fence comes first, the waiter's check sees the counter. Otherwise the
//! publisher sees the sleeper and increments the doorbell. If that happens before the waiter reads
//! the doorbell, the check sees the counter; if after, the futex does not sleep. `mark_lost` rings
//! every doorbell unconditionally. `loom/` explores the interleavings.

use crate::ranks::layout::Layout;
use crate::ranks::memory::SharedMemory;
use crate::ranks::ring_error::RingError;
use crate::ranks::sync::{Ordering, SPINS, YIELDS, fence, spin_loop, yield_now};

/// One rank's access to the shared memory of its group.
pub(crate) struct Endpoint {
    pub(crate) memory: SharedMemory,
    pub(crate) layout: Layout,
    pub(crate) rank: usize,
}

impl Endpoint {
    pub(crate) fn new(memory: SharedMemory, layout: Layout, rank: usize) -> Self {
        Self { memory, layout, rank }
    }

    /// Loads the counter of a line; data written before it was published is then visible.
    pub(crate) fn load(&self, line: usize) -> u32 {
        self.memory.word(line).load(Ordering::Acquire)
    }

    /// Publishes a counter of this rank, and wakes those of `others` that sleep.
    pub(crate) fn publish(&self, line: usize, value: u32, others: impl Iterator<Item = usize>) {
        self.memory.word(line).store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        for rank in others {
            if self.memory.word(Layout::sleepers(rank)).load(Ordering::Relaxed) > 0 {
                self.wake(rank);
            }
        }
    }

    fn wake(&self, rank: usize) {
        let doorbell = self.memory.futex(Layout::doorbell(rank));
        doorbell.0.fetch_add(1, Ordering::AcqRel);
        doorbell.wake();
    }

    /// Marks a rank as lost: every wait in the group then fails. Only the first loss is recorded.
    pub(crate) fn mark_lost(&self, rank: usize) {
        let lost = self.memory.word(Layout::LOST);
        let _ = lost.compare_exchange(0, rank as u32 + 1, Ordering::AcqRel, Ordering::Acquire);
        (0..self.layout.ranks).for_each(|rank| self.wake(rank));
    }

    /// The first rank that was marked as lost.
    pub(crate) fn lost_rank(&self) -> Option<usize> {
        (self.load(Layout::LOST) as usize).checked_sub(1)
    }

    /// Blocks until `check` returns a value. Fails if a rank is lost.
    pub(crate) fn wait<T>(&self, mut check: impl FnMut() -> Option<T>) -> Result<T, RingError> {
        let mut checked = || match check() {
            Some(value) => Some(Ok(value)),
            None => self.lost_rank().map(|rank| Err(RingError::Lost(rank))),
        };
        for poll in 0..SPINS + YIELDS {
            if let Some(result) = checked() {
                return result;
            }
            if poll < SPINS { spin_loop() } else { yield_now() }
        }
        let sleepers = self.memory.word(Layout::sleepers(self.rank));
        let doorbell = self.memory.futex(Layout::doorbell(self.rank));
        sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = loop {
            let rung = doorbell.0.load(Ordering::Acquire);
            if let Some(result) = checked() {
                break result;
            }
            doorbell.sleep(rung);
        };
        sleepers.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// All ranks but this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.layout.ranks).filter(move |rank| *rank != own)
    }
}

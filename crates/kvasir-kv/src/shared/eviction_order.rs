//! `EvictionOrder`: the eviction orders of unreferenced cache entries.
//!
//! An entry enters the order when its last user releases it, and leaves it when it is used again.
//! Every order is least recently used first. They differ in what counts as a use, and therefore in
//! the structure that is fast enough (`docs/explanation/eviction.md` sets them side by side):
//!
//! - `Lru` (blocks of `paged`): releases alone. Entries enter at the end, so a linked list does.
//! - `LruHeap` (leaves of `radix`): the last match. A node may become a leaf long after that, so
//!   entries enter anywhere.
//! - `SessionOrder` of the engine (retained sessions): the last request, after what client keys
//!   retain beyond their share.

/// Unreferenced entries in eviction order, next victim first.
pub trait EvictionOrder {
    /// Names an entry.
    type Id;
    /// What ranks an entry besides the order of the releases.
    type Rank;

    /// Adds `id`, whose last owner released it. It must not be in the order.
    fn on_release(&mut self, id: Self::Id, rank: Self::Rank);
    /// Removes `id`, which must be in the order: it is owned again, or no longer exists.
    fn on_use(&mut self, id: Self::Id);
    /// Removes and returns the next victim; `None` if the order is empty.
    fn next(&mut self) -> Option<Self::Id>;
}

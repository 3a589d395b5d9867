//! `EvictionOrder`: which of the entries that nothing uses is evicted next.
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

/// Entries that nothing uses, in the order of their eviction.
pub trait EvictionOrder {
    /// Names an entry.
    type Id;
    /// What ranks an entry besides the order of the releases.
    type Rank;

    /// The last user of `id` is gone. It must not be in the order.
    fn on_release(&mut self, id: Self::Id, rank: Self::Rank);
    /// `id`, which must be in the order, has a user again or no longer exists.
    fn on_use(&mut self, id: Self::Id);
    /// Takes the entry to be evicted next out of the order.
    fn next(&mut self) -> Option<Self::Id>;
}

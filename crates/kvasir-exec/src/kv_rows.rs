//! Access to the K/V rows of slots in their stored form, for transfer between pools of equal
//! layout.
//!
//! A row is K and V of one slot in all layers, followed by those of a draft model. Only its
//! executor knows the bytes.

use kvasir_kv::Slot;
use std::fmt;

/// Layout of the rows of slots. Rows can be written to every pool with an equal layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KvLayout {
    /// Names the backend, the storage types and the shapes.
    pub format: String,
    /// Bytes of a slot's row.
    pub slot_bytes: usize,
}

/// Reads and writes rows of a pool.
pub trait KvRows {
    /// Bytes of a slot's row.
    fn slot_bytes(&self) -> usize;
    /// Copies the row of a slot, which must exist, to `into`, which must have its size.
    fn read(&self, slot: Slot, into: &mut [u8]);
    /// Replaces the row of a slot, which must exist, by `from`, which must have its size.
    fn write(&mut self, slot: Slot, from: &[u8]);
}

/// Reads or writes rows; see [`Executor::access_kv`](crate::Executor::access_kv).
pub type KvAccess = Box<dyn FnOnce(&mut dyn KvRows) + Send>;

/// Why an executor gives no access to its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoKvAccess(pub &'static str);

impl fmt::Display for NoKvAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "K/V transfer is impossible: {}", self.0)
    }
}

impl std::error::Error for NoKvAccess {}

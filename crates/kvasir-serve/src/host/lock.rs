//! The lock of the server's shared state, and how it is taken.
//!
//! `loom/` compiles `output_buffer` with a `lock` of its own, which explores every interleaving.

use std::sync::PoisonError;
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder of these locks can leave them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

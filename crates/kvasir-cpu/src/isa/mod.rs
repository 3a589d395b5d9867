//! Instruction sets: detection, AMX tiles, vectors under one set of names, and dispatch of
//! functions that the compiler vectorizes.
//!
//! Knows no weight, cache or thread. Everything else builds on it.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
pub(crate) mod dispatch;
pub(crate) mod features;
pub(crate) mod float16;
pub(crate) mod int_vectors;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod vectors;

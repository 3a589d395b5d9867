//! Threads: the fork-join pool (`pool`), what a thread of it hands to its jobs (`worker`), the rows
//! that its caller prepares before all items (`prologue`), and parallel loops over rows (`rows`), on
//! the primitives of `sync`.
//!
//! Knows no kernel; their scratch memory is known by type only.

pub(crate) mod pool;
pub(crate) mod prologue;
pub(crate) mod rows;
pub(crate) mod sync;
pub(crate) mod worker;

//! Threads: the fork-join pool (`pool`), the job that its caller runs before all items (`prologue`),
//! and parallel loops over rows (`rows`).
//!
//! Knows no kernel and no memory of theirs.

pub(crate) mod pool;
pub(crate) mod prologue;
pub(crate) mod rows;

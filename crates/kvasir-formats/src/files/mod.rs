//! Files: memory-mapped reading, atomic creation, bounded text.

pub(crate) mod atomic_file;
pub(crate) mod mapped;
pub(crate) mod read;

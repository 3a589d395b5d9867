//! Memory-mapped files (mmap): the only `unsafe` code of this crate.
//!
//! Safety: maps are read-only. A file modified by another process may change under the map, and a
//! truncated one raises SIGBUS, as for every engine that maps its weights.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use memmap2::{Mmap, UncheckedAdvice};
use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

/// A read-only memory-mapped file, or bytes built into the binary.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// Bytes built into the binary; also used for an empty file, which cannot be mapped.
    BuiltIn(&'static [u8]),
    File(Mmap),
}

impl Mapped {
    /// Maps a regular file. No bytes are read yet.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |e: std::io::Error| Error::at(path.display(), e);
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(Error::at(path.display(), "is not a regular file"));
        }
        let bytes = if meta.len() == 0 {
            Bytes::BuiltIn(&[])
        } else {
            // SAFETY: the map is only read. If another process modifies the file, the contents may
            // change; if it truncates the file, an access raises SIGBUS. The user documentation
            // forbids both.
            Bytes::File(unsafe { Mmap::map(&file) }.map_err(io)?)
        };
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// Wraps bytes built into the binary; `name` appears in errors.
    pub fn built_in(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), bytes: Bytes::BuiltIn(bytes) }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's contents.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::BuiltIn(bytes) => bytes,
            Bytes::File(map) => map,
        }
    }

    /// Prefaults the pages of a range that will be read soon, in full (`MADV_POPULATE_READ`).
    ///
    /// One call is cheaper than a fault per page. Software prefetch has no effect on pages that are
    /// not mapped yet.
    pub fn prefault(&self, range: Range<usize>) {
        // A multiple of every page size in use (4, 16 and 64 KiB).
        const PAGES: usize = 65_536;
        let Bytes::File(map) = &self.bytes else { return };
        let (start, end) = (range.start / PAGES * PAGES, range.end.next_multiple_of(PAGES).min(map.len()));
        #[cfg(target_os = "linux")]
        if start < end {
            // Before Linux 5.14 the call fails, and pages are mapped on first touch.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, start, end - start);
        }
        let _ = (map, start, end);
    }

    /// Drops the pages of a range from memory (`MADV_DONTNEED`); the next access reads the file
    /// again.
    ///
    /// For a loader that repacks weights: the packed copy makes the mapped pages redundant.
    pub fn release(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let Bytes::File(map) = &self.bytes else { return };
        // Only whole pages inside the range; neighboring tensors may still be in use.
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end.min(map.len()) / PAGE * PAGE;
        if start < end {
            // SAFETY: a clean page of a read-only file mapping is read again from the file at the
            // next access. References into the map therefore keep their values unless the file
            // changes.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        }
    }
}

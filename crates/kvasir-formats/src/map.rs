//! The one place in this crate with `unsafe`: files are mapped, not read.
#![allow(unsafe_code)]

use crate::{Error, Result};
use memmap2::{Mmap, UncheckedAdvice};
use std::{
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

/// A read-only file in memory.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// Part of the program; also an empty file, which cannot be mapped.
    BuiltIn(&'static [u8]),
    File(Mmap),
}

impl Mapped {
    /// Maps a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |e: std::io::Error| Error::at(path.display(), e);
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(Error::at(path.display(), "not a regular file"));
        }
        let bytes = if meta.len() == 0 {
            Bytes::BuiltIn(&[])
        } else {
            // SAFETY: the map is only read. A file that another process writes to while it is mapped may change under it, and one
            // that is shortened raises a signal, as it does for every engine that maps its weights; docs say not to.
            Bytes::File(unsafe { Mmap::map(&file) }.map_err(io)?)
        };
        Ok(Self { path: path.to_owned(), bytes })
    }

    /// A file that is part of the program; errors call it `name`.
    pub fn built_in(name: &str, bytes: &'static [u8]) -> Self {
        Self { path: name.into(), bytes: Bytes::BuiltIn(bytes) }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::BuiltIn(bytes) => bytes,
            Bytes::File(map) => map,
        }
    }

    /// Maps the pages of a range that is read soon, all of it: a page at a time costs as much, and until a page is there memory that is asked for
    /// ahead does not come.
    pub fn bring(&self, range: Range<usize>) {
        // Whole pages of any size that is met.
        const PAGES: usize = 65_536;
        let Bytes::File(map) = &self.bytes else { return };
        let (start, end) = (range.start / PAGES * PAGES, range.end.next_multiple_of(PAGES).min(map.len()));
        #[cfg(target_os = "linux")]
        if start < end {
            // Systems older than this way map them when they are touched, as others do.
            let _ = map.advise_range(memmap2::Advice::PopulateRead, start, end - start);
        }
        let _ = (map, start, end);
    }

    /// Gives the pages of a range back to the system; reading them again reads the file again. For a loader that
    /// repacks: what has been repacked need not stay in memory twice.
    pub fn let_go(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let Bytes::File(map) = &self.bytes else { return };
        // Only whole pages inside the range: its neighbours may still be in use.
        let start = range.start.next_multiple_of(PAGE);
        let end = range.end.min(map.len()) / PAGE * PAGE;
        if start < end {
            // SAFETY: a clean page of a read-only file mapping is re-read from the file at the next access, so
            // no reference into the map changes its value unless the file does.
            let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
        }
    }
}

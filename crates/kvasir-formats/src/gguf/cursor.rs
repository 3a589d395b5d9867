//! Bounds-checked little-endian reader over a file's bytes.

use crate::error::{Error, Result};
use std::ops::Range;

/// Reads little-endian values; every error names the offset.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn error(&self, why: impl std::fmt::Display) -> Error {
        Error::at(format!("offset {}", self.at), why)
    }

    /// Skips `len` bytes and returns their range. Hot: a vocabulary has hundreds of thousands of
    /// strings.
    #[inline]
    pub(crate) fn skip(&mut self, len: u64, what: &str) -> Result<Range<usize>> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.filter(|&end| end <= self.bytes.len()) {
            Some(end) => {
                let range = self.at..end;
                self.at = end;
                Ok(range)
            }
            None => Err(self.too_short(len, what)),
        }
    }

    #[cold]
    fn too_short(&self, len: u64, what: &str) -> Error {
        self.error(format!("{what} needs {len} bytes, but {} are left: the file is truncated", self.left()))
    }

    #[inline]
    pub(crate) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8]> {
        let range = self.skip(len, what)?;
        Ok(&self.bytes[range])
    }

    #[inline]
    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    #[inline]
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A length-prefixed UTF-8 string of at most `max` bytes.
    pub(crate) fn str(&mut self, max: u64, what: &str) -> Result<&'a str> {
        let start = self.clone();
        let len = self.u64(what)?;
        if len > max {
            return Err(start.error(format!("{what} is {len} bytes long; at most {max} are supported")));
        }
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|e| start.error(format!("{what} is not UTF-8: {e}")))
    }
}

use memmap2::{MmapMut, MmapOptions};
use std::io;

/// Zeroed bytes at the start of a page. Address space is taken at once, memory when it is touched; nothing ever moves.
pub(crate) struct Buffer {
    map: MmapMut,
    len: usize,
}

/// Bytes past the end that vector loads may touch.
const TAIL: usize = 256;

impl Buffer {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let too_large = || io::Error::new(io::ErrorKind::OutOfMemory, format!("{len} bytes"));
        let map = MmapOptions::new()
            .len(len.checked_add(TAIL).ok_or_else(too_large)?)
            .no_reserve_swap()
            .map_anon()?;
        Ok(Self { map, len })
    }

    /// The same in large pages where the system has them: for what is read through once per step.
    pub(crate) fn in_large_pages(len: usize) -> io::Result<Self> {
        let buffer = Self::new(len)?;
        #[cfg(target_os = "linux")]
        // A hint: without large pages everything works, only slower.
        let _ = buffer.map.advise(memmap2::Advice::HugePage);
        Ok(buffer)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ptr(&self) -> *const u8 {
        self.map.as_ptr()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        self.map.get_mut(..len).unwrap_or_default()
    }
}

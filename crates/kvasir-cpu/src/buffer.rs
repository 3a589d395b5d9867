#[cfg(unix)]
use memmap2::UncheckedAdvice;
use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Zeroed bytes at the start of a cache line. Address space is taken at once, memory when it is touched; nothing ever moves.
pub(crate) struct Buffer {
    base: *mut u8,
    len: usize,
    /// What `base` points into; freed with the last buffer.
    region: Arc<MmapMut>,
}

// SAFETY: the bytes belong to this buffer alone, and lie in a mapping that it keeps.
unsafe impl Send for Buffer {}
// SAFETY: as above; writing through a shared buffer takes unsafe code that says why.
unsafe impl Sync for Buffer {}

/// Bytes past the end that vector loads may touch.
const TAIL: usize = 256;
/// Buffers in large pages share regions of at least this size: a matrix alone is often smaller than a large page.
const REGION: usize = 256 << 20;
const LARGE_PAGE: usize = 2 << 20;
/// What buffers of a region share none of: the largest page that systems for the processor have, for what goes with a buffer goes by whole pages.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 << 10 };

/// The region that is being filled, and how far it is.
static OPEN: Mutex<Option<(Arc<MmapMut>, usize, usize)>> = Mutex::new(None);

impl Buffer {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let mut map = map(len.checked_add(TAIL).ok_or_else(|| too_large(len))?)?;
        Ok(Self { base: map.as_mut_ptr(), len, region: Arc::new(map) })
    }

    /// In large pages where the system has them: for what is read through once per step.
    pub(crate) fn in_large_pages(len: usize) -> io::Result<Self> {
        let taken = len.checked_add(TAIL).ok_or_else(|| too_large(len))?.next_multiple_of(PAGE);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_none_or(|(_, at, end)| end - at < taken) {
            let size = taken.max(REGION).checked_add(LARGE_PAGE).ok_or_else(|| too_large(len))?;
            let map = map(size)?;
            #[cfg(target_os = "linux")]
            // A hint: without large pages everything works, only slower.
            let _ = map.advise(memmap2::Advice::HugePage);
            let start = map.as_ptr().align_offset(LARGE_PAGE).min(LARGE_PAGE);
            *open = Some((Arc::new(map), start, size));
        }
        let Some((region, at, _)) = open.as_mut() else { return Err(too_large(len)) };
        let base = region.as_ptr().wrapping_add(*at).cast_mut();
        *at += taken;
        Ok(Self { base, len, region: Arc::clone(region) })
    }

    /// Bytes `range` are about to be filled: in large pages, as far as whole ones fit, so that no memory outside is taken for them.
    pub(crate) fn expect(&self, range: std::ops::Range<usize>) {
        let offset = self.base as usize - self.region.as_ptr() as usize;
        let address = |at: usize| self.base as usize + at;
        let start = range.start + (address(range.start).next_multiple_of(LARGE_PAGE) - address(range.start));
        let end =
            (address(range.end.min(self.len)) / LARGE_PAGE * LARGE_PAGE).saturating_sub(self.base as usize);
        #[cfg(target_os = "linux")]
        if start < end {
            // A hint: without large pages everything works, only slower.
            let _ = self.region.advise_range(memmap2::Advice::HugePage, offset + start, end - start);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ptr(&self) -> *const u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping belong to this buffer.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Drop for Buffer {
    /// Gives its pages back at once: those of its region stay as long as any other buffer in it, and a session's lie beside a model's.
    fn drop(&mut self) {
        #[cfg(unix)]
        if Arc::strong_count(&self.region) > 1 {
            let offset = self.base as usize - self.region.as_ptr() as usize;
            let len = (self.len + TAIL).next_multiple_of(PAGE);
            // SAFETY: the pages are this buffer's alone, whatever their size, which is gone, and nobody gets them again.
            let _ = unsafe { self.region.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len) };
        }
    }
}

fn map(len: usize) -> io::Result<MmapMut> {
    MmapOptions::new().len(len).no_reserve_swap().map_anon()
}

fn too_large(len: usize) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, format!("{len} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of memory that the buffer's pages take.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn resident(at: usize, len: usize) -> usize {
        let mut file = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0u8; len / PAGE * 8];
        std::io::Seek::seek(&mut file, io::SeekFrom::Start((at / PAGE * 8) as u64)).unwrap();
        std::io::Read::read_exact(&mut file, &mut entries).unwrap();
        // The highest bit of a page's entry says that it is there.
        entries.as_chunks::<8>().0.iter().filter(|entry| u64::from_le_bytes(**entry) >> 63 == 1).count()
            * PAGE
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn what_is_dropped_takes_no_memory_beside_what_stays() {
        const LEN: usize = 8 << 20;
        let mut stays = Buffer::in_large_pages(LEN).unwrap();
        let mut goes = Buffer::in_large_pages(LEN).unwrap();
        stays.bytes_mut().fill(1);
        goes.bytes_mut().fill(2);
        let at = goes.ptr() as usize;
        assert_eq!(resident(at, LEN), LEN);
        drop(goes);
        assert_eq!(resident(at, LEN), 0);
        assert!(stays.bytes().iter().all(|byte| *byte == 1));
    }
}

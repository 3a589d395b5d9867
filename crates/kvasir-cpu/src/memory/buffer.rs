//! Zeroed, aligned memory mappings for weights and activations, in huge pages where possible:
//! anonymous memory, and ranges of shared memory (`memfd.rs`).
//!
//! Small matrices share one region per 256 MiB, because a matrix alone is often smaller than a huge
//! page. A region is unmapped with its last buffer; a buffer that is dropped earlier returns its
//! pages at once (`MADV_DONTNEED`). Buffers own disjoint page ranges of their region, and addresses
//! never change.

#[cfg(unix)]
use memmap2::UncheckedAdvice;
use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// A zero-initialized, page-aligned byte buffer. Address space is reserved at once, pages are
/// committed when touched.
pub(crate) struct Buffer {
    base: *mut u8,
    len: usize,
    /// The mapping that `base` points into; unmapped with its last buffer.
    region: Arc<MmapMut>,
}

// SAFETY: the bytes belong to this buffer alone, in a mapping that it keeps alive.
unsafe impl Send for Buffer {}
// SAFETY: as above; writing through a shared reference needs unsafe code that states its own
// argument.
unsafe impl Sync for Buffer {}

/// Bytes past the end that vector loads may read.
pub(crate) const TAIL: usize = 256;
/// Minimum size of a region that huge-page buffers share.
const REGION: usize = 256 << 20;
/// Size of a transparent huge page.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// Granularity of buffers within a region: the largest base page of the target's systems, because
/// dropping works on whole pages.
pub(crate) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 << 10 };

/// The region being filled: mapping, next free offset, end.
static FILLING: Mutex<Option<(Arc<MmapMut>, usize, usize)>> = Mutex::new(None);

impl Buffer {
    /// A buffer in a mapping of its own, in base pages.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let mut map = map(len.checked_add(TAIL).ok_or_else(|| too_large(len))?)?;
        Ok(Self { base: map.as_mut_ptr(), len, region: Arc::new(map) })
    }

    /// A buffer in transparent huge pages if the system has them, for data that is streamed once
    /// per step.
    pub(crate) fn in_huge_pages(len: usize) -> io::Result<Self> {
        let taken = len.checked_add(TAIL).ok_or_else(|| too_large(len))?.next_multiple_of(PAGE);
        let mut open = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_none_or(|(_, at, end)| end - at < taken) {
            let size = taken.max(REGION).checked_add(HUGE_PAGE).ok_or_else(|| too_large(len))?;
            let map = map(size)?;
            #[cfg(target_os = "linux")]
            // A hint: it affects speed only.
            let _ = map.advise(memmap2::Advice::HugePage);
            let start = map.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
            *open = Some((Arc::new(map), start, size));
        }
        let Some((region, at, _)) = open.as_mut() else { return Err(too_large(len)) };
        let base = region.as_ptr().wrapping_add(*at).cast_mut();
        *at += taken;
        Ok(Self { base, len, region: Arc::clone(region) })
    }

    /// Wraps `len` bytes of `region` from `at`. No other buffer of this process may contain them,
    /// and `TAIL` more bytes must be mapped.
    pub(crate) fn in_region(region: Arc<MmapMut>, at: usize, len: usize) -> Self {
        Self { base: region.as_ptr().wrapping_add(at).cast_mut(), len, region }
    }

    /// Advises huge pages for `range`, which is about to be filled. Only whole huge pages within
    /// the buffer are advised, so that no memory outside is committed.
    pub(crate) fn advise_huge_pages(&self, range: std::ops::Range<usize>) {
        let offset = self.base as usize - self.region.as_ptr() as usize;
        let address = |at: usize| self.base as usize + at;
        let start = range.start + (address(range.start).next_multiple_of(HUGE_PAGE) - address(range.start));
        let end =
            (address(range.end.min(self.len)) / HUGE_PAGE * HUGE_PAGE).saturating_sub(self.base as usize);
        #[cfg(target_os = "linux")]
        if start < end {
            // A hint: it affects speed only.
            let _ = self.region.advise_range(memmap2::Advice::HugePage, offset + start, end - start);
        }
    }

    /// Returns the whole pages within `range` to the system; their bytes are zero or unchanged
    /// afterwards. The caller must not access the range during the call.
    pub(crate) fn release(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            let (base, region) = (self.base as usize, self.region.as_ptr() as usize);
            let start = (base + range.start).next_multiple_of(PAGE);
            let end = (base + range.end.min(self.len)) / PAGE * PAGE;
            if start < end {
                // SAFETY: the pages belong to this buffer alone, and any bytes are valid ones.
                let _ = unsafe {
                    self.region.unchecked_advise_range(UncheckedAdvice::DontNeed, start - region, end - start)
                };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
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
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// The bytes as f32 elements.
    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: the buffer is page-aligned and borrowed exclusively; every bit pattern is a valid
        // f32.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), self.len / 4) }
    }
}

impl Drop for Buffer {
    /// Returns the pages at once if other buffers keep the region alive: session buffers may lie
    /// beside a model's weights.
    fn drop(&mut self) {
        #[cfg(unix)]
        if Arc::strong_count(&self.region) > 1 {
            let offset = self.base as usize - self.region.as_ptr() as usize;
            let len = (self.len + TAIL).next_multiple_of(PAGE);
            // SAFETY: the pages belong to this buffer alone at any page size, it is gone, and the
            // offsets are never reused.
            let _ = unsafe { self.region.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, len) };
        }
    }
}

/// Maps `len` bytes of zeros without reserving swap space.
pub(crate) fn map(len: usize) -> io::Result<MmapMut> {
    MmapOptions::new().len(len).no_reserve_swap().map_anon()
}

fn too_large(len: usize) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, format!("{len} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident bytes of a page range, from `/proc/self/pagemap`.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn resident(at: usize, len: usize) -> usize {
        let mut file = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0u8; len / PAGE * 8];
        std::io::Seek::seek(&mut file, io::SeekFrom::Start((at / PAGE * 8) as u64)).unwrap();
        std::io::Read::read_exact(&mut file, &mut entries).unwrap();
        // Bit 63 of an entry: page present.
        entries.as_chunks::<8>().0.iter().filter(|entry| u64::from_le_bytes(**entry) >> 63 == 1).count()
            * PAGE
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn dropped_buffers_return_memory_of_a_shared_region() {
        const LEN: usize = 8 << 20;
        let mut stays = Buffer::in_huge_pages(LEN).unwrap();
        let mut goes = Buffer::in_huge_pages(LEN).unwrap();
        stays.bytes_mut().fill(1);
        goes.bytes_mut().fill(2);
        let at = goes.ptr() as usize;
        assert_eq!(resident(at, LEN), LEN);
        drop(goes);
        assert_eq!(resident(at, LEN), 0);
        assert!(stays.bytes().iter().all(|byte| *byte == 1));
    }
}

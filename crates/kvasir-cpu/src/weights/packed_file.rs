//! `PackedFile`: packed weights in shared memory (a memfd). The processes of one model pack each
//! matrix once and map the same pages.
//!
//! ```text
//! header | entry 0 | entry 1 | ..      | panels of entry 0 | panels of entry 1 | ..
//! `TABLE_BYTES`                        | page-aligned, in mappings of `MAPPING_BYTES`
//! ```
//!
//! The header has a key: a hash of version, model and options. An entry has a content hash
//! (weights, matrix, layout), the offset and length of its panels, and `done`, the number of packed
//! panels. A process looks its matrix up by content hash, and appends an entry if there is none. So
//! processes need not agree on an order. Equal hash and length are taken as equal panels.
//!
//! Packing one entry:
//!
//! 1. Take the entry's lock. It fails while another process packs.
//! 2. Reload `done`, and write panels from there on.
//! 3. Store `done` with Release, and release the lock.
//!
//! Ordering: readers load `done` with Acquire; panels below it are never written again. The kernel
//! releases the lock of a process that ends while it packs. It has not stored `done`, so the next
//! holder writes these panels again.
//!
//! A matrix without an entry (table full, lock stalled, no memory) is packed privately.

use crate::memory::buffer::{Buffer, PAGE, TAIL};
use crate::memory::memfd::{self, MappedRange};
use memmap2::MmapMut;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// First word of a file. Its last byte is the version of the table and panel layouts.
const MAGIC: u64 = u64::from_le_bytes(*b"kvpack\0\x01");
/// Bytes reserved for header and entries.
const TABLE_BYTES: u64 = 4 << 20;
/// Granularity of mappings and of the file's length. A matrix crosses no multiple of it, unless it
/// is larger.
const MAPPING_BYTES: u64 = 256 << 20;
/// Words (u64) of the header.
const HEADER_WORDS: usize = 3;
/// Words of the header: `MAGIC`, key, number of entries.
const HEADER_MAGIC: usize = 0;
const HEADER_KEY: usize = 1;
const HEADER_COUNT: usize = 2;
/// Words (u64) of an entry.
const ENTRY_WORDS: usize = 4;
/// Words of an entry: content hash, offset in the file, bytes of all panels, number of packed
/// panels.
const ENTRY_HASH: usize = 0;
const ENTRY_OFFSET: usize = 1;
const ENTRY_BYTES: usize = 2;
const ENTRY_DONE: usize = 3;
/// Maximum number of entries.
const MAX_ENTRIES: usize = (TABLE_BYTES as usize / 8 - HEADER_WORDS) / ENTRY_WORDS;

/// Time after which a lock holder without progress counts as stalled.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which a waiting process polls.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// An open file of packed weights.
pub struct PackedFile {
    file: File,
    table: MappedRange,
    /// Mappings of panels, by file offset.
    mappings: Mutex<BTreeMap<u64, Mapping>>,
    /// Locks that this process holds, because kernel locks do not exclude threads of one process.
    held_locks: Mutex<BTreeSet<u64>>,
    /// Hint: index of the entry that is likely to be looked up next.
    next_hint: AtomicUsize,
}

/// A mapped range of panels.
struct Mapping {
    /// Length of the range, in bytes.
    len: u64,
    region: Arc<MmapMut>,
    /// Offset of the range in `region`.
    start: usize,
}

impl PackedFile {
    /// Creates an empty file. Child processes inherit its descriptor; the kernel frees it when the
    /// last one is closed. `key` is a hash of version, model and options. Linux only.
    pub fn create(key: u64) -> io::Result<File> {
        let file = memfd::create(c"kvasir-weights")?;
        file.set_len(MAPPING_BYTES)?;
        let table = memfd::map(&file, 0, TABLE_BYTES as usize)?;
        for (at, value) in [MAGIC, key, 0].into_iter().enumerate() {
            word_of(&table, at).store(value, Ordering::Release);
        }
        Ok(file)
    }

    /// Opens the file of an inherited descriptor. Fails if its key is not `key`.
    pub fn open(descriptor: i32, key: u64) -> io::Result<Self> {
        let file = memfd::open(descriptor)?;
        if file.metadata()?.len() < TABLE_BYTES {
            return Err(io::Error::other(
                "no table of packed weights; the descriptor must be one that `PackedFile::create` made",
            ));
        }
        let table = memfd::map(&file, 0, TABLE_BYTES as usize)?;
        if word_of(&table, HEADER_MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other("the table of packed weights is not of this version"));
        }
        if word_of(&table, HEADER_KEY).load(Ordering::Acquire) != key {
            return Err(io::Error::other("the packed weights are of another model or of other options"));
        }
        Ok(Self {
            file,
            table,
            mappings: Mutex::default(),
            held_locks: Mutex::default(),
            next_hint: AtomicUsize::new(0),
        })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        word_of(&self.table, at)
    }

    fn field(&self, entry: usize, field: usize) -> &AtomicU64 {
        self.word(HEADER_WORDS + entry * ENTRY_WORDS + field)
    }

    fn count(&self) -> usize {
        (self.word(HEADER_COUNT).load(Ordering::Acquire) as usize).min(MAX_ENTRIES)
    }

    /// Finds the entry with this content hash, or appends it. Waits for the table's lock; fails if
    /// the table is full or its lock stalled.
    fn find_or_append(&self, hash: u64, bytes: u64) -> io::Result<usize> {
        if let Some(found) = self.find(hash, bytes) {
            return Ok(found);
        }
        let began = Instant::now();
        let _lock = loop {
            match self.try_lock(0) {
                Some(lock) => break lock,
                None if began.elapsed() > STALL_TIMEOUT => {
                    return Err(io::Error::other(
                        "the table of packed weights stays locked by another process",
                    ));
                }
                None => sleep(POLL_INTERVAL),
            }
        };
        self.find(hash, bytes).map_or_else(|| self.append(hash, bytes), Ok)
    }

    fn find(&self, hash: u64, bytes: u64) -> Option<usize> {
        // Processes of one model look matrices up in the same order, so the hint is usually right.
        let (count, first) = (self.count(), self.next_hint.load(Ordering::Relaxed));
        let read = |entry, field| self.field(entry, field).load(Ordering::Relaxed);
        let found = (0..count)
            .map(|n| (first + n) % count)
            .find(|&entry| read(entry, ENTRY_HASH) == hash && read(entry, ENTRY_BYTES) == bytes)?;
        self.next_hint.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    /// Appends an entry. The table must be locked.
    fn append(&self, hash: u64, bytes: u64) -> io::Result<usize> {
        let entry = self.count();
        if entry == MAX_ENTRIES {
            return Err(io::Error::other("the table of packed weights is full"));
        }
        let read = |field| entry.checked_sub(1).map(|last| self.field(last, field).load(Ordering::Relaxed));
        let end = read(ENTRY_OFFSET)
            .zip(read(ENTRY_BYTES))
            .map_or(Some(TABLE_BYTES), |(offset, bytes)| occupied_bytes(bytes)?.checked_add(offset));
        let place = |end: u64| {
            let occupied = occupied_bytes(bytes)?;
            let is_within = (end % MAPPING_BYTES).checked_add(occupied)? <= MAPPING_BYTES;
            let offset = if is_within { end } else { end.checked_next_multiple_of(MAPPING_BYTES)? };
            Some((offset, offset.checked_add(occupied)?.checked_next_multiple_of(MAPPING_BYTES)?))
        };
        let (offset, len) = end.and_then(place).ok_or_else(|| {
            io::Error::other("the file of packed weights would exceed the maximum file size")
        })?;
        if self.file.metadata()?.len() < len {
            self.file.set_len(len)?;
        }
        for (field, value) in [hash, offset, bytes, 0].into_iter().enumerate() {
            self.field(entry, field).store(value, Ordering::Relaxed);
        }
        self.word(HEADER_COUNT).store(entry as u64 + 1, Ordering::Release);
        Ok(entry)
    }

    /// Maps the panels of an entry. Fails if the entry's offset or length lies outside of the file.
    fn map_panels(&self, entry: usize, bytes: u64) -> io::Result<Buffer> {
        let wrong = || io::Error::other("the table of packed weights has an offset outside of the file");
        let offset = self.field(entry, ENTRY_OFFSET).load(Ordering::Relaxed);
        let end =
            occupied_bytes(bytes).and_then(|occupied| offset.checked_add(occupied)).ok_or_else(wrong)?;
        if offset < TABLE_BYTES || !offset.is_multiple_of(PAGE as u64) || end > self.file.metadata()?.len() {
            return Err(wrong());
        }
        let begin = offset / MAPPING_BYTES * MAPPING_BYTES;
        let len = (end - begin).next_multiple_of(MAPPING_BYTES);
        let mut mappings = lock(&self.mappings);
        let (region, start) = match mappings.get(&begin) {
            Some(mapping) if mapping.len >= len => (Arc::clone(&mapping.region), mapping.start),
            _ => {
                let MappedRange { region, start } = memfd::map(&self.file, begin, len as usize)?;
                let region = Arc::new(region);
                mappings.insert(begin, Mapping { len, region: Arc::clone(&region), start });
                (region, start)
            }
        };
        Ok(Buffer::in_region(region, start + (offset - begin) as usize, bytes as usize))
    }

    /// Locks a byte of the file; `None` while another process or thread holds the lock.
    fn try_lock(&self, at: u64) -> Option<FileLock<'_>> {
        let mut held_locks = lock(&self.held_locks);
        if held_locks.contains(&at) || !memfd::try_lock(&self.file, at).unwrap_or(false) {
            return None;
        }
        held_locks.insert(at);
        Some(FileLock { file: self, at })
    }
}

/// Word `at` of the table.
fn word_of(table: &MappedRange, at: usize) -> &AtomicU64 {
    debug_assert!((at + 1) * 8 <= TABLE_BYTES as usize);
    // SAFETY: it lies within the `TABLE_BYTES` bytes that are mapped as long as `table` lives and
    // that the file always has. It is aligned, and accessed as an atomic by every process.
    unsafe { &*table.region.as_ptr().add(table.start).cast::<AtomicU64>().add(at) }
}

/// Bytes that panels of `bytes` occupy in the file, with tail and padding; `None` on overflow.
fn occupied_bytes(bytes: u64) -> Option<u64> {
    bytes.checked_add(TAIL as u64)?.checked_next_multiple_of(PAGE as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An exclusive lock of one byte of the file, released on drop.
pub(crate) struct FileLock<'a> {
    file: &'a PackedFile,
    at: u64,
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        let mut held_locks = lock(&self.file.held_locks);
        memfd::unlock(&self.file.file, self.at);
        held_locks.remove(&self.at);
    }
}

/// Identifies the panels of a matrix in a `PackedFile` by content.
#[derive(Clone)]
pub(crate) struct MatrixId {
    pub(crate) file: Arc<PackedFile>,
    /// Content hash: checkpoint, precision, weight, view and layout.
    pub(crate) hash: u64,
}

impl MatrixId {
    /// Maps the entry of the matrix, which has `panels` panels in `bytes` bytes; appends it if
    /// there is none. `None` if the matrix cannot be shared.
    pub(crate) fn attach(self, panels: usize, bytes: usize) -> Option<(SharedPanels, Buffer)> {
        let entry = self.file.find_or_append(self.hash, bytes as u64).ok()?;
        let buffer = self.file.map_panels(entry, bytes as u64).ok()?;
        Some((SharedPanels { file: self.file, entry, panels }, buffer))
    }
}

/// The shared panels of one matrix.
pub(crate) struct SharedPanels {
    file: Arc<PackedFile>,
    entry: usize,
    panels: usize,
}

impl SharedPanels {
    /// Length of the packed prefix, in panels, over all processes.
    pub(crate) fn done(&self) -> usize {
        (self.file.field(self.entry, ENTRY_DONE).load(Ordering::Acquire) as usize).min(self.panels)
    }

    /// Takes the packing lock; `None` while another process or thread holds it.
    pub(crate) fn try_lock(&self) -> Option<PackingLock<'_>> {
        let at = (HEADER_WORDS + self.entry * ENTRY_WORDS) * 8;
        Some(PackingLock { panels: self, _lock: self.file.try_lock(at as u64)? })
    }

    /// Takes the packing lock, or waits for it. `None` if the holder has packed all panels, or does
    /// not release the lock within `STALL_TIMEOUT`.
    pub(crate) fn lock(&self) -> Option<PackingLock<'_>> {
        let began = Instant::now();
        loop {
            match self.try_lock() {
                lock @ Some(_) => return lock,
                None if self.done() == self.panels || began.elapsed() > STALL_TIMEOUT => return None,
                None => sleep(POLL_INTERVAL),
            }
        }
    }
}

/// The exclusive lock for packing one matrix; released on drop.
pub(crate) struct PackingLock<'a> {
    panels: &'a SharedPanels,
    _lock: FileLock<'a>,
}

impl PackingLock<'_> {
    /// Commits memory for a byte range of the panels. Required before the range is written.
    pub(crate) fn populate(&self, buffer: &Buffer, bytes: std::ops::Range<usize>) -> io::Result<()> {
        memfd::populate(buffer.ptr().wrapping_add(bytes.start), bytes.len())
    }

    /// Publishes the panels below `done` to all processes. They must not be written again.
    pub(crate) fn publish(&self, done: usize) {
        self.panels.file.field(self.panels.entry, ENTRY_DONE).store(done as u64, Ordering::Release);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::tile::LANES;
    use crate::threads::pool::ThreadPool;
    use crate::weights::f32::panels::F32Panels;
    use crate::weights::f32::width::Width;
    use crate::weights::panels::tests::MemoryRows;
    use crate::weights::quant::panels::QuantPanels;
    use kvasir_formats::DType;
    use kvasir_testkit::Random;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    const INPUTS: usize = 256;
    const OUTPUTS: usize = 5 * LANES - 3;

    /// Opens the file anew, as another process does.
    fn open(file: &File) -> Arc<PackedFile> {
        Arc::new(PackedFile::open(file.as_raw_fd(), 7).unwrap())
    }

    fn quantized(seed: u64, file: Option<&Arc<PackedFile>>) -> QuantPanels {
        let mut random = Random::new(seed);
        let step = INPUTS / 32 * 34;
        let bytes = (0..OUTPUTS * step).map(|_| random.below(256) as u8).collect();
        let id = file.map(|file| MatrixId { file: Arc::clone(file), hash: seed });
        let rows = MemoryRows { bytes, step };
        let Ok(panels) = QuantPanels::quantized(DType::Q8_0, (OUTPUTS, INPUTS), rows, id.as_ref()) else {
            unreachable!()
        };
        panels
    }

    fn packed_bytes(panels: &QuantPanels) -> Vec<u8> {
        panels.packed_reader().unwrap().packed_from(0).to_vec()
    }

    fn expected(seed: u64) -> Vec<u8> {
        let panels = quantized(seed, None);
        while panels.pack_some(&ThreadPool::new(1), usize::MAX).unwrap() > 0 {}
        packed_bytes(&panels)
    }

    #[test]
    fn processes_pack_a_matrix_together() {
        let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(2));
        let files = [open(&file), open(&file), open(&file)];
        for seed in 1..20 {
            let panels = [0, 1, 2].map(|n| quantized(seed, Some(&files[n])));
            let mut random = Random::new(seed);
            while panels[0].unpacked_bytes() > 0 {
                let packs = &panels[random.below(3) as usize];
                let before = panels[0].unpacked_bytes();
                let some = packs.pack_some(&threads, 1).unwrap();
                // It packs a panel, or adopts panels that others have packed.
                let packed = before - panels[0].unpacked_bytes();
                assert!(some > 0 && (packed == 0 || packed == some), "{some} of {before}");
            }
            for panels in panels {
                panels.adopt();
                assert!(panels.is_packed() && panels.is_shared());
                assert_eq!(packed_bytes(&panels), expected(seed));
                assert_eq!(panels.pack_some(&threads, usize::MAX).unwrap(), 0);
            }
        }
        let late = quantized(5, Some(&files[0]));
        assert_eq!(late.unpacked_bytes(), 0);
        late.adopt();
        assert_eq!(packed_bytes(&late), expected(5));
    }

    #[test]
    fn a_matrix_that_another_process_packs_is_skipped() {
        let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(1));
        let (packer, other) = (open(&file), open(&file));
        let panels = quantized(3, Some(&other));
        let (shared, _) = MatrixId { file: packer, hash: 3 }.attach(panels.panels(), panels.bytes()).unwrap();
        let lock = shared.try_lock().unwrap();
        assert!(shared.try_lock().is_none(), "another thread");
        assert_eq!(panels.pack_some(&threads, usize::MAX).unwrap(), 0);
        assert!(panels.unpacked_bytes() > 0);
        drop(lock);
        assert!(panels.pack_some(&threads, usize::MAX).unwrap() > 0);
    }

    #[test]
    fn closing_the_file_releases_its_packing_locks() {
        let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(1));
        let panels = quantized(3, Some(&open(&file)));
        let packer = open(&file);
        let (shared, mut buffer) =
            MatrixId { file: Arc::clone(&packer), hash: 3 }.attach(panels.panels(), panels.bytes()).unwrap();
        std::mem::forget(shared.try_lock().unwrap());
        buffer.bytes_mut().fill(0xee);
        assert_eq!(panels.pack_some(&threads, usize::MAX).unwrap(), 0);
        // The end of a process closes its descriptor, which releases its locks.
        drop((shared, buffer));
        drop(Arc::into_inner(packer).unwrap());
        while panels.pack_some(&threads, 1).unwrap() > 0 {}
        assert_eq!(packed_bytes(&panels), expected(3));
    }

    #[test]
    fn eagerly_packed_matrices_are_packed_by_one_process() {
        let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(2));
        let made = AtomicUsize::new(0);
        let pack = |file: &Arc<PackedFile>, fails: bool| {
            let id = MatrixId { file: Arc::clone(file), hash: 9 };
            F32Panels::numbers(&threads, (40, 64), Width::F32, Some(id), &|n, out| {
                made.fetch_add(1, Ordering::Relaxed);
                out.iter_mut().enumerate().for_each(|(i, v)| *v = (n * 64 + i) as f32);
                if fails { Err(kvasir_formats::Error::at("row", "missing")) } else { Ok(()) }
            })
        };
        let files = [open(&file), open(&file)];
        assert!(pack(&files[0], true).is_err());
        made.store(0, Ordering::Relaxed);
        let [first, second] = [0, 1].map(|n| pack(&files[n], false).unwrap());
        assert_eq!(made.load(Ordering::Relaxed), 40, "rows of a failed matrix are not adopted");
        let bytes = |w: &F32Panels| w.packed_reader().unwrap().packed_from(0).to_vec();
        assert!(bytes(&first) == bytes(&second) && second.is_packed() && second.is_shared());
        // A stalled lock holder makes others pack privately.
        let id = MatrixId { file: Arc::clone(&files[0]), hash: 10 };
        let (shared, _) = id.attach(first.panels(), first.bytes()).unwrap();
        let _lock = shared.try_lock().unwrap();
        let id = Some(MatrixId { file: Arc::clone(&files[1]), hash: 10 });
        let alone = F32Panels::numbers(&threads, (40, 64), Width::F32, id, &|_, _| Ok(())).unwrap();
        assert!(alone.is_packed() && !alone.is_shared());
    }

    #[test]
    fn files_with_another_key_or_layout_are_rejected() {
        let file = PackedFile::create(7).unwrap();
        let rejection = |file: &File, key| PackedFile::open(file.as_raw_fd(), key).err().unwrap().to_string();
        assert!(rejection(&file, 8).contains("another model"));
        file.write_all_at(b"other", 0).unwrap();
        assert!(rejection(&file, 7).contains("of this version"));
        assert!(file.set_len(10).is_err(), "it cannot shrink");
        let short = memfd::create(c"short").unwrap();
        assert!(rejection(&short, 7).contains("no table"));
        let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(PackedFile::open(on_disk.as_raw_fd(), 7).is_err());
        assert!(PackedFile::open(-1, 7).is_err());
    }

    #[test]
    fn corrupt_tables_lead_to_private_panels() {
        for field in 0..ENTRY_WORDS {
            for seed in 0..200 {
                let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(1));
                let mut random = Random::new(seed * ENTRY_WORDS as u64 + field as u64);
                let packed = quantized(3, Some(&open(&file)));
                let value = match random.below(4) {
                    0 => u64::MAX,
                    1 => u64::from(random.below(1 << 20) as u32),
                    2 => u64::from(random.below(1 << 30) as u32) * 4096,
                    _ => u64::MAX - u64::from(random.below(1 << 20) as u32),
                };
                file.write_all_at(&value.to_le_bytes(), ((HEADER_WORDS + field) * 8) as u64).unwrap();
                let count = random.below(3) * (u64::MAX / 2);
                if count > 2 && random.below(2) == 0 {
                    file.write_all_at(&count.to_le_bytes(), (HEADER_COUNT * 8) as u64).unwrap();
                }
                let panels = quantized(3, Some(&open(&file)));
                // The number of packed panels is trusted: no checksum covers the panels.
                if field != ENTRY_DONE {
                    while panels.pack_some(&threads, usize::MAX).unwrap() > 0 {}
                    assert_eq!(packed_bytes(&panels), expected(3), "field {field}, {value}");
                }
                drop(packed);
            }
        }
    }

    #[test]
    fn entries_are_found_again_and_do_not_overlap() {
        for seed in 0..kvasir_testkit::rounds(20) {
            let (file, mut random) = (PackedFile::create(7).unwrap(), Random::new(seed));
            let files = [open(&file), open(&file)];
            let mut places: Vec<(u64, u64, u64)> = Vec::new();
            for _ in 0..200 {
                let user = &files[random.below(2) as usize];
                let known = random.below(3) == 0 && !places.is_empty();
                let (hash, bytes) = if known {
                    let (hash, _, bytes) = random.pick(&places);
                    (hash, bytes)
                } else {
                    let size = [1 << 10, 1 << 22, MAPPING_BYTES / 3, MAPPING_BYTES, 2 * MAPPING_BYTES]
                        [random.below(5) as usize];
                    (places.len() as u64, 1 + random.below(size))
                };
                let entry = user.find_or_append(hash, bytes).unwrap();
                let offset = user.field(entry, ENTRY_OFFSET).load(Ordering::Relaxed);
                if known {
                    assert!(places.contains(&(hash, offset, bytes)), "seed {seed}");
                    continue;
                }
                let end = offset + bytes + TAIL as u64;
                assert!(offset >= TABLE_BYTES && end <= file.metadata().unwrap().len());
                assert!(
                    offset.is_multiple_of(MAPPING_BYTES)
                        || offset / MAPPING_BYTES == (end - 1) / MAPPING_BYTES
                );
                let overlaps = |other: &(u64, u64, u64)| offset < other.1 + other.2 && other.1 < end;
                assert!(!places.iter().any(overlaps), "seed {seed}: {offset} + {bytes}");
                places.push((hash, offset, bytes));
            }
        }
    }
}

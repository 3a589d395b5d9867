//! `PackedFile`: packed weights in shared memory (a memfd), for the processes of one model.
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
//! [`shared_panels`](crate::weights::shared_panels) packs the panels of an entry.
//!
//! Ordering: appending an entry needs the lock of the table. The number of entries is stored with
//! Release after the entry's words, and loaded with Acquire.

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
    pub(crate) fn find_or_append(&self, hash: u64, bytes: u64) -> io::Result<usize> {
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

    /// Number of packed panels of an entry. Loaded with Acquire, so these panels can be read.
    pub(crate) fn done(&self, entry: usize) -> usize {
        self.field(entry, ENTRY_DONE).load(Ordering::Acquire) as usize
    }

    /// Publishes the panels of an entry below `done`. The caller must hold the entry's lock.
    pub(crate) fn publish(&self, entry: usize, done: usize) {
        self.field(entry, ENTRY_DONE).store(done as u64, Ordering::Release);
    }

    /// Locks an entry; `None` while another process or thread holds its lock.
    pub(crate) fn try_lock_entry(&self, entry: usize) -> Option<FileLock<'_>> {
        self.try_lock(((HEADER_WORDS + entry * ENTRY_WORDS) * 8) as u64)
    }

    /// Maps the panels of an entry. Fails if the entry's offset or length lies outside of the file.
    pub(crate) fn map_panels(&self, entry: usize, bytes: u64) -> io::Result<Buffer> {
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

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::pool::ThreadPool;
    use crate::weights::shared_panels::tests::{expected, open, packed_bytes, quantized};
    use kvasir_testkit::Random;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

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

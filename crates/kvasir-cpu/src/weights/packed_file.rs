//! `PackedFile`: packed weights in a file in memory that the processes of one model share, so that each
//! matrix is packed once and is in memory once.
//!
//! ```text
//! header | entry 0 | entry 1 | ..      | panels of entry 0 | panels of entry 1 | ..
//! `TABLE` bytes                        | page-aligned, in windows of `WINDOW` bytes
//! ```
//!
//! The header has a key: a hash of everything that the file's users have in common. An entry has a
//! hash of all that its panels follow from (weights, matrix, layout), their place, and the number of
//! panels that are packed. A process looks its matrix up by that hash, and appends an entry if there is
//! none. So processes need not agree on an order, and a matrix of other weights never matches.
//!
//! Packing one entry:
//!
//! 1. Take the entry's lock. Another process that holds it is packing.
//! 2. Read `done` again, and write panels from there on.
//! 3. Store `done` with Release, and release the lock.
//!
//! Readers load `done` with Acquire; panels below it are never written again. A process that ends while
//! it packs loses the lock and has not stored `done`, so another one writes these panels again.
//!
//! What cannot be shared is packed by each process for itself.

use crate::memory::buffer::{Buffer, PAGE, TAIL};
use crate::memory::memfd::{self, MappedPart};
use memmap2::MmapMut;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The beginning of a file; its version counts the layouts of tables and panels.
const MAGIC: u64 = u64::from_le_bytes(*b"kvpack\0\x01");
/// Bytes of header and entries.
const TABLE: u64 = 4 << 20;
/// Unit of mappings, and of the file's length. A matrix crosses no multiple of it, unless it is larger.
const WINDOW: u64 = 256 << 20;
/// Numbers of the header: magic, key, number of entries.
const HEADER: usize = 3;
/// Numbers of an entry: hash, offset, bytes, packed panels.
const ENTRY: usize = 4;
/// Maximum number of entries.
const ENTRIES: usize = (TABLE as usize / 8 - HEADER) / ENTRY;

/// Time that a process waits for one that packs and makes no progress.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Interval at which it looks.
pub(crate) const POLL: Duration = Duration::from_millis(1);

/// An open file of packed weights.
pub struct PackedFile {
    file: File,
    table: MappedPart,
    /// Mapped windows: by their offset in the file, their length and mapping.
    windows: Mutex<BTreeMap<u64, (u64, Arc<MmapMut>, usize)>>,
    /// Locks that this process holds, as those of the kernel do not exclude its threads.
    held: Mutex<BTreeSet<u64>>,
    /// Where the next entry is likely to be.
    next: AtomicUsize,
}

impl PackedFile {
    /// Creates an empty file. Child processes inherit its descriptor; it exists as long as one of them
    /// has it. `key` is a hash of everything that its users have in common. Fails except on Linux.
    pub fn create(key: u64) -> io::Result<File> {
        let file = memfd::create(c"kvasir-weights")?;
        file.set_len(WINDOW)?;
        let table = memfd::map(&file, 0, TABLE as usize)?;
        for (at, number) in [MAGIC, key, 0].into_iter().enumerate() {
            number_of(&table, at).store(number, Ordering::Release);
        }
        Ok(file)
    }

    /// Opens the file of an inherited descriptor. Fails if it was created with another key.
    pub fn open(descriptor: i32, key: u64) -> io::Result<Self> {
        let file = memfd::open(descriptor)?;
        if file.metadata()?.len() < TABLE {
            return Err(io::Error::other("it has no table of packed weights"));
        }
        let table = memfd::map(&file, 0, TABLE as usize)?;
        if number_of(&table, 0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other("it has no table of packed weights of this version"));
        }
        if number_of(&table, 1).load(Ordering::Acquire) != key {
            return Err(io::Error::other("its weights are those of another model or of other options"));
        }
        Ok(Self { file, table, windows: Mutex::default(), held: Mutex::default(), next: AtomicUsize::new(0) })
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        number_of(&self.table, at)
    }

    fn field(&self, entry: usize, field: usize) -> &AtomicU64 {
        self.number(HEADER + entry * ENTRY + field)
    }

    fn count(&self) -> usize {
        (self.number(2).load(Ordering::Acquire) as usize).min(ENTRIES)
    }

    /// The entry of a matrix whose panels have this hash, appended if there is none.
    fn entry(&self, hash: u64, bytes: u64) -> io::Result<usize> {
        if let Some(found) = self.find(hash, bytes) {
            return Ok(found);
        }
        let began = Instant::now();
        let _lock = loop {
            match self.try_lock(0) {
                Some(lock) => break lock,
                None if began.elapsed() > PATIENCE => return Err(io::Error::other("its table stays locked")),
                None => sleep(POLL),
            }
        };
        self.find(hash, bytes).map_or_else(|| self.append(hash, bytes), Ok)
    }

    fn find(&self, hash: u64, bytes: u64) -> Option<usize> {
        // Processes of one model look matrices up in the same order.
        let (count, first) = (self.count(), self.next.load(Ordering::Relaxed));
        let read = |entry, field| self.field(entry, field).load(Ordering::Relaxed);
        let found = (0..count)
            .map(|n| (first + n) % count)
            .find(|&entry| read(entry, 0) == hash && read(entry, 2) == bytes)?;
        self.next.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    /// Appends an entry. The table must be locked.
    fn append(&self, hash: u64, bytes: u64) -> io::Result<usize> {
        let entry = self.count();
        if entry == ENTRIES {
            return Err(io::Error::other("its table is full"));
        }
        let read = |field| entry.checked_sub(1).map(|last| self.field(last, field).load(Ordering::Relaxed));
        let end =
            read(1).zip(read(2)).map_or(Some(TABLE), |(offset, bytes)| taken(bytes)?.checked_add(offset));
        let place = |end: u64| {
            let taken = taken(bytes)?;
            let is_within = (end % WINDOW).checked_add(taken)? <= WINDOW;
            let offset = if is_within { end } else { end.checked_next_multiple_of(WINDOW)? };
            Some((offset, offset.checked_add(taken)?.checked_next_multiple_of(WINDOW)?))
        };
        let (offset, len) = end.and_then(place).ok_or_else(|| io::Error::other("it would be too large"))?;
        if self.file.metadata()?.len() < len {
            self.file.set_len(len)?;
        }
        for (field, value) in [hash, offset, bytes, 0].into_iter().enumerate() {
            self.field(entry, field).store(value, Ordering::Relaxed);
        }
        self.number(2).store(entry as u64 + 1, Ordering::Release);
        Ok(entry)
    }

    /// The memory of an entry. Its place is checked: it must lie in the file, behind the table.
    fn buffer(&self, entry: usize, bytes: u64) -> io::Result<Buffer> {
        let wrong = || io::Error::other("its table has a wrong offset");
        let offset = self.field(entry, 1).load(Ordering::Relaxed);
        let end = taken(bytes).and_then(|taken| offset.checked_add(taken)).ok_or_else(wrong)?;
        if offset < TABLE || !offset.is_multiple_of(PAGE as u64) || end > self.file.metadata()?.len() {
            return Err(wrong());
        }
        let begin = offset / WINDOW * WINDOW;
        let len = (end - begin).next_multiple_of(WINDOW);
        let mut windows = lock(&self.windows);
        let (region, start) = match windows.get(&begin) {
            Some((mapped, region, start)) if *mapped >= len => (Arc::clone(region), *start),
            _ => {
                let MappedPart { region, start } = memfd::map(&self.file, begin, len as usize)?;
                let region = Arc::new(region);
                windows.insert(begin, (len, Arc::clone(&region), start));
                (region, start)
            }
        };
        Ok(Buffer::in_region(region, start + (offset - begin) as usize, bytes as usize))
    }

    /// The lock of a byte of the file; `None` while another process or thread holds it.
    fn try_lock(&self, at: u64) -> Option<FileLock<'_>> {
        let mut held = lock(&self.held);
        if held.contains(&at) || !memfd::try_lock(&self.file, at).unwrap_or(false) {
            return None;
        }
        held.insert(at);
        Some(FileLock { file: self, at })
    }
}

/// Number `at` of the table.
fn number_of(table: &MappedPart, at: usize) -> &AtomicU64 {
    debug_assert!((at + 1) * 8 <= TABLE as usize);
    // SAFETY: it lies within the `TABLE` bytes that are mapped as long as `table` lives and that the
    // file always has. It is aligned, and accessed as an atomic by every process.
    unsafe { &*table.region.as_ptr().add(table.start).cast::<AtomicU64>().add(at) }
}

/// Bytes that panels of `bytes` take in the file.
fn taken(bytes: u64) -> Option<u64> {
    bytes.checked_add(TAIL as u64)?.checked_next_multiple_of(PAGE as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock of a byte of the file; dropping it releases it.
pub(crate) struct FileLock<'a> {
    file: &'a PackedFile,
    at: u64,
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.file.held);
        memfd::unlock(&self.file.file, self.at);
        held.remove(&self.at);
    }
}

/// The place of a matrix in a file: which weights, and how they are packed.
#[derive(Clone)]
pub(crate) struct MatrixId {
    pub(crate) file: Arc<PackedFile>,
    /// Hash of everything that the bytes of the panels follow from.
    pub(crate) hash: u64,
}

impl MatrixId {
    /// Finds or makes the entry of the matrix, which has `panels` panels in `bytes` bytes. `None` if
    /// it cannot be shared.
    pub(crate) fn place(self, panels: usize, bytes: usize) -> Option<(SharedPanels, Buffer)> {
        let entry = self.file.entry(self.hash, bytes as u64).ok()?;
        let buffer = self.file.buffer(entry, bytes as u64).ok()?;
        Some((SharedPanels { file: self.file, entry, panels }, buffer))
    }
}

/// The panels of a matrix that processes share.
pub(crate) struct SharedPanels {
    file: Arc<PackedFile>,
    entry: usize,
    panels: usize,
}

impl SharedPanels {
    /// Number of panels that are packed.
    pub(crate) fn done(&self) -> usize {
        (self.file.field(self.entry, 3).load(Ordering::Acquire) as usize).min(self.panels)
    }

    /// The lock of the panels; `None` while another process packs them.
    pub(crate) fn try_lock(&self) -> Option<PackingLock<'_>> {
        let at = (HEADER + self.entry * ENTRY) * 8;
        Some(PackingLock { panels: self, _lock: self.file.try_lock(at as u64)? })
    }

    /// The lock of the panels. Waits for a process that packs them; `None` if they are all packed, or
    /// if it makes no progress.
    pub(crate) fn lock(&self) -> Option<PackingLock<'_>> {
        let began = Instant::now();
        loop {
            match self.try_lock() {
                lock @ Some(_) => return lock,
                None if self.done() == self.panels || began.elapsed() > PATIENCE => return None,
                None => sleep(POLL),
            }
        }
    }
}

/// The right to pack the panels of a matrix.
pub(crate) struct PackingLock<'a> {
    panels: &'a SharedPanels,
    _lock: FileLock<'a>,
}

impl PackingLock<'_> {
    /// Commits memory for bytes of the panels, before they are written.
    pub(crate) fn allocate(&self, buffer: &Buffer, bytes: std::ops::Range<usize>) -> io::Result<()> {
        memfd::allocate(buffer.ptr().wrapping_add(bytes.start), bytes.len())
    }

    /// Makes the panels below `done` visible to all processes.
    pub(crate) fn publish(&self, done: usize) {
        self.panels.file.field(self.panels.entry, 3).store(done as u64, Ordering::Release);
    }
}

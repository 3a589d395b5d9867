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

    /// The file as another process opens it.
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
                // It packs a panel, or takes over what others have packed.
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
    fn what_another_process_packs_is_skipped() {
        let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(1));
        let (packer, other) = (open(&file), open(&file));
        let panels = quantized(3, Some(&other));
        let (shared, _) = MatrixId { file: packer, hash: 3 }.place(panels.panels(), panels.bytes()).unwrap();
        let lock = shared.try_lock().unwrap();
        assert!(shared.try_lock().is_none(), "another thread");
        assert_eq!(panels.pack_some(&threads, usize::MAX).unwrap(), 0);
        assert!(panels.unpacked_bytes() > 0);
        drop(lock);
        assert!(panels.pack_some(&threads, usize::MAX).unwrap() > 0);
    }

    #[test]
    fn a_packer_that_ends_leaves_its_matrix_to_others() {
        let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(1));
        let panels = quantized(3, Some(&open(&file)));
        let packer = open(&file);
        let (shared, mut buffer) =
            MatrixId { file: Arc::clone(&packer), hash: 3 }.place(panels.panels(), panels.bytes()).unwrap();
        std::mem::forget(shared.try_lock().unwrap());
        buffer.bytes_mut().fill(0xee);
        assert_eq!(panels.pack_some(&threads, usize::MAX).unwrap(), 0);
        // Its end closes its descriptor, which releases its locks.
        drop((shared, buffer));
        drop(Arc::into_inner(packer).unwrap());
        while panels.pack_some(&threads, 1).unwrap() > 0 {}
        assert_eq!(packed_bytes(&panels), expected(3));
    }

    #[test]
    fn matrices_packed_at_once_are_made_once() {
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
        assert_eq!(made.load(Ordering::Relaxed), 40, "rows of a failed matrix are not taken over");
        let bytes = |w: &F32Panels| w.packed_reader().unwrap().packed_from(0).to_vec();
        assert!(bytes(&first) == bytes(&second) && second.is_packed() && second.is_shared());
        // A process that holds the lock and makes no progress does not stop the others.
        let id = MatrixId { file: Arc::clone(&files[0]), hash: 10 };
        let (shared, _) = id.place(first.panels(), first.bytes()).unwrap();
        let _lock = shared.try_lock().unwrap();
        let id = Some(MatrixId { file: Arc::clone(&files[1]), hash: 10 });
        let alone = F32Panels::numbers(&threads, (40, 64), Width::F32, id, &|_, _| Ok(())).unwrap();
        assert!(alone.is_packed() && !alone.is_shared());
    }

    #[test]
    fn files_of_others_are_refused() {
        let file = PackedFile::create(7).unwrap();
        let refused = |file: &File, key| PackedFile::open(file.as_raw_fd(), key).err().unwrap().to_string();
        assert!(refused(&file, 8).contains("another model"));
        file.write_all_at(b"other", 0).unwrap();
        assert!(refused(&file, 7).contains("of this version"));
        assert!(file.set_len(10).is_err(), "it cannot shrink");
        let short = memfd::create(c"short").unwrap();
        assert!(refused(&short, 7).contains("no table"));
        let on_disk = File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(PackedFile::open(on_disk.as_raw_fd(), 7).is_err());
        assert!(PackedFile::open(-1, 7).is_err());
    }

    #[test]
    fn wrong_tables_lead_to_private_panels() {
        for field in 0..ENTRY {
            for seed in 0..200 {
                let (file, threads) = (PackedFile::create(7).unwrap(), ThreadPool::new(1));
                let mut random = Random::new(seed * ENTRY as u64 + field as u64);
                let packed = quantized(3, Some(&open(&file)));
                let value = match random.below(4) {
                    0 => u64::MAX,
                    1 => u64::from(random.below(1 << 20) as u32),
                    2 => u64::from(random.below(1 << 30) as u32) * 4096,
                    _ => u64::MAX - u64::from(random.below(1 << 20) as u32),
                };
                file.write_all_at(&value.to_le_bytes(), ((HEADER + field) * 8) as u64).unwrap();
                let count = random.below(3) * (u64::MAX / 2);
                if count > 2 && random.below(2) == 0 {
                    file.write_all_at(&count.to_le_bytes(), 16).unwrap();
                }
                let panels = quantized(3, Some(&open(&file)));
                // A count of packed panels is trusted: nothing else says which bytes are valid.
                if field != 3 {
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
                    let size = [1 << 10, 1 << 22, WINDOW / 3, WINDOW, 2 * WINDOW][random.below(5) as usize];
                    (places.len() as u64, 1 + random.below(size))
                };
                let entry = user.entry(hash, bytes).unwrap();
                let offset = user.field(entry, 1).load(Ordering::Relaxed);
                if known {
                    assert!(places.contains(&(hash, offset, bytes)), "seed {seed}");
                    continue;
                }
                let end = offset + bytes + TAIL as u64;
                assert!(offset >= TABLE && end <= file.metadata().unwrap().len());
                assert!(offset.is_multiple_of(WINDOW) || offset / WINDOW == (end - 1) / WINDOW);
                let overlaps = |other: &(u64, u64, u64)| offset < other.1 + other.2 && other.1 < end;
                assert!(!places.iter().any(overlaps), "seed {seed}: {offset} + {bytes}");
                places.push((hash, offset, bytes));
            }
        }
    }
}

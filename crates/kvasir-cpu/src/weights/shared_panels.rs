//! `SharedPanels`: panels of one matrix that the processes of a model pack together, in an entry of
//! a [`PackedFile`]. Each panel is packed once, and all processes map the same pages.
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

use crate::memory::buffer::Buffer;
use crate::memory::memfd;
use crate::weights::packed_file::{FileLock, POLL_INTERVAL, PackedFile, STALL_TIMEOUT};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

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
        self.file.done(self.entry).min(self.panels)
    }

    /// Takes the packing lock; `None` while another process or thread holds it.
    pub(crate) fn try_lock(&self) -> Option<PackingLock<'_>> {
        Some(PackingLock { panels: self, _lock: self.file.try_lock_entry(self.entry)? })
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
    pub(crate) fn populate(&self, buffer: &Buffer, bytes: Range<usize>) -> io::Result<()> {
        memfd::populate(buffer.ptr().wrapping_add(bytes.start), bytes.len())
    }

    /// Publishes the panels below `done` to all processes. They must not be written again.
    pub(crate) fn publish(&self, done: usize) {
        self.panels.file.publish(self.panels.entry, done);
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::isa::tile::LANES;
    use crate::threads::pool::ThreadPool;
    use crate::weights::f32::panels::F32Panels;
    use crate::weights::f32::width::Width;
    use crate::weights::panels::tests::MemoryRows;
    use crate::weights::quant::panels::QuantPanels;
    use kvasir_formats::DType;
    use kvasir_testkit::Random;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const INPUTS: usize = 256;
    const OUTPUTS: usize = 5 * LANES - 3;

    /// Opens the file anew, as another process does.
    pub(crate) fn open(file: &File) -> Arc<PackedFile> {
        Arc::new(PackedFile::open(file.as_raw_fd(), 7).unwrap())
    }

    pub(crate) fn quantized(seed: u64, file: Option<&Arc<PackedFile>>) -> QuantPanels {
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

    pub(crate) fn packed_bytes(panels: &QuantPanels) -> Vec<u8> {
        panels.packed_reader().unwrap().packed_from(0).to_vec()
    }

    pub(crate) fn expected(seed: u64) -> Vec<u8> {
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
}

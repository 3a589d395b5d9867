//! Packed weight panels: a matrix in panels of 16 outputs, in the order in which GEMM and GEMV
//! kernels stream them.
//!
//! A matrix starts unpacked: each panel is made on the fly from the stored rows (mapped file), into
//! scratch. `pack_some` packs a prefix of the panels and releases the pages behind it.
//! Packed and on-the-fly panels have the same bytes (decision 0017).
//!
//! Panels lie in private memory, or in a `PackedFile` that processes share. For shared panels,
//! `adopt` extends the packed prefix by the panels of other processes, and `pack_some` packs the
//! rest.
//!
//! Ordering: `packing` admits one packer. It writes panels `done ..` and then stores `done` with
//! Release. Readers load `done` with Acquire and touch packed panels below it only, which are never
//! written again.

use crate::isa::tile::LANES;
use crate::memory::aligned::AlignedVec;
use crate::memory::buffer::Buffer;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::threads::pool::ThreadPool;
use crate::weights::shared_panels::{MatrixId, SharedPanels};
use kvasir_formats::Error;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Maps a row index to the row's stored bytes.
pub(crate) type RowBytes<'a> = dyn Fn(usize) -> &'a [u8] + Sync + 'a;

/// Writes the values of row `n` of a matrix to a slice of its length.
pub(crate) type WriteRow<'a> = dyn Fn(usize, &mut [f32]) -> Result<(), Error> + Sync + 'a;

/// The stored rows of a panel; empty slices past the last row of the matrix.
pub(crate) type EncodedPanel<'a> = [&'a [u8]; LANES];

/// Estimated distance in bytes from a row to the same row of the next panel.
#[inline(always)]
pub(crate) fn next_panel_distance(rows: &EncodedPanel<'_>) -> usize {
    (rows[1].as_ptr() as usize).wrapping_sub(rows[0].as_ptr() as usize).wrapping_mul(LANES)
}

/// Prefetches into L2 as many bytes as `bytes` has, from `ahead` bytes after its start.
#[inline(always)]
pub(crate) fn prefetch_bytes(bytes: &[u8], ahead: usize) {
    for at in (0..bytes.len()).step_by(64) {
        prefetch_line(CacheLevel::L2, bytes.as_ptr().wrapping_add(ahead).wrapping_add(at));
    }
}

/// Scratch for a panel made on the fly.
#[derive(Default)]
pub(crate) struct PanelScratch {
    panel: AlignedVec<u8>,
    pub(crate) rows: RowScratch,
}

/// Scratch of layouts that compute rows before they pack them: a row in f32, and rows in bf16.
#[derive(Default)]
pub(crate) struct RowScratch {
    pub(crate) values: Vec<f32>,
    pub(crate) bits: Vec<u16>,
}

/// A matrix's rows in their stored (checkpoint) encoding.
pub(crate) trait EncodedRows: Send + Sync {
    /// Calls `to` once with access to the rows. A missing row is empty.
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>));
    /// Hint: these rows are read soon (page them in).
    fn will_read(&self, _rows: Range<usize>) {}
    /// Hint: these rows are no longer needed (pages may be released).
    fn release(&self, _rows: Range<usize>) {}
}

/// The row source of a matrix that is fully packed.
struct NoRows;

impl EncodedRows for NoRows {
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>)) {
        to(&|_| &[]);
    }
}

/// A panel format: its size, and how to pack stored rows into it.
pub(crate) trait PanelLayout: Send + Sync {
    /// Bytes of one panel.
    fn panel_bytes(&self) -> usize;
    /// Packs a panel from its stored rows. Never called for a matrix that was packed at creation.
    fn make(&self, _rows: &EncodedPanel<'_>, _out: &mut [u8], _scratch: &mut RowScratch) {
        unreachable!("it is packed");
    }
}

/// The weight panels of one matrix.
pub(crate) struct Panels<K> {
    pub(crate) kind: K,
    pub(crate) outputs: usize,
    rows: Box<dyn EncodedRows>,
    /// Memory of all panels, once allocated.
    packed: OnceLock<Buffer>,
    /// Their entry in a `PackedFile`, which `packed` then maps; `None` for private panels.
    shared: Option<SharedPanels>,
    /// Length of the packed prefix, in panels; these are never written again.
    done: AtomicUsize,
    /// Held while packing.
    packing: Mutex<()>,
    /// Whether the rows were paged in before being read in place.
    brought: AtomicBool,
}

/// Bytes packed before the pages of the stored rows are released.
const AT_ONCE: usize = 16 << 20;
/// Bytes of panels whose stored rows a thread pages in at a time.
const BROUGHT: usize = 1 << 20;

impl<K: PanelLayout> Panels<K> {
    /// A matrix that is not packed yet. With an `id`, its panels are shared if the file has room.
    pub(crate) fn unpacked(
        kind: K,
        outputs: usize,
        rows: impl EncodedRows + 'static,
        id: Option<MatrixId>,
    ) -> Self {
        let (rows, packed) = (Box::new(rows), OnceLock::new());
        let (done, packing) = (AtomicUsize::new(0), Mutex::new(()));
        let brought = AtomicBool::new(false);
        let all = Self { kind, outputs, rows, packed, shared: None, done, packing, brought };
        let Some((shared, buffer)) = id.and_then(|id| id.attach(all.panels(), all.bytes())) else {
            return all;
        };
        Self { shared: Some(shared), packed: OnceLock::from(buffer), ..all }
    }

    /// A matrix packed at once, in parallel: `make` fills one panel. Adopts the panels if another
    /// process has packed them all. Returns the first error of `make`.
    pub(crate) fn packed(
        kind: K,
        outputs: usize,
        threads: &ThreadPool,
        id: Option<MatrixId>,
        make: impl Fn(&K, usize, &mut [u8], &mut RowScratch) -> Result<(), Error> + Sync,
    ) -> Result<Self, Error> {
        let mut all = Self::unpacked(kind, outputs, NoRows, id);
        let failed = OnceLock::new();
        let fill = |all: &Self, buffer: &Buffer| {
            all.fill(buffer, threads, 0..all.panels(), &|panel, out, scratch| {
                if let Err(why) = make(&all.kind, panel, out, scratch) {
                    // Only the first error is returned.
                    let _ = failed.set(why);
                }
            });
            failed.get().map_or(Ok(()), |why: &Error| Err(why.clone()))
        };
        let is_shared = match all.shared.as_ref().zip(all.packed.get()) {
            Some((shared, buffer)) => {
                if let Some(lock) = shared.lock()
                    && shared.done() < all.panels()
                {
                    lock.populate(buffer, 0..all.bytes()).map_err(out_of_memory)?;
                    fill(&all, buffer)?;
                    lock.publish(all.panels());
                }
                shared.done() == all.panels()
            }
            None => false,
        };
        if !is_shared {
            let buffer = Buffer::in_huge_pages(all.bytes()).map_err(out_of_memory)?;
            fill(&all, &buffer)?;
            (all.shared, all.packed) = (None, OnceLock::from(buffer));
        }
        all.done.store(all.panels(), Ordering::Release);
        Ok(all)
    }

    /// Packs or adopts at least one more panel, up to about `bytes` bytes when packing, and returns
    /// the number of bytes. Returns 0 if all are packed, or if another process is packing. Kernels
    /// use the packed panels from then on.
    pub(crate) fn pack_some(&self, threads: &ThreadPool, bytes: usize) -> io::Result<usize> {
        let _packing = self.packing.lock().unwrap_or_else(PoisonError::into_inner);
        let (len, all, from) = (self.kind.panel_bytes(), self.panels(), self.done());
        if from == all {
            return Ok(0);
        }
        let lock = match &self.shared {
            Some(shared) => {
                let Some(lock) = shared.try_lock() else { return Ok(0) };
                let adopted = self.adopt_up_to(shared.done());
                if adopted > 0 {
                    return Ok(adopted * len);
                }
                Some(lock)
            }
            None => None,
        };
        if self.packed.get().is_none() {
            // Cannot fail: the lock is held, and only this function sets it.
            let _ = self.packed.set(Buffer::in_huge_pages(self.bytes())?);
        }
        let Some(buffer) = self.packed.get() else { return Ok(0) };
        let end = all.min(from + (bytes.min(AT_ONCE) / len.max(1)).max(1));
        if let Some(lock) = &lock {
            lock.populate(buffer, from * len..end * len)?;
        }
        self.rows.lend(&mut |rows| {
            self.fill(buffer, threads, from..end, &|panel, out, scratch| {
                self.make(panel, rows, out, scratch)
            });
        });
        self.done.store(end, Ordering::Release);
        if let Some(lock) = lock {
            lock.publish(end);
        }
        self.rows.release(from * LANES..self.outputs.min(end * LANES));
        Ok((end - from) * len)
    }

    /// Extends the packed prefix by the panels that other processes have packed.
    pub(crate) fn adopt(&self) {
        if let Some(shared) = self.shared.as_ref().filter(|_| !self.is_packed()) {
            let _packing = self.packing.lock().unwrap_or_else(PoisonError::into_inner);
            self.adopt_up_to(shared.done());
        }
    }

    /// Extends the packed prefix to `end`; returns the number of panels added. `packing` must be
    /// held.
    fn adopt_up_to(&self, end: usize) -> usize {
        let from = self.done();
        if end <= from {
            return 0;
        }
        self.done.store(end, Ordering::Release);
        self.rows.release(from * LANES..self.outputs.min(end * LANES));
        end - from
    }

    /// Packs a range of panels in parallel. No reader may have access to them yet.
    fn fill(
        &self,
        buffer: &Buffer,
        threads: &ThreadPool,
        panels: Range<usize>,
        make: &(dyn Fn(usize, &mut [u8], &mut RowScratch) + Sync),
    ) {
        let (len, base) = (self.kind.panel_bytes(), buffer.ptr() as usize);
        threads.each_in_order(panels.len(), &|worker, n| {
            let panel = panels.start + n;
            // SAFETY: the panel lies within the buffer; it is not read before `done` covers it, and
            // one thread writes it.
            let out = unsafe { std::slice::from_raw_parts_mut((base + panel * len) as *mut u8, len) };
            make(panel, out, worker.scratch());
        });
    }

    fn done(&self) -> usize {
        self.done.load(Ordering::Acquire)
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.done() == self.panels()
    }

    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Bytes of all panels.
    pub(crate) fn bytes(&self) -> usize {
        self.panels() * self.kind.panel_bytes()
    }

    /// Bytes of the panels that no process has packed yet.
    pub(crate) fn unpacked_bytes(&self) -> usize {
        let done = self.shared.as_ref().map_or(0, SharedPanels::done).max(self.done());
        (self.panels() - done) * self.kind.panel_bytes()
    }

    /// Whether the panels lie in a `PackedFile`.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    fn make(&self, panel: usize, rows: &RowBytes<'_>, out: &mut [u8], scratch: &mut RowScratch) {
        let mut encoded: EncodedPanel<'_> = [&[]; LANES];
        for (n, row) in (panel * LANES..self.outputs).zip(&mut encoded) {
            *row = rows(n);
        }
        self.kind.make(&encoded, out, scratch);
    }

    /// A reader of the panels, if all are packed.
    pub(crate) fn packed_reader(&self) -> Option<PanelReader<'_, '_, K>> {
        let done = self.is_packed().then(|| self.panels())?;
        Some(PanelReader { panels: self, packed: self.packed.get(), done, rows: &|_| &[] })
    }

    /// Calls `job` with a reader of the panels; the first call of an unpacked matrix pages its rows
    /// in, in parallel.
    pub(crate) fn read(&self, threads: &ThreadPool, mut job: impl FnMut(PanelReader<'_, '_, K>)) {
        if let Some(reader) = self.packed_reader() {
            return job(reader);
        }
        if !self.brought.swap(true, Ordering::Relaxed) {
            let together = (BROUGHT / self.kind.panel_bytes().max(1)).max(1) * LANES;
            let first = self.done() * LANES;
            threads.each_in_order(self.outputs.saturating_sub(first).div_ceil(together), &|_, n| {
                let from = first + n * together;
                self.rows.will_read(from..self.outputs.min(from + together));
            });
        }
        self.rows.lend(&mut |rows| {
            job(PanelReader { panels: self, packed: self.packed.get(), done: self.done(), rows });
        });
    }
}

/// A snapshot of a matrix's panels for one GEMM or GEMV.
pub(crate) struct PanelReader<'a, 'r, K> {
    pub(crate) panels: &'a Panels<K>,
    pub(crate) packed: Option<&'a Buffer>,
    /// Length of the packed prefix when the reader was made.
    pub(crate) done: usize,
    /// The stored rows behind the other panels.
    pub(crate) rows: &'a RowBytes<'r>,
}

impl<K> Clone for PanelReader<'_, '_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for PanelReader<'_, '_, K> {}

impl<'a, K: PanelLayout> PanelReader<'a, '_, K> {
    /// Whether all panels are read packed, as one contiguous stream. Packing after the reader was
    /// made does not count.
    pub(crate) fn is_packed(&self) -> bool {
        self.done == self.panels.panels()
    }

    /// All packed panels from `n` on.
    pub(crate) fn packed_from(&self, n: usize) -> &'a [u8] {
        let Some(buffer) = self.packed.filter(|_| n < self.done) else { return &[] };
        let panel_bytes = self.panels.kind.panel_bytes();
        let (first, len) = (buffer.ptr().wrapping_add(n * panel_bytes), (self.done - n) * panel_bytes);
        // SAFETY: these panels lie within the buffer and are never written again.
        unsafe { std::slice::from_raw_parts(first, len) }
    }

    /// Panel `n`. `scratch` is for a panel made on the fly; it is freed once panels are packed.
    pub(crate) fn panel<'p>(&'p self, n: usize, scratch: &'p mut PanelScratch) -> &'p [u8] {
        let len = self.panels.kind.panel_bytes();
        match self.packed_from(n).get(..len) {
            Some(packed) => {
                if !scratch.panel.is_empty() {
                    *scratch = PanelScratch::default();
                }
                packed
            }
            None => {
                scratch.panel.grow(len);
                let out = &mut scratch.panel[..len];
                self.panels.make(n, self.rows, out, &mut scratch.rows);
                out
            }
        }
    }
}

pub(crate) fn out_of_memory(e: io::Error) -> Error {
    Error::at("", format!("no memory for weights: {e}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::weights::panels::{EncodedRows, RowBytes};

    /// Stored rows in memory.
    pub(crate) struct MemoryRows {
        pub(crate) bytes: Vec<u8>,
        pub(crate) step: usize,
    }

    impl EncodedRows for MemoryRows {
        fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>)) {
            to(&|n| &self.bytes[n * self.step..(n + 1) * self.step]);
        }
    }
}

//! Matrices as panels of 16 outputs, read once and in order by every kernel. Until a matrix is packed each panel is made when it is wanted, out of the
//! rows as they are stored: the same bytes.

mod reader;

use crate::ask::{Near, ask_line};
use crate::lines::Lines;
use crate::tile::LANES;
use crate::{Team, buffer::Buffer};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

pub(crate) use reader::{PanelAt, PanelReader};

/// The bytes of a row, by its number.
pub(crate) type RowBytes<'a> = dyn Fn(usize) -> &'a [u8] + Sync + 'a;

/// Rows of a panel as they are stored; none where the matrix ends.
pub(crate) type Encoded<'a> = [&'a [u8]; LANES];

/// How many bytes behind each row the next panel's probably lies.
#[inline(always)]
pub(crate) fn ahead(rows: &Encoded<'_>) -> usize {
    (rows[1].as_ptr() as usize).wrapping_sub(rows[0].as_ptr() as usize).wrapping_mul(LANES)
}

/// Asks memory for what lies so many bytes ahead of some.
#[inline(always)]
pub(crate) fn fetch(bytes: &[u8], ahead: usize) {
    for at in (0..bytes.len()).step_by(64) {
        ask_line(Near::Second, bytes.as_ptr().wrapping_add(ahead).wrapping_add(at));
    }
}

/// Where a panel is made that is not packed.
pub(crate) type Room = Lines<u8>;

/// A matrix's rows where they are stored.
pub(crate) trait EncodedRows: Send + Sync {
    /// Hands them to `to`, once. A row that is not there is empty.
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>));
    /// Some of them are read soon.
    fn bring(&self, _rows: Range<usize>) {}
    /// Some of them are not needed any more.
    fn let_go(&self, _rows: Range<usize>) {}
}

/// No rows: everything is packed.
struct Nothing;

impl EncodedRows for Nothing {
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>)) {
        to(&|_| &[]);
    }
}

/// What a panel is made of and how.
pub(crate) trait Kind: Send + Sync {
    /// Bytes of a panel.
    fn panel_bytes(&self) -> usize;
    /// Makes the panel of some rows. Nobody asks for one of a matrix that is packed when it is made.
    fn make(&self, _rows: &Encoded<'_>, _out: &mut [u8]) {
        unreachable!("it is packed");
    }
}

/// The panels of a matrix.
pub(crate) struct Panels<K> {
    /// No other matrix of the process has or had it.
    number: u64,
    pub(crate) kind: K,
    pub(crate) outputs: usize,
    rows: Box<dyn EncodedRows>,
    /// Room for all panels, once there is one.
    packed: OnceLock<Buffer>,
    /// How many of the first panels lie there; they are not written any more.
    done: AtomicUsize,
    /// Held by whoever packs.
    packing: Mutex<()>,
    /// Whether the rows have been brought before they are read where they lie.
    brought: AtomicBool,
}

/// Bytes that are packed before what they were made of is let go.
const AT_ONCE: usize = 16 << 20;
/// Bytes of panels whose rows a thread brings at a time.
const BROUGHT: usize = 1 << 20;

impl<K: Kind> Panels<K> {
    /// A matrix that is not packed yet.
    pub(crate) fn of(kind: K, outputs: usize, rows: impl EncodedRows + 'static) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (rows, packed) = (Box::new(rows), OnceLock::new());
        let (done, packing) = (AtomicUsize::new(0), Mutex::new(()));
        Self { number, kind, outputs, rows, packed, done, packing, brought: AtomicBool::new(false) }
    }

    /// A matrix that is packed at once: `make` fills panel by panel.
    pub(crate) fn packed(
        kind: K,
        outputs: usize,
        team: &Team,
        make: impl Fn(&K, usize, &mut [u8]) + Sync,
    ) -> io::Result<Self> {
        let all = Self::of(kind, outputs, Nothing);
        let buffer = Buffer::in_large_pages(all.bytes())?;
        all.fill(&buffer, team, 0..all.panels(), &|panel, out| make(&all.kind, panel, out));
        // Nobody else has it yet.
        let _ = all.packed.set(buffer);
        all.done.store(all.panels(), Ordering::Release);
        Ok(all)
    }

    /// Packs at least one panel more, up to about so many bytes, and returns how many bytes; from then on kernels read them there.
    pub(crate) fn pack_some(&self, team: &Team, bytes: usize) -> io::Result<usize> {
        let _packing = self.packing.lock().unwrap_or_else(PoisonError::into_inner);
        let (len, all, from) = (self.kind.panel_bytes(), self.panels(), self.done());
        if from == all {
            return Ok(0);
        }
        if self.packed.get().is_none() {
            // It was not set before: only this sets it.
            let _ = self.packed.set(Buffer::in_large_pages(self.bytes())?);
        }
        let Some(buffer) = self.packed.get() else { return Ok(0) };
        let end = all.min(from + (bytes.min(AT_ONCE) / len.max(1)).max(1));
        self.rows.lend(&mut |rows| {
            self.fill(buffer, team, from..end, &|panel, out| self.make(panel, rows, out));
        });
        self.done.store(end, Ordering::Release);
        self.rows.let_go(from * LANES..self.outputs.min(end * LANES));
        Ok((end - from) * len)
    }

    /// Writes panels that nobody reads yet.
    fn fill(
        &self,
        buffer: &Buffer,
        team: &Team,
        panels: Range<usize>,
        make: &(dyn Fn(usize, &mut [u8]) + Sync),
    ) {
        let (len, base) = (self.kind.panel_bytes(), buffer.ptr() as usize);
        team.each_in_order(panels.len(), &|_, n| {
            let panel = panels.start + n;
            // SAFETY: the panel lies within the buffer; nobody reads it before it is done, and one thread writes it.
            let out = unsafe { std::slice::from_raw_parts_mut((base + panel * len) as *mut u8, len) };
            make(panel, out);
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

    /// What all panels take.
    pub(crate) fn bytes(&self) -> usize {
        self.panels() * self.kind.panel_bytes()
    }

    fn make(&self, panel: usize, rows: &RowBytes<'_>, out: &mut [u8]) {
        let mut encoded: Encoded<'_> = [&[]; LANES];
        for (n, row) in (panel * LANES..self.outputs).zip(&mut encoded) {
            *row = rows(n);
        }
        self.kind.make(&encoded, out);
    }

    /// What kernels read panels from, if all are packed.
    pub(crate) fn packed_reader(&self) -> Option<PanelReader<'_, '_, K>> {
        let done = self.is_packed().then(|| self.panels())?;
        Some(PanelReader { panels: self, packed: self.packed.get(), done, rows: &|_| &[] })
    }

    /// Hands out what kernels read panels from.
    pub(crate) fn read(&self, team: &Team, mut job: impl FnMut(PanelReader<'_, '_, K>)) {
        if let Some(reader) = self.packed_reader() {
            return job(reader);
        }
        if !self.brought.swap(true, Ordering::Relaxed) {
            let together = (BROUGHT / self.kind.panel_bytes().max(1)).max(1) * LANES;
            let first = self.done() * LANES;
            team.each_in_order(self.outputs.saturating_sub(first).div_ceil(together), &|_, n| {
                let from = first + n * together;
                self.rows.bring(from..self.outputs.min(from + together));
            });
        }
        self.rows.lend(&mut |rows| {
            job(PanelReader { panels: self, packed: self.packed.get(), done: self.done(), rows });
        });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{EncodedRows, RowBytes};

    /// Encoded rows in memory.
    pub(crate) struct Lines {
        pub(crate) bytes: Vec<u8>,
        pub(crate) step: usize,
    }

    impl EncodedRows for Lines {
        fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>)) {
            to(&|n| &self.bytes[n * self.step..(n + 1) * self.step]);
        }
    }
}

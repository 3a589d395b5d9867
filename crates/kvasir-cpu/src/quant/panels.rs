use super::format::{Format, LANES, SUPER};
use super::pack::{Encoded, pack};
use crate::{Level, Team, buffer::Buffer};
use kvasir_formats::DType;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The bytes of a row, by its number.
pub(crate) type RowBytes<'a> = dyn Fn(usize) -> &'a [u8] + Sync + 'a;

/// A matrix's rows where they are stored.
pub(crate) trait EncodedRows: Send + Sync {
    /// Hands them to `to`, once. A row that is not there is empty.
    fn lend(&self, to: &mut dyn FnMut(&RowBytes<'_>));
    /// Some of them are not needed any more.
    fn let_go(&self, _rows: Range<usize>) {}
}

/// A matrix of quantised weights as panels of 16 outputs: the superblocks of a panel one after the other, codes of four inputs of
/// 16 outputs to a vector. Read once, in order, by every kernel.
///
/// Until it is packed, each panel is made when it is wanted, out of the rows as they are stored: the same bytes.
pub(crate) struct QuantPanels {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    pub(crate) outputs: usize,
    /// Superblocks of a panel, of all planes.
    pub(crate) supers: usize,
    rows: Box<dyn EncodedRows>,
    /// Room for all panels, once there is one.
    packed: OnceLock<Buffer>,
    /// How many of the first panels lie there; they are not written any more.
    done: AtomicUsize,
    /// Held by whoever packs.
    packing: Mutex<()>,
}

/// Bytes that are packed before what they were made of is let go.
const AT_ONCE: usize = 16 << 20;

impl QuantPanels {
    /// A matrix of `outputs` rows of `inputs` weights that is not packed yet; none for encodings that are not integers in blocks.
    pub(crate) fn of(
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: impl EncodedRows + 'static,
    ) -> Option<Self> {
        let format = Format::for_matrix(dtype, outputs * inputs)?;
        Some(Self::in_format(format, dtype, (outputs, inputs), rows))
    }

    /// The same in a format that the encoding can have.
    pub(super) fn in_format(
        format: Format,
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: impl EncodedRows + 'static,
    ) -> Self {
        let supers = inputs.div_ceil(SUPER) * format.planes;
        let (rows, packed) = (Box::new(rows), OnceLock::new());
        let (done, packing) = (AtomicUsize::new(0), Mutex::new(()));
        Self { dtype, format, outputs, supers, rows, packed, done, packing }
    }

    /// Packs what is not packed yet.
    pub(crate) fn pack(&self, team: &Team) -> io::Result<()> {
        while !self.is_packed() {
            self.pack_some(team, AT_ONCE)?;
        }
        Ok(())
    }

    /// Packs at least one panel more, up to about so many bytes, and returns how many; from then on kernels read them there.
    pub(crate) fn pack_some(&self, team: &Team, bytes: usize) -> io::Result<usize> {
        let _packing = self.packing.lock().unwrap_or_else(PoisonError::into_inner);
        let (len, all, from) = (self.panel_bytes(), self.panels(), self.done());
        if from == all {
            return Ok(0);
        }
        if self.packed.get().is_none() {
            // It was not set before: only this sets it.
            let _ = self.packed.set(Buffer::in_large_pages(self.bytes())?);
        }
        let Some(buffer) = self.packed.get() else { return Ok(0) };
        let end = all.min(from + (bytes.min(AT_ONCE) / len.max(1)).max(1));
        let base = buffer.ptr() as usize;
        self.rows.lend(&mut |rows| {
            team.each_in_order(end - from, &|_, n| {
                let panel = from + n;
                // SAFETY: the panel lies within the buffer; nobody reads it before it is done, and one thread writes it.
                let out = unsafe { std::slice::from_raw_parts_mut((base + panel * len) as *mut u8, len) };
                self.make(panel, rows, out);
            });
        });
        self.done.store(end, Ordering::Release);
        self.rows.let_go(from * LANES..self.outputs.min(end * LANES));
        Ok((end - from) * len)
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

    fn panel_bytes(&self) -> usize {
        self.supers * self.format.bytes()
    }

    /// What all panels take.
    pub(crate) fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    fn make(&self, panel: usize, rows: &RowBytes<'_>, out: &mut [u8]) {
        let mut encoded: Encoded<'_> = [&[]; LANES];
        for (n, row) in (panel * LANES..self.outputs).zip(&mut encoded) {
            *row = rows(n);
        }
        let level = Level::detect();
        pack(level, self.dtype, self.format, &encoded, level, out);
    }

    /// Hands out what kernels read panels from.
    pub(crate) fn read(&self, mut job: impl FnMut(PanelReader<'_, '_>)) {
        let done = self.done();
        let reader = |rows| PanelReader { panels: self, packed: self.packed.get(), done, rows };
        match done == self.panels() {
            true => job(reader(&|_| &[])),
            false => self.rows.lend(&mut |rows| job(PanelReader { rows, ..reader(&|_| &[]) })),
        }
    }
}

/// A matrix's panels for one multiplication.
#[derive(Clone, Copy)]
pub(crate) struct PanelReader<'a, 'r> {
    pub(crate) panels: &'a QuantPanels,
    packed: Option<&'a Buffer>,
    /// Panels that are packed.
    done: usize,
    /// What the others are made of.
    rows: &'a RowBytes<'r>,
}

impl PanelReader<'_, '_> {
    /// Panel `n`: `supers` superblocks one after the other. `room` is where it is made if it is not packed.
    pub(crate) fn panel<'p>(&'p self, n: usize, room: &'p mut Vec<u8>) -> &'p [u8] {
        let len = self.panels.panel_bytes();
        match self.packed.filter(|_| n < self.done) {
            // SAFETY: the panel lies within the buffer and is not written any more.
            Some(buffer) => unsafe { std::slice::from_raw_parts(buffer.ptr().add(n * len), len) },
            None => {
                room.resize(len, 0);
                self.panels.make(n, self.rows, room);
                room
            }
        }
    }
}

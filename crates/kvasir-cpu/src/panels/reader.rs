//! How kernels read weight panels: packed ones from memory, others packed on the fly into scratch.

use super::{Kind, Panels, Room, RowBytes};
use crate::buffer::Buffer;

/// Identity and address of a panel. Equal values of packed panels are the same panel at any time,
/// so a kernel can recognize a panel that is still unpacked in its scratch.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PanelAt {
    /// Id of the matrix.
    matrix: u64,
    pub(crate) at: *const u8,
}

/// A snapshot of a matrix's panels for one GEMM or GEMV.
pub(crate) struct PanelReader<'a, 'r, K> {
    pub(crate) panels: &'a Panels<K>,
    pub(super) packed: Option<&'a Buffer>,
    /// Length of the packed prefix when the reader was made.
    pub(super) done: usize,
    /// The stored rows behind the other panels.
    pub(super) rows: &'a RowBytes<'r>,
}

impl<K> Clone for PanelReader<'_, '_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for PanelReader<'_, '_, K> {}

impl<'a, K: Kind> PanelReader<'a, '_, K> {
    /// Whether all panels are read packed, as one contiguous stream. Packing after the reader was
    /// made does not count.
    pub(crate) fn is_packed(&self) -> bool {
        self.done == self.panels.panels()
    }

    /// Panel `n` if it exists and is packed.
    pub(crate) fn packed_at(&self, n: usize) -> Option<PanelAt> {
        let buffer = self.packed.filter(|_| n < self.done)?;
        let at = buffer.ptr().wrapping_add(n * self.panels.kind.panel_bytes());
        Some(PanelAt { matrix: self.panels.number, at })
    }

    /// All packed panels from `n` on.
    pub(crate) fn packed_from(&self, n: usize) -> &'a [u8] {
        let Some(first) = self.packed_at(n) else { return &[] };
        let len = (self.done - n) * self.panels.kind.panel_bytes();
        // SAFETY: these panels lie within the buffer and are never written again.
        unsafe { std::slice::from_raw_parts(first.at, len) }
    }

    /// Panel `n` with its identity; see [`panel`](Self::panel).
    pub(crate) fn panel_at(&self, n: usize, room: &mut Room) -> PanelAt {
        PanelAt { matrix: self.panels.number, at: self.panel(n, room).as_ptr() }
    }

    /// Panel `n`. `room` is the scratch for a panel made on the fly; it is freed once panels are
    /// packed.
    pub(crate) fn panel<'p>(&'p self, n: usize, room: &'p mut Room) -> &'p [u8] {
        let len = self.panels.kind.panel_bytes();
        match self.packed_from(n).get(..len) {
            Some(packed) => {
                if !room.is_empty() {
                    *room = Room::new();
                }
                packed
            }
            None => {
                room.grow(len);
                let out = &mut room[..len];
                self.panels.make(n, self.rows, out);
                out
            }
        }
    }
}

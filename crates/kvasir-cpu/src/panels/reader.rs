//! How kernels read a matrix's panels: where they lie packed, or else made one by one.

use super::{Kind, Panels, Room, RowBytes};
use crate::buffer::Buffer;

/// Where a panel lies. Two that are equal and packed are the same, whenever each was met.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PanelAt {
    /// The number of its matrix.
    matrix: u64,
    pub(crate) at: *const u8,
}

/// A matrix's panels for one multiplication.
pub(crate) struct PanelReader<'a, 'r, K> {
    pub(crate) panels: &'a Panels<K>,
    pub(super) packed: Option<&'a Buffer>,
    /// Panels that are packed.
    pub(super) done: usize,
    /// What the others are made of.
    pub(super) rows: &'a RowBytes<'r>,
}

impl<K> Clone for PanelReader<'_, '_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for PanelReader<'_, '_, K> {}

impl<'a, K: Kind> PanelReader<'a, '_, K> {
    /// Whether all panels are read packed, one after the other. What is packed after the reader was made does not count.
    pub(crate) fn is_packed(&self) -> bool {
        self.done == self.panels.panels()
    }

    /// Where panel `n` lies packed, if there is such a panel and it is.
    pub(crate) fn packed_at(&self, n: usize) -> Option<PanelAt> {
        let buffer = self.packed.filter(|_| n < self.done)?;
        let at = buffer.ptr().wrapping_add(n * self.panels.kind.panel_bytes());
        Some(PanelAt { matrix: self.panels.number, at })
    }

    /// All that is packed from panel `n` on.
    pub(crate) fn packed_from(&self, n: usize) -> &'a [u8] {
        let Some(first) = self.packed_at(n) else { return &[] };
        let len = (self.done - n) * self.panels.kind.panel_bytes();
        // SAFETY: these panels lie within the buffer and are not written any more.
        unsafe { std::slice::from_raw_parts(first.at, len) }
    }

    /// Panel `n`, and which it is; otherwise as [`panel`](Self::panel).
    pub(crate) fn panel_at(&self, n: usize, room: &mut Room) -> PanelAt {
        PanelAt { matrix: self.panels.number, at: self.panel(n, room).as_ptr() }
    }

    /// Panel `n`. `room` is where it is made if it is not packed, and else of no more use.
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

use super::kind::{self, KvType};
use crate::Level;
use crate::buffer::Buffer;
use kvasir_kv::{RowMove, Slot};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Slots whose rows of one head follow each other, so that a chunk of a history is read as one stretch per head.
pub(crate) const TOGETHER: usize = 64;

/// Slots of which a layer's rows lie together: what a history reads of a layer is long stretches, whatever else is kept. Pools grow by no less.
pub(super) const GROUP: usize = 8 * TOGETHER;

/// Memory of all rows that have as many slots: of [`GROUP`] slots those of the first layer, those of the second and so on, then those of the next so many
/// slots. A layer's are those of its first strip of heads, then those of the next strip: keys and values of [`TOGETHER`] slots, then of the next so many.
///
/// Address space for the capacity is taken at once, memory when a row is first written. A row never moves but by a plan's moves.
pub(super) struct Field {
    pub(super) slots: usize,
    /// Bytes of a slot in all layers.
    row: usize,
    bytes: Buffer,
}

impl Field {
    /// Room for `slots` slots of `row` bytes.
    pub(super) fn new(slots: usize, row: usize) -> io::Result<Self> {
        let len = slots.checked_next_multiple_of(GROUP).and_then(|slots| slots.checked_mul(row));
        let len = len.ok_or_else(|| io::Error::other("the pool's size overflows"))?;
        Ok(Self { slots, row, bytes: Buffer::new(len)? })
    }

    /// Slots `slots` are about to be used for the first time. The first [`GROUP`] stay in small pages until there are more: large ones for every layer
    /// would be many times what a short history takes, and take time to find.
    pub(super) fn grow(&self, slots: Range<usize>) {
        let at = |slot: usize| slot.min(self.slots).next_multiple_of(GROUP) * self.row;
        if slots.end > GROUP {
            self.bytes.expect(if slots.start > GROUP { at(slots.start) } else { 0 }..at(slots.end));
        }
    }
}

/// Where rows lie in a field, in bytes of a slot.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// What the layers before take.
    pub(super) layers: usize,
    /// Strips that the layer is cut into, one or two.
    pub(super) strips: usize,
    /// What a strip of this layer takes.
    pub(super) strip: usize,
    /// What comes before the rows in their strip.
    pub(super) before: usize,
}

/// How a slot's parts lie, head by head.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    /// Bytes from one to the next.
    each: usize,
    /// The first head of a second strip, and how much farther away its part is, and all behind it.
    second: usize,
    more: usize,
}

impl Heads {
    pub(crate) const NONE: Self = Self { each: 0, second: 0, more: 0 };

    /// Bytes from the first head's part to another's.
    pub(crate) fn offset(self, head: usize) -> usize {
        head * self.each + if head >= self.second { self.more } else { 0 }
    }

    /// Bytes from a head's part to the next one's.
    pub(crate) fn to_next(self, head: usize) -> usize {
        self.offset(head + 1) - self.offset(head)
    }
}

/// Rows of one kind (keys, values or indexer keys) of one layer, a row per slot, in parts: one per head.
pub(crate) struct Rows {
    kind: KvType,
    heads: usize,
    /// Numbers of a head.
    width: usize,
    /// Bytes of a head's part of a row.
    part: usize,
    parts: Heads,
    place: Place,
    field: Arc<Field>,
}

impl Rows {
    pub(super) fn new(kind: KvType, heads: usize, width: usize, place: Place, field: &Arc<Field>) -> Self {
        let part = kind.bytes(width);
        let strip = heads / place.strips;
        debug_assert!(place.strips <= 2 && strip * place.strips == heads);
        debug_assert!(place.before + part * strip <= place.strip);
        debug_assert!(place.layers + place.strips * place.strip <= field.row);
        let each = TOGETHER * part;
        let more = if place.strips > 1 { GROUP * place.strip - strip * each } else { 0 };
        let parts = Heads { each, second: strip, more };
        Self { kind, heads, width, part, parts, place, field: Arc::clone(field) }
    }

    /// One head's part of a stored row.
    pub(crate) fn part(&self, slot: Slot, head: usize) -> *const u8 {
        debug_assert!((slot as usize) < self.field.slots && head < self.heads);
        let Place { layers, strip, before, .. } = self.place;
        let (slot, row) = (slot as usize / TOGETHER * TOGETHER, slot as usize % TOGETHER);
        let group = slot / GROUP * GROUP * self.field.row + layers * GROUP;
        let at = group + slot % GROUP * strip + before * TOGETHER + row * self.part;
        self.field.bytes.ptr().wrapping_add(at + self.parts.offset(head))
    }

    /// Bytes of a part: what lies between the rows of neighbouring slots, unless a multiple of [`TOGETHER`] is between them.
    pub(crate) fn part_bytes(&self) -> usize {
        self.part
    }

    /// How a slot's parts lie.
    pub(crate) fn heads(&self) -> Heads {
        self.parts
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.part * self.heads
    }

    pub(crate) fn kind(&self) -> KvType {
        self.kind
    }

    /// Stores a row of all heads.
    ///
    /// # Safety
    /// The slot must exist, and no other thread may use it meanwhile.
    pub(crate) unsafe fn write(&self, level: Level, slot: Slot, x: &[f32]) {
        debug_assert_eq!(x.len(), self.width * self.heads);
        for (head, x) in x.chunks_exact(self.width.max(1)).enumerate() {
            // SAFETY: the part lies in the buffer; nobody else uses it.
            let part = unsafe { std::slice::from_raw_parts_mut(self.part(slot, head).cast_mut(), self.part) };
            kind::encode(level, self.kind, x, part);
        }
    }

    /// The first `out.len()` numbers of a head.
    ///
    /// # Safety
    /// The slot must exist, and nobody may write it meanwhile.
    pub(crate) unsafe fn read(&self, level: Level, slot: Slot, head: usize, out: &mut [f32]) {
        debug_assert!(out.len() <= self.width);
        // SAFETY: the part lies in the buffer.
        let part = unsafe { std::slice::from_raw_parts(self.part(slot, head), self.part) };
        kind::decode(level, self.kind, part, out);
    }

    /// The same as bf16; `wide` has room for as many numbers.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub(crate) unsafe fn narrow(
        &self,
        level: Level,
        slot: Slot,
        head: usize,
        wide: &mut [f32],
        out: &mut [u16],
    ) {
        debug_assert!(out.len() <= self.width && wide.len() == out.len());
        // SAFETY: the part lies in the buffer.
        let part = unsafe { std::slice::from_raw_parts(self.part(slot, head), self.part) };
        if self.kind == KvType::Bf16 {
            let stored = part.as_chunks::<2>().0;
            return out.iter_mut().zip(stored).for_each(|(o, b)| *o = u16::from_le_bytes(*b));
        }
        kind::narrow(level, self.kind, part, wide, out);
    }

    /// Hands where one head's parts of `n` slots from `slot` on lie, stretch by stretch, to `take`, with the number of bytes.
    pub(crate) fn stretches(&self, slot: Slot, n: u32, head: usize, mut take: impl FnMut(*const u8, usize)) {
        let (mut at, end) = (slot as usize, (slot + n) as usize);
        while at < end {
            let next = (at + TOGETHER - at % TOGETHER).min(end);
            take(self.part(at as Slot, head), (next - at) * self.part);
            at = next;
        }
    }

    /// Copies rows byte for byte; all are read before any is written.
    ///
    /// # Safety
    /// The slots must exist, and nobody else may use them meanwhile.
    pub(super) unsafe fn apply(&self, moves: &[RowMove], kept: &mut Vec<u8>) {
        kept.clear();
        for (m, head) in moves.iter().flat_map(|m| (0..self.heads).map(move |head| (m, head))) {
            // SAFETY: the part lies in the buffer; as the caller vouches.
            kept.extend_from_slice(unsafe { std::slice::from_raw_parts(self.part(m.from, head), self.part) });
        }
        let parts = moves.iter().flat_map(|m| (0..self.heads).map(move |head| (m, head)));
        for ((m, head), bytes) in parts.zip(kept.chunks_exact(self.part.max(1))) {
            // SAFETY: as above; `kept` is memory of its own.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.part(m.to, head).cast_mut(), self.part);
            }
        }
    }
}

//! Memory layout of K and V rows in a pool.
//!
//! From the outermost to the innermost: extent of 512 slots, layer, stripe of KV heads, block of 64
//! slots, K then V, head, slot. So a head's rows of 64 slots are contiguous, and a layer's rows of
//! 512 slots are. Attention streams a chunk's K and V of one layer without jumps.
//!
//! Unsafe code relies on the caller (the executor) for valid slots, and on the plan for not writing
//! a row while it is read.

use crate::isa::features::Isa;
use crate::memory::buffer::Buffer;
use crate::memory::kv_pool::kv_type;
use crate::memory::kv_pool::kv_type::KvType;
use kvasir_kv::{Slot, SlotCopy};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Positions that attention reduces together (a KV chunk); chunks begin at multiples of this,
/// whatever the slots.
pub(crate) const CHUNK: usize = 64;

/// Slots whose rows of one head are contiguous: an aligned KV chunk is one range per head.
pub(crate) const BLOCK_SLOTS: usize = CHUNK;

/// Slots of an extent: their rows of one layer are contiguous, so that attention over a long
/// context reads long ranges. Pools grow by at least this.
pub(crate) const EXTENT_SLOTS: usize = 8 * BLOCK_SLOTS;

/// The memory region of all layers with the same slots: per extent of [`EXTENT_SLOTS`] the rows of
/// the first layer, of the second, and so on. Within a layer come the rows of its first stripe of
/// heads, then those of the second: K and V of [`BLOCK_SLOTS`] slots, then of the next.
///
/// Address space for the capacity is reserved at once; memory is committed when a row is first
/// written. A row moves only by a plan's slot copies.
pub(crate) struct Region {
    pub(crate) slots: usize,
    /// Bytes of a slot in all layers of the region.
    row: usize,
    bytes: Buffer,
}

impl Region {
    /// A region of `slots` slots of `row` bytes.
    pub(crate) fn new(slots: usize, row: usize) -> io::Result<Self> {
        let len = slots.checked_next_multiple_of(EXTENT_SLOTS).and_then(|slots| slots.checked_mul(row));
        let len = len.ok_or_else(|| io::Error::other("the pool's size overflows"))?;
        Ok(Self { slots, row, bytes: Buffer::new(len)? })
    }

    /// Requests huge pages (`madvise`) for slots that are about to be used for the first time. The
    /// first extent stays in small pages until more follow: huge pages for every layer would be
    /// many times what a short context needs, and take time to find.
    pub(crate) fn grow(&self, slots: Range<usize>) {
        let at = |slot: usize| slot.min(self.slots).next_multiple_of(EXTENT_SLOTS) * self.row;
        if slots.end > EXTENT_SLOTS {
            let start = if slots.start > EXTENT_SLOTS { at(slots.start) } else { 0 };
            self.bytes.advise_huge_pages(start..at(slots.end));
        }
    }

    /// Returns the memory of the whole extents among these slots.
    pub(crate) fn release(&self, slots: Range<usize>) {
        let end = if slots.end >= self.slots {
            self.slots.next_multiple_of(EXTENT_SLOTS)
        } else {
            slots.end / EXTENT_SLOTS * EXTENT_SLOTS
        };
        let start = slots.start.next_multiple_of(EXTENT_SLOTS);
        if start < end {
            self.bytes.release(start * self.row..end * self.row);
        }
    }
}

/// Where rows lie in a region, in bytes per slot.
#[derive(Clone, Copy)]
pub(crate) struct Placement {
    /// Bytes of the layers before.
    pub(crate) layers: usize,
    /// Number of stripes of the layer, 1 or 2.
    pub(crate) stripes: usize,
    /// Bytes of one stripe of the layer.
    pub(crate) stripe: usize,
    /// Bytes before these rows in their stripe.
    pub(crate) before: usize,
}

/// Offsets of a slot's heads.
#[derive(Clone, Copy, Default)]
pub(crate) struct Heads {
    /// Bytes from one head to the next within a stripe.
    each: usize,
    /// The first head of the second stripe, and the extra offset of it and those after it.
    second: usize,
    more: usize,
}

impl Heads {
    /// Bytes from head 0 to `head`.
    pub(crate) fn offset(self, head: usize) -> usize {
        head * self.each + if head >= self.second { self.more } else { 0 }
    }

    /// Bytes from `head` to the next one.
    pub(crate) fn to_next(self, head: usize) -> usize {
        self.offset(head + 1) - self.offset(head)
    }
}

/// The K, V or indexer rows of one layer: a row per slot, split by head.
pub(crate) struct Rows {
    kind: KvType,
    heads: usize,
    /// Head dimension.
    width: usize,
    /// Bytes of one head of a row.
    part: usize,
    parts: Heads,
    placement: Placement,
    region: Arc<Region>,
}

impl Rows {
    pub(crate) fn new(
        kind: KvType,
        heads: usize,
        width: usize,
        placement: Placement,
        region: &Arc<Region>,
    ) -> Self {
        let part = kind.bytes(width);
        let stripe = heads / placement.stripes;
        debug_assert!(placement.stripes <= 2 && stripe * placement.stripes == heads);
        debug_assert!(placement.before + part * stripe <= placement.stripe);
        debug_assert!(placement.layers + placement.stripes * placement.stripe <= region.row);
        let each = BLOCK_SLOTS * part;
        let more = if placement.stripes > 1 { EXTENT_SLOTS * placement.stripe - stripe * each } else { 0 };
        let parts = Heads { each, second: stripe, more };
        Self { kind, heads, width, part, parts, placement, region: Arc::clone(region) }
    }

    /// Address of one head of a row.
    pub(crate) fn part(&self, slot: Slot, head: usize) -> *const u8 {
        debug_assert!((slot as usize) < self.region.slots && head < self.heads);
        let Placement { layers, stripe, before, .. } = self.placement;
        let (slot, row) = (slot as usize / BLOCK_SLOTS * BLOCK_SLOTS, slot as usize % BLOCK_SLOTS);
        let extent = slot / EXTENT_SLOTS * EXTENT_SLOTS * self.region.row + layers * EXTENT_SLOTS;
        let at = extent + slot % EXTENT_SLOTS * stripe + before * BLOCK_SLOTS + row * self.part;
        self.region.bytes.ptr().wrapping_add(at + self.parts.offset(head))
    }

    /// Bytes of one head: the stride between neighboring slots within an aligned block of
    /// [`BLOCK_SLOTS`].
    pub(crate) fn part_bytes(&self) -> usize {
        self.part
    }

    /// Offsets of the heads.
    pub(crate) fn heads(&self) -> Heads {
        self.parts
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.part * self.heads
    }

    pub(crate) fn kind(&self) -> KvType {
        self.kind
    }

    /// Encodes and stores a row of all heads.
    ///
    /// # Safety
    /// The slot must exist, and no other thread may access it during the call.
    pub(crate) unsafe fn write(&self, isa: Isa, slot: Slot, x: &[f32]) {
        debug_assert_eq!(x.len(), self.width * self.heads);
        for (head, x) in x.chunks_exact(self.width.max(1)).enumerate() {
            // SAFETY: the part lies in the buffer; the caller excludes other accesses.
            let part = unsafe { std::slice::from_raw_parts_mut(self.part(slot, head).cast_mut(), self.part) };
            kv_type::encode(isa, self.kind, x, part);
        }
    }

    /// Copies the stored row of all heads to the front of `into`; returns the rest of it.
    ///
    /// # Safety
    /// The slot must exist, and no thread may write it during the call.
    pub(crate) unsafe fn copy_out<'a>(&self, slot: Slot, into: &'a mut [u8]) -> &'a mut [u8] {
        let (row, rest) = into.split_at_mut(self.row_bytes());
        for (head, into) in row.chunks_exact_mut(self.part.max(1)).enumerate() {
            // SAFETY: the part lies in the buffer.
            into.copy_from_slice(unsafe { std::slice::from_raw_parts(self.part(slot, head), self.part) });
        }
        rest
    }

    /// Replaces the stored row of all heads by the front of `from`; returns the rest of it.
    ///
    /// # Safety
    /// The slot must exist, and no other thread may access it during the call.
    pub(crate) unsafe fn copy_in<'a>(&self, slot: Slot, from: &'a [u8]) -> &'a [u8] {
        let (row, rest) = from.split_at(self.row_bytes());
        for (head, from) in row.chunks_exact(self.part.max(1)).enumerate() {
            // SAFETY: the part lies in the buffer; the caller excludes other accesses.
            let part = unsafe { std::slice::from_raw_parts_mut(self.part(slot, head).cast_mut(), self.part) };
            part.copy_from_slice(from);
        }
        rest
    }

    /// Dequantizes the first `out.len()` numbers of one head.
    ///
    /// # Safety
    /// The slot must exist, and no thread may write it during the call.
    pub(crate) unsafe fn read(&self, isa: Isa, slot: Slot, head: usize, out: &mut [f32]) {
        debug_assert!(out.len() <= self.width);
        // SAFETY: the part lies in the buffer.
        let part = unsafe { std::slice::from_raw_parts(self.part(slot, head), self.part) };
        kv_type::decode(isa, self.kind, part, out);
    }

    /// Reads one head rounded to bf16; `wide` is scratch of the same length.
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub(crate) unsafe fn read_bf16(
        &self,
        isa: Isa,
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
        kv_type::decode_bf16(isa, self.kind, part, wide, out);
    }

    /// Calls `take(address, bytes)` for each contiguous range of one head's rows of `n` slots from
    /// `slot` on.
    pub(crate) fn contiguous(&self, slot: Slot, n: u32, head: usize, mut take: impl FnMut(*const u8, usize)) {
        let (mut at, end) = (slot as usize, (slot + n) as usize);
        while at < end {
            let next = (at + BLOCK_SLOTS - at % BLOCK_SLOTS).min(end);
            take(self.part(at as Slot, head), (next - at) * self.part);
            at = next;
        }
    }

    /// Copies rows byte for byte; all sources are read before any write.
    ///
    /// # Safety
    /// The slots must exist, and no other thread may access them during the call.
    pub(crate) unsafe fn apply(&self, moves: &[SlotCopy], scratch: &mut Vec<u8>) {
        scratch.clear();
        for (m, head) in moves.iter().flat_map(|m| (0..self.heads).map(move |head| (m, head))) {
            // SAFETY: the part lies in the buffer; as the caller vouches.
            scratch
                .extend_from_slice(unsafe { std::slice::from_raw_parts(self.part(m.from, head), self.part) });
        }
        let parts = moves.iter().flat_map(|m| (0..self.heads).map(move |head| (m, head)));
        for ((m, head), bytes) in parts.zip(scratch.chunks_exact(self.part.max(1))) {
            // SAFETY: as above; `scratch` does not overlap the pool.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.part(m.to, head).cast_mut(), self.part);
            }
        }
    }
}

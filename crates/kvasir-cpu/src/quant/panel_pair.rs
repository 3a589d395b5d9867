//! Driver of the integer GEMM: panel pairs, per-thread scratch memory, and dispatch by ISA level.
//!
//! One or two panels are multiplied by a block of up to `BLOCK` rows, so that each superblock is
//! unpacked once per block. A kernel may unpack the first superblocks of the panels that the thread
//! probably multiplies next. `opened` records for which panels that was done; it is ignored for any
//! other panels or ISA level, so a wrong guess only costs time. `tests.rs` checks that.

use super::activations::QuantActivations;
use super::format::Format;
use super::layouts::Layout;
use super::{amx, gemm};
use crate::Level;
use crate::amx::Tiles;
use crate::matmul::Output;
use crate::panels::PanelAt;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::tile::LANES;
use std::cell::RefCell;
use std::mem::offset_of;
use std::ops::Range;

/// Rows per block: they share one unpacked superblock.
pub(super) const BLOCK: usize = 512;

/// Per-thread scratch memory.
#[repr(C, align(64))]
pub(super) struct Room {
    pub(super) tiles: amx::Room,
    /// Double buffer of unpacked superblocks, a pair each.
    pub(super) vectors: [[gemm::Opened; 2]; 2],
    /// f32 sums of a block's rows, per panel.
    pub(super) sums: [[[f32; LANES]; BLOCK]; 2],
    /// Whether the superblocks unpacked last are in the second buffer.
    pub(super) in_second: bool,
    /// Panels whose first superblocks were unpacked ahead, if any.
    pub(super) opened: [Option<PanelAt>; 2],
    /// ISA level that last used this memory.
    level: Option<Level>,
}

// Kernels load sums as whole cache lines.
const _: () = assert!(offset_of!(Room, sums).is_multiple_of(64));

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        tiles: amx::Room::NONE,
        vectors: [const { [gemm::Opened::NONE; 2] }; 2],
        sums: [[[0.0; LANES]; BLOCK]; 2],
        in_second: false,
        opened: [None; 2],
        level: None,
    }));
}

/// Runs `work` with the thread's scratch memory. On AMX, tiles are configured for its duration.
pub(super) fn with_room(level: Level, work: impl FnOnce(&mut Room)) {
    ROOM.with_borrow_mut(|room| {
        // SAFETY: the level implies that AMX is permitted.
        let _tiles = (level >= Level::Amx).then(|| unsafe { Tiles::configure() });
        if room.level.replace(level) != Some(level) {
            // ISA levels unpack weights differently.
            room.opened = [None; 2];
        }
        work(room);
    });
}

/// One or two panels that are multiplied together, and the probable next ones.
pub(super) struct Pair<const P: usize> {
    /// Panels of the same layout and length.
    pub(super) panels: [PanelAt; P],
    /// The panels that the thread probably multiplies next, packed and of the same layout; kernels
    /// unpack ahead from these.
    pub(super) next: Option<[PanelAt; P]>,
}

impl<const P: usize> Pair<P> {
    /// Address of superblock `block` of panel `p`. Indices from `blocks` on continue in the next
    /// panels.
    #[inline]
    pub(super) fn at(&self, p: usize, block: usize, blocks: usize, bytes: usize) -> *const u8 {
        match self.next {
            Some(next) if block >= blocks => next[p].at.wrapping_add((block - blocks) * bytes),
            _ => self.panels[p].at.wrapping_add(block * bytes),
        }
    }

    /// Whether the first superblocks of these panels were unpacked ahead; clears the record.
    pub(super) fn take_opened(&self, opened: &mut [Option<PanelAt>; 2]) -> bool {
        std::mem::take(opened) == Self::each(&self.panels)
    }

    /// Records that the first superblocks of the next panels were unpacked.
    pub(super) fn leave_opened(&self, opened: &mut [Option<PanelAt>; 2]) {
        if let Some(next) = &self.next {
            *opened = Self::each(next);
        }
    }

    /// The panels as options, absent ones `None`.
    fn each(panels: &[PanelAt; P]) -> [Option<PanelAt>; 2] {
        std::array::from_fn(|p| panels.get(p).copied())
    }
}

/// Whether `rows` rows are multiplied by this GEMM rather than by the GEMV kernels.
pub(super) fn takes(level: Level, format: Format, rows: usize) -> bool {
    let from = match level {
        Level::Amx if format.is_open() => 5,
        Level::AvxVnni if !format.is_open() => 3,
        Level::Avx512Vnni | Level::Avx512Bf16 => 5,
        Level::Amx | Level::AvxVnni | Level::Avx2 => 4,
        _ => return false,
    };
    rows >= from
}

/// `panels x rows` for a block of at most [`BLOCK`] rows that begins with a tile. The sums go to
/// `out`, from the given output on; without `out` they stay in `room.sums`.
///
/// # Safety
/// [`takes`] must hold, and `room` must come from [`with_room`] at this level. The panels must have
/// layout `L`, the rows must exist, and no other thread may write their outputs of the panels
/// concurrently.
pub(super) unsafe fn panels<L: Layout, const P: usize>(
    level: Level,
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut Room,
    out: Option<(&Output, usize)>,
) {
    // SAFETY: upheld by the caller.
    unsafe {
        match level {
            Level::Amx => amx::panels::<L, P>(pair, x, rows, room, out),
            Level::Avx512Vnni => gemm::v512::panels::<L, P>(pair, x, rows, room, out),
            Level::Avx512Bf16 => gemm::v512_bf16::panels::<L, P>(pair, x, rows, room, out),
            Level::AvxVnni => gemm::v256_dots::panels::<L, P>(pair, x, rows, room, out),
            _ => gemm::v256::panels::<L, P>(pair, x, rows, room, out),
        }
    }
}

/// Prefetches parts `parts` of `of` of the lines of superblocks into L2.
#[inline]
pub(super) fn prefetch<L: Layout, const P: usize>(blocks: [*const u8; P], parts: Range<usize>, of: usize) {
    let lines = L::FORMAT.bytes().div_ceil(64);
    for line in parts.start * lines / of..parts.end * lines / of {
        blocks.iter().for_each(|block| prefetch_line(CacheLevel::L2, block.wrapping_add(line * 64)));
    }
}

//! Many rows: two panels at a time, each superblock opened once for a block of rows.

use super::activations::QuantActivations;
use super::format::Format;
use super::layouts::Layout;
use super::{amx, many};
use crate::Level;
use crate::amx::Tiles;
use crate::ask::{Near, ask_line};
use crate::matmul::Output;
use crate::panels::PanelAt;
use crate::tile::LANES;
use std::cell::RefCell;
use std::mem::offset_of;
use std::ops::Range;

/// Rows that pass while a superblock stays open.
pub(super) const BLOCK: usize = 512;

/// What a thread works in.
#[repr(C, align(64))]
pub(super) struct Room {
    pub(super) tiles: amx::Room,
    /// Superblocks that are multiplied, and those behind them.
    pub(super) vectors: [[many::Opened; 2]; 2],
    /// Sums of a block's rows, per panel.
    pub(super) sums: [[[f32; LANES]; BLOCK]; 2],
    /// Whether those that were opened last are the second ones.
    pub(super) in_second: bool,
    /// Panels whose first superblocks those are, if whoever went before opened any: mostly they are the thread's next.
    pub(super) opened: [Option<PanelAt>; 2],
    /// What the room was last ready for.
    level: Option<Level>,
}

// Kernels load them as whole lines.
const _: () = assert!(offset_of!(Room, sums).is_multiple_of(64));

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        tiles: amx::Room::NONE,
        vectors: [const { [many::Opened::NONE; 2] }; 2],
        sums: [[[0.0; LANES]; BLOCK]; 2],
        in_second: false,
        opened: [None; 2],
        level: None,
    }));
}

/// What a thread works in, ready for this level: tiles are configured.
pub(super) fn with_room(level: Level, work: impl FnOnce(&mut Room)) {
    ROOM.with_borrow_mut(|room| {
        // SAFETY: the level says that tiles are permitted.
        let _tiles = (level >= Level::Amx).then(|| unsafe { Tiles::configure() });
        if room.level.replace(level) != Some(level) {
            // Levels open weights in ways of their own.
            room.opened = [None; 2];
        }
        work(room);
    });
}

/// One or two panels that are multiplied together.
pub(super) struct Pair<const P: usize> {
    /// They have one layout and as many inputs.
    pub(super) panels: [PanelAt; P],
    /// Those that are probably multiplied next by the thread, of the same layout and packed: a kernel that opens superblocks ahead opens the first of these.
    pub(super) next: Option<[PanelAt; P]>,
}

impl<const P: usize> Pair<P> {
    /// Where superblock `block` of panel `p` lies, of so many bytes. Behind the last of `blocks` come those of the panels that are multiplied next.
    #[inline]
    pub(super) fn at(&self, p: usize, block: usize, blocks: usize, bytes: usize) -> *const u8 {
        match self.next {
            Some(next) if block >= blocks => next[p].at.wrapping_add((block - blocks) * bytes),
            _ => self.panels[p].at.wrapping_add(block * bytes),
        }
    }

    /// Whether the first superblocks of these are open already.
    pub(super) fn take_opened(&self, opened: &mut [Option<PanelAt>; 2]) -> bool {
        std::mem::take(opened) == Self::each(&self.panels)
    }

    /// Says that those of the next ones are.
    pub(super) fn leave_opened(&self, opened: &mut [Option<PanelAt>; 2]) {
        if let Some(next) = &self.next {
            *opened = Self::each(next);
        }
    }

    fn each(panels: &[PanelAt; P]) -> [Option<PanelAt>; 2] {
        std::array::from_fn(|p| panels.get(p).copied())
    }
}

/// Whether so many rows are multiplied like this, instead of up to four at a time with weights that are opened in registers.
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

/// A pair of panels times a block of at most [`BLOCK`] rows, which begins with a tile. The sums go to `out`, to its outputs from the given one
/// on; without, they stay in the room.
///
/// # Safety
/// The level must be one that [`takes`] rows and that the room is [ready for](with_room), the panels have layout `L`, the rows exist, and nobody else may
/// write their outputs of the panels meanwhile.
pub(super) unsafe fn panels<L: Layout, const P: usize>(
    level: Level,
    pair: &Pair<P>,
    x: &QuantActivations,
    rows: Range<usize>,
    room: &mut Room,
    out: Option<(&Output, usize)>,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        match level {
            Level::Amx => amx::panels::<L, P>(pair, x, rows, room, out),
            Level::Avx512Vnni => many::v512::panels::<L, P>(pair, x, rows, room, out),
            Level::Avx512Bf16 => many::v512_bf16::panels::<L, P>(pair, x, rows, room, out),
            Level::AvxVnni => many::v256_dots::panels::<L, P>(pair, x, rows, room, out),
            _ => many::v256::panels::<L, P>(pair, x, rows, room, out),
        }
    }
}

/// Asks memory for some of the lines of superblocks, cut into `of` parts.
#[inline]
pub(super) fn ask<L: Layout, const P: usize>(blocks: [*const u8; P], parts: Range<usize>, of: usize) {
    let lines = L::FORMAT.bytes().div_ceil(64);
    for line in parts.start * lines / of..parts.end * lines / of {
        blocks.iter().for_each(|block| ask_line(Near::Second, block.wrapping_add(line * 64)));
    }
}

//! Many rows: two panels at a time, each superblock opened once for a block of rows.

use super::activations::QuantActivations;
use super::format::{Format, LANES};
use super::layouts::Layout;
use super::{amx, many};
use crate::Level;
use crate::amx::Tiles;
use crate::ask::{Near, ask_line};
use crate::matmul::Output;
use std::cell::RefCell;
use std::ops::Range;

/// Rows that pass while a superblock stays open.
pub(super) const BLOCK: usize = 512;

/// What a thread works in.
#[repr(C, align(64))]
pub(super) struct Room {
    pub(super) tiles: amx::Room,
    /// Superblocks that are multiplied, and those behind them.
    pub(super) vectors: [[many::Opened; 2]; 2],
    /// Whether those that were opened last are the second ones.
    pub(super) in_second: bool,
    /// Sums of a block's rows, per panel.
    pub(super) sums: [[[f32; LANES]; BLOCK]; 2],
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        tiles: amx::Room::NONE,
        vectors: [const { [many::Opened::NONE; 2] }; 2],
        in_second: false,
        sums: [[[0.0; LANES]; BLOCK]; 2],
    }));
}

/// What a thread works in, ready for this level: tiles are configured.
pub(super) fn with_room(level: Level, work: impl FnOnce(&mut Room)) {
    ROOM.with_borrow_mut(|room| {
        // SAFETY: the level says that tiles are permitted.
        let _tiles = (level >= Level::Amx).then(|| unsafe { Tiles::configure() });
        work(room);
    });
}

/// One or two panels that are multiplied together.
pub(super) struct Pair<const P: usize> {
    /// Where their superblocks lie; they have one layout and as many inputs.
    pub(super) panels: [*const u8; P],
    /// How many panels further those lie that are multiplied next.
    pub(super) step: usize,
    /// Whether those follow in the same room, as many and with the same rows.
    pub(super) more: bool,
    /// Whether the ones before had more: a kernel that opens superblocks ahead has opened the first of these.
    pub(super) is_opened: bool,
}

/// Whether so many rows are multiplied like this, instead of up to eight at a time with weights that are opened in registers. With AVX-512 and no tiles, weights that
/// are stored open are as well multiplied where they lie as long as few such rounds read them from the caches; what must be opened for each round is sooner opened
/// once.
pub(super) fn takes(level: Level, format: Format, rows: usize) -> bool {
    let from = match level {
        Level::Avx512Vnni | Level::Avx512Bf16 if format.is_open() => 33,
        Level::Amx if format.is_open() => 5,
        Level::AvxVnni if !format.is_open() => 3,
        Level::Avx512Vnni | Level::Avx512Bf16 => 5,
        Level::Amx | Level::AvxVnni | Level::Avx2 => 4,
        _ => return false,
    };
    rows >= from
}

/// Whether so many rows of a gate and its partner are: with 512 bits not to store what is gated pays before pairs do for themselves, whatever the format.
pub(super) fn takes_gates(level: Level, format: Format, rows: usize) -> bool {
    takes(level, format, rows) || level >= Level::Avx512Vnni && rows >= 9
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

//! Many rows: two panels at a time, each superblock opened once for a block of rows.

use super::activations::QuantActivations;
use super::few::v512::{open, scales};
use super::format::{Format, LANES};
use super::layouts::Layout;
use super::vectors::v512::bytes;
use super::{amx, many_avx2, many_vnni};
use crate::Level;
use crate::amx::Tiles;
use crate::matmul::Output;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

/// Rows that pass while a superblock stays open.
pub(super) const BLOCK: usize = 512;

/// What a thread works in.
#[repr(C, align(64))]
pub(super) struct Room {
    pub(super) tiles: amx::Room,
    /// Superblocks that are multiplied, and those behind them.
    pub(super) vectors: [[many_vnni::Opened; 2]; 2],
    pub(super) halves: [many_avx2::Opened; 2],
    /// Sums of a block's rows, per panel.
    pub(super) sums: [[[f32; LANES]; BLOCK]; 2],
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        tiles: amx::Room::NONE,
        vectors: [const { [many_vnni::Opened::NONE; 2] }; 2],
        halves: [many_avx2::Opened::NONE; 2],
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
}

/// Whether so many rows are multiplied like this. Without tiles, weights that are stored open are as well multiplied where they lie, eight rows at a time,
/// as long as few such rounds read them from the caches; what must be opened for each round is sooner opened once.
pub(super) fn takes(level: Level, format: Format, rows: usize) -> bool {
    let from = match level {
        Level::Avx512Vnni | Level::Avx512Bf16 if format.is_open() => 33,
        Level::Avx512Vnni | Level::Avx512Bf16 => 4,
        Level::Amx | Level::Avx2 => 9,
        _ => return false,
    };
    rows >= from
}

/// A pair of panels times a block of at most [`BLOCK`] rows, which begins with a tile. The sums go to `out`, to its outputs from the given one
/// on; without, they stay in the room.
///
/// # Safety
/// The level must be one that [`takes`] rows and that the room is [ready for](with_room), the panels have layout `L`, and the rows exist.
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
            Level::Avx512Vnni | Level::Avx512Bf16 => many_vnni::panels::<L, P>(pair, x, rows, room, out),
            _ => many_avx2::panels::<L, P>(pair, x, rows, room, out),
        }
    }
}

/// Asks memory for some of the lines of superblocks, cut into `of` parts.
#[inline]
pub(super) fn ask<L: Layout, const P: usize>(blocks: [*const u8; P], parts: Range<usize>, of: usize) {
    let lines = L::FORMAT.bytes().div_ceil(64);
    for line in parts.start * lines / of..parts.end * lines / of {
        for block in blocks {
            // SAFETY: a hint, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(block.wrapping_add(line * 64).cast()) };
        }
    }
}

/// Inputs `16 i .. 16 i + 16` of a superblock: four lines of signed bytes.
///
/// # Safety
/// The machine must have the instructions, `block` be a superblock of the layout, and `i` below 16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn lines<L: Layout>(block: *const u8, i: usize) -> [__m512i; 4] {
    let f = L::FORMAT;
    let mut lines = [_mm512_setzero_si512(); 4];
    if f.is_open() {
        for (j, line) in lines.iter_mut().enumerate() {
            // SAFETY: one of 64 lines.
            let stored = unsafe { _mm512_loadu_si512(block.add(f.codes_at() + (i * 4 + j) * 64).cast()) };
            *line = _mm512_xor_si512(stored, _mm512_set1_epi8(-128));
        }
        return lines;
    }
    // SAFETY: the caller's superblock.
    let words = unsafe { open::<L>(block, 0, i, scales::<L>(block, 0, i * 16 / f.sub)) };
    for (line, words) in lines.iter_mut().zip(words) {
        *line = bytes(words);
    }
    lines
}

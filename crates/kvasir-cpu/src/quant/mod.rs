//! Quantised weights times rows of activations.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod few;
mod fine;
mod format;
#[cfg(target_arch = "x86_64")]
mod gated;
mod layouts;
#[cfg(target_arch = "x86_64")]
mod many;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod opening;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_bytes;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod panels;
mod portable;
mod product;
mod quantise;
mod source;
#[cfg(test)]
mod tests;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod vectors;

pub(crate) use activations::QuantActivations;
pub(crate) use format::Format;
#[cfg(target_arch = "x86_64")]
pub(crate) use gated::Gated;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Dots, Fours, Pairs};
pub(crate) use panels::QuantPanels;
pub(crate) use product::matmul;

use crate::Level;
use crate::matmul::Output;
use crate::tile::LANES;
use layouts::Layout;
#[cfg(target_arch = "x86_64")]
use product::SHORT;
#[cfg(target_arch = "x86_64")]
use {crate::panels::Room, panels::QuantReader, std::ops::Range};

/// One panel, and the output that it begins with.
struct Panel<'a> {
    bytes: &'a [u8],
    first: usize,
}

/// Defines a function that runs a kernel over `N` rows and stores their sums, which asks for as much as [`few_rows`].
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! some_rows {
    ($name:ident, $kernel:path $(, $D:ident: $bound:path)?) => {
        /// # Safety
        /// As for [`few_rows`]; the level must have the kernel's instructions, and rows `row .. row + N` be in one tile.
        unsafe fn $name<L: layouts::Layout, $($D: $bound,)? const N: usize>(
            w: &Panel<'_>,
            x: &QuantActivations,
            row: usize,
            out: &Output<'_>,
        ) {
            let mut sums = [[0.0; LANES]; N];
            // SAFETY: the level was found on this machine; the panel has the layout that its format names; the caller's rows.
            unsafe { $kernel(w.bytes.as_ptr(), x, row, &mut sums) };
            // SAFETY: the caller's outputs.
            sums.iter().enumerate().for_each(|(n, sums)| unsafe { out.store(row + n, w.first, sums) });
        }
    };
}

/// One panel times all rows, a few at a time.
///
/// # Safety
/// The rows must exist, and nobody else may write the panel's outputs meanwhile.
#[cfg(target_arch = "x86_64")]
unsafe fn few_rows<L: Layout>(level: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    some_rows!(wide, few::v512::dot::<L, N>);
    some_rows!(middle, few::v256::dot::<L, N>);
    some_rows!(middle_dots, few::v256_dots::dot::<L, N>);
    if level < Level::Avx2 {
        // SAFETY: as the caller vouches.
        return unsafe { reference::<L>(w, x, out) };
    }
    let (mut row, rows) = (0, out.rows());
    while row < rows {
        let n = (rows - row).min(4);
        // Half as wide vectors, of which there are half as many.
        let n = if level < Level::Avx512Vnni { n.min(2) } else { n };
        // SAFETY: as the caller vouches.
        unsafe {
            match (level, n) {
                (Level::Avx2, 1) => middle::<L, 1>(w, x, row, out),
                (Level::Avx2, _) => middle::<L, 2>(w, x, row, out),
                (Level::AvxVnni, 1) => middle_dots::<L, 1>(w, x, row, out),
                (Level::AvxVnni, _) => middle_dots::<L, 2>(w, x, row, out),
                (_, 1) => wide::<L, 1>(w, x, row, out),
                (_, 2) => wide::<L, 2>(w, x, row, out),
                (_, 3) => wide::<L, 3>(w, x, row, out),
                _ => wide::<L, 4>(w, x, row, out),
            }
        }
        row += n;
    }
}

/// One panel times all rows, a few at a time.
///
/// # Safety
/// The rows must exist, and nobody else may write the panel's outputs meanwhile.
#[cfg(target_arch = "aarch64")]
unsafe fn few_rows<L: Layout>(level: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    some_rows!(some, neon::dot::<L, D, N>, D: neon::Dots);
    let (mut row, rows) = (0, out.rows());
    while row < rows {
        let n = match rows - row {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        // SAFETY: as the caller vouches.
        unsafe {
            match (level, n) {
                (Level::NeonDotprod, 1) => some::<L, neon::Fours, 1>(w, x, row, out),
                (Level::NeonDotprod, 2) => some::<L, neon::Fours, 2>(w, x, row, out),
                (Level::NeonDotprod, _) => some::<L, neon::Fours, 4>(w, x, row, out),
                (Level::Neon, 1) => some::<L, neon::Pairs, 1>(w, x, row, out),
                (Level::Neon, 2) => some::<L, neon::Pairs, 2>(w, x, row, out),
                (Level::Neon, _) => some::<L, neon::Pairs, 4>(w, x, row, out),
                _ => return reference::<L>(w, x, out),
            }
        }
        row += n;
    }
}

/// One panel times all rows.
///
/// # Safety
/// The rows must exist, and nobody else may write the panel's outputs meanwhile.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn few_rows<L: Layout>(_: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    // SAFETY: as the caller vouches.
    unsafe { reference::<L>(w, x, out) };
}

/// # Safety
/// As for [`few_rows`].
unsafe fn reference<L: Layout>(w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    let mut sums = [0.0; LANES];
    for row in 0..out.rows() {
        // SAFETY: the caller's rows and outputs.
        unsafe {
            portable::dot(L::FORMAT, w.bytes, x, row, &mut sums);
            out.store(row, w.first, &sums);
        }
    }
}

/// Some panels, in pairs as far as there are two, times some rows.
///
/// # Safety
/// The level must be one that [takes](pairs::takes) so many rows, they must exist and begin with a tile, and nobody else may write the panels' outputs of
/// them meanwhile.
#[cfg(target_arch = "x86_64")]
unsafe fn many_rows<L: Layout>(
    level: Level,
    (w, panels): (QuantReader<'_, '_>, Range<usize>),
    x: &QuantActivations,
    rows: Range<usize>,
    [made, next_made]: &mut [Room; 2],
    out: &Output<'_>,
) {
    // With registers for four rows few rows pass while a superblock is read: one panel after the other keeps memory in order.
    let at_once = if level == Level::Avx2 && rows.len() <= SHORT { 1 } else { 2 };
    pairs::with_room(level, |room| {
        for panel in panels.clone().step_by(at_once) {
            let (rows, to) = (rows.clone(), Some((out, panel * LANES)));
            let one = w.panel_at(panel, made);
            // SAFETY: as the caller vouches; the panels have layout `L`.
            unsafe {
                if at_once == 2 && panel + 1 < panels.end {
                    let panels = [one, w.panel_at(panel + 1, next_made)];
                    let next = w.packed_at(panel + 2).zip(w.packed_at(panel + 3));
                    let pair = pairs::Pair { panels, next: next.map(<[_; 2]>::from) };
                    pairs::panels::<L, 2>(level, &pair, x, rows, room, to);
                } else {
                    let next = w.packed_at(panel + 1).map(|next| [next]);
                    pairs::panels::<L, 1>(level, &pairs::Pair { panels: [one], next }, x, rows, room, to);
                }
            }
        }
    });
}

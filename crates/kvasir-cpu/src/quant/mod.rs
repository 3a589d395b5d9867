//! Quantized GEMM and GEMV: block-quantized integer weights times int8 activations.
//!
//! Per superblock `s` of 256 inputs, with int8 weights `v` (unpacked from codes and sub-block
//! scales) and int8 activations `x`:
//!
//! `y[o] += x_scale[s] * (d[s][o] * factor * sum(v * x) - dmin[s][o] * sum(min * -sum_of_x))`
//!
//! Sums within a superblock are exact integers; across superblocks there is one f32 FMA chain per
//! output, in order. Hence every kernel gives the bits of `portable.rs`, and a row's result does
//! not depend on the batch. `tests.rs` compares all formats, ISA levels and row counts.
//!
//! - `format.rs`, `layouts.rs`, `panels.rs`: storage formats and panels of 16 outputs.
//! - `pack.rs`, `source.rs`, `transpose.rs`, `pack_bytes.rs`, `fine.rs`: packing from GGUF and
//!   MXFP4 encodings.
//! - `activations.rs`, `quantize.rs`: quantization of activations to int8.
//! - `opening.rs`, `vectors.rs`: unpacking of weights in registers.
//! - `few.rs`, `neon.rs`: GEMV for up to four rows. `pairs.rs`, `many.rs`, `amx.rs`: GEMM for more
//!   rows.
//! - `product.rs`: dispatch and work items. `gated.rs`: fused gate and up projection.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod fine;
mod format;
#[cfg(target_arch = "x86_64")]
mod gated;
#[cfg(target_arch = "x86_64")]
mod gemm;
#[cfg(target_arch = "x86_64")]
mod gemv;
mod layouts;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_bytes;
#[cfg(target_arch = "x86_64")]
mod panel_pair;
mod panels;
mod portable;
mod product;
mod quantize;
mod source;
#[cfg(test)]
mod tests;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod unpack;
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

/// One packed panel and the index of its first output.
struct Panel<'a> {
    bytes: &'a [u8],
    first: usize,
}

/// Defines a wrapper that runs a GEMV kernel for `N` rows and stores the sums; it has the contract
/// of `few_rows`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! some_rows {
    ($name:ident, $kernel:path $(, $D:ident: $bound:path)?) => {
        /// # Safety
        /// As for `few_rows`; the ISA level must have the kernel's instructions, and rows `row ..
        /// row + N` be in one tile.
        unsafe fn $name<L: layouts::Layout, $($D: $bound,)? const N: usize>(
            w: &Panel<'_>,
            x: &QuantActivations,
            row: usize,
            out: &Output<'_>,
        ) {
            let mut sums = [[0.0; LANES]; N];
            // SAFETY: the level was detected on this machine; the panel has the layout of its
            // format; the caller's rows.
            unsafe { $kernel(w.bytes.as_ptr(), x, row, &mut sums) };
            // SAFETY: the caller's outputs.
            sums.iter().enumerate().for_each(|(n, sums)| unsafe { out.store(row + n, w.first, sums) });
        }
    };
}

/// GEMV: one panel times all rows, up to four at a time.
///
/// # Safety
/// The rows must exist, and no other thread may write the panel's outputs concurrently.
#[cfg(target_arch = "x86_64")]
unsafe fn few_rows<L: Layout>(level: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    some_rows!(wide, gemv::v512::dot::<L, N>);
    some_rows!(middle, gemv::v256::dot::<L, N>);
    some_rows!(middle_dots, gemv::v256_dots::dot::<L, N>);
    if level < Level::Avx2 {
        // SAFETY: upheld by the caller.
        return unsafe { reference::<L>(w, x, out) };
    }
    let (mut row, rows) = (0, out.rows());
    while row < rows {
        let n = (rows - row).min(4);
        // Half as many registers of half the width hold the sums of two rows.
        let n = if level < Level::Avx512Vnni { n.min(2) } else { n };
        // SAFETY: upheld by the caller.
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

/// GEMV: one panel times all rows, up to four at a time.
///
/// # Safety
/// The rows must exist, and no other thread may write the panel's outputs concurrently.
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
        // SAFETY: upheld by the caller.
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

/// GEMV with the portable kernel: one panel times all rows.
///
/// # Safety
/// The rows must exist, and no other thread may write the panel's outputs concurrently.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn few_rows<L: Layout>(_: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    // SAFETY: upheld by the caller.
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

/// GEMM: panels, in pairs where there are two, times a block of rows.
///
/// # Safety
/// `panel_pair::takes` must hold for the level and row count. The rows must exist and begin with a tile.
/// No other thread may write these outputs concurrently.
#[cfg(target_arch = "x86_64")]
unsafe fn many_rows<L: Layout>(
    level: Level,
    (w, panels): (QuantReader<'_, '_>, Range<usize>),
    x: &QuantActivations,
    rows: Range<usize>,
    [made, next_made]: &mut [Room; 2],
    out: &Output<'_>,
) {
    // AVX2 multiplies only four rows at once, so little time passes per superblock with few rows:
    // single panels keep memory reads sequential.
    let at_once = if level == Level::Avx2 && rows.len() <= SHORT { 1 } else { 2 };
    panel_pair::with_room(level, |room| {
        for panel in panels.clone().step_by(at_once) {
            let (rows, to) = (rows.clone(), Some((out, panel * LANES)));
            let one = w.panel_at(panel, made);
            // SAFETY: upheld by the caller; the panels have layout `L`.
            unsafe {
                if at_once == 2 && panel + 1 < panels.end {
                    let panels = [one, w.panel_at(panel + 1, next_made)];
                    let next = w.packed_at(panel + 2).zip(w.packed_at(panel + 3));
                    let pair = panel_pair::Pair { panels, next: next.map(<[_; 2]>::from) };
                    panel_pair::panels::<L, 2>(level, &pair, x, rows, room, to);
                } else {
                    let next = w.packed_at(panel + 1).map(|next| [next]);
                    panel_pair::panels::<L, 1>(
                        level,
                        &panel_pair::Pair { panels: [one], next },
                        x,
                        rows,
                        room,
                        to,
                    );
                }
            }
        }
    });
}

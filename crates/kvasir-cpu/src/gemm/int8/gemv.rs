//! Integer GEMV: one panel times all rows, up to four at a time.

use crate::gemm::int8::activations::QuantActivations;
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::gemv_x86;
#[cfg(target_arch = "aarch64")]
use crate::gemm::int8::neon;
use crate::gemm::int8::portable;
use crate::gemm::output::Output;
use crate::isa::features::Level;
#[cfg(target_arch = "aarch64")]
use crate::isa::neon::{Int8Dot, Sdot, WideningMultiply};
use crate::isa::tile::LANES;
use crate::weights::int8::layouts::Layout;

/// One packed panel and the index of its first output.
pub(crate) struct Panel<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) first: usize,
}

/// Defines a wrapper that runs a GEMV kernel for `N` rows and stores the sums; it has the contract
/// of `gemv`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! some_rows {
    ($name:ident, $kernel:path $(, $D:ident: $bound:path)?) => {
        /// # Safety
        /// As for `gemv`; the ISA level must have the kernel's instructions, and rows `row ..
        /// row + N` be in one tile.
        unsafe fn $name<L: Layout, $($D: $bound,)? const N: usize>(
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
pub(crate) unsafe fn gemv<L: Layout>(level: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    some_rows!(wide, gemv_x86::v512::dot::<L, N>);
    some_rows!(middle, gemv_x86::v256::dot::<L, N>);
    some_rows!(middle_dots, gemv_x86::v256_dots::dot::<L, N>);
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
pub(crate) unsafe fn gemv<L: Layout>(level: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    some_rows!(some, neon::dot::<L, D, N>, D: Int8Dot);
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
                (Level::NeonDotprod, 1) => some::<L, Sdot, 1>(w, x, row, out),
                (Level::NeonDotprod, 2) => some::<L, Sdot, 2>(w, x, row, out),
                (Level::NeonDotprod, _) => some::<L, Sdot, 4>(w, x, row, out),
                (Level::Neon, 1) => some::<L, WideningMultiply, 1>(w, x, row, out),
                (Level::Neon, 2) => some::<L, WideningMultiply, 2>(w, x, row, out),
                (Level::Neon, _) => some::<L, WideningMultiply, 4>(w, x, row, out),
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
pub(crate) unsafe fn gemv<L: Layout>(_: Level, w: &Panel<'_>, x: &QuantActivations, out: &Output<'_>) {
    // SAFETY: upheld by the caller.
    unsafe { reference::<L>(w, x, out) };
}

/// # Safety
/// As for [`gemv`].
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

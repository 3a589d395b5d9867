//! Integer GEMV: one panel times all rows, some at a time.

use crate::gemm::int8::activations::QuantActivations;
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::gemv_x86;
#[cfg(target_arch = "aarch64")]
use crate::gemm::int8::neon;
use crate::gemm::int8::portable;
use crate::gemm::output::Output;
#[cfg(target_arch = "aarch64")]
use crate::isa::neon::{Int8Dot, Sdot, WideningMultiply};
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemv;
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
        /// As for `gemv`; rows `row .. row + N` must be in one tile.
        unsafe fn $name<L: Layout, $($D: $bound,)? const N: usize>(
            w: &Panel<'_>,
            x: &QuantActivations,
            row: usize,
            out: &Output<'_>,
        ) {
            let mut sums = [[0.0; LANES]; N];
            // SAFETY: as the caller vouches; the panel has the layout of its
            // format; the caller's rows.
            unsafe { $kernel(w.bytes.as_ptr(), x, row, &mut sums) };
            // SAFETY: the caller's outputs.
            sums.iter().enumerate().for_each(|(n, sums)| unsafe { out.store(row + n, w.first, sums) });
        }
    };
}

/// GEMV: one panel times all rows, some at a time.
///
/// # Safety
/// The machine must have the kernel's instructions, the rows must exist, and no other thread may
/// write the panel's outputs concurrently.
pub(crate) unsafe fn gemv<L: Layout>(
    kernel: Int8Gemv,
    w: &Panel<'_>,
    x: &QuantActivations,
    out: &Output<'_>,
) {
    #[cfg(target_arch = "x86_64")]
    some_rows!(avx512_vnni, gemv_x86::v512::dot::<L, N>);
    #[cfg(target_arch = "x86_64")]
    some_rows!(avx2, gemv_x86::v256::dot::<L, N>);
    #[cfg(target_arch = "x86_64")]
    some_rows!(avx_vnni, gemv_x86::v256_dots::dot::<L, N>);
    #[cfg(target_arch = "aarch64")]
    some_rows!(neon, neon::dot::<L, D, N>, D: Int8Dot);
    let (mut row, rows) = (0, out.rows());
    while row < rows {
        let n = kernel.rows_at_once(rows - row);
        // SAFETY: upheld by the caller.
        unsafe {
            match (kernel, n) {
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::Avx2, 1) => avx2::<L, 1>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::Avx2, _) => avx2::<L, 2>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::AvxVnni, 1) => avx_vnni::<L, 1>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::AvxVnni, _) => avx_vnni::<L, 2>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::Avx512Vnni, 1) => avx512_vnni::<L, 1>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::Avx512Vnni, 2) => avx512_vnni::<L, 2>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::Avx512Vnni, 3) => avx512_vnni::<L, 3>(w, x, row, out),
                #[cfg(target_arch = "x86_64")]
                (Int8Gemv::Avx512Vnni, _) => avx512_vnni::<L, 4>(w, x, row, out),
                #[cfg(target_arch = "aarch64")]
                (Int8Gemv::NeonDotprod, 1) => neon::<L, Sdot, 1>(w, x, row, out),
                #[cfg(target_arch = "aarch64")]
                (Int8Gemv::NeonDotprod, 2) => neon::<L, Sdot, 2>(w, x, row, out),
                #[cfg(target_arch = "aarch64")]
                (Int8Gemv::NeonDotprod, _) => neon::<L, Sdot, 4>(w, x, row, out),
                #[cfg(target_arch = "aarch64")]
                (Int8Gemv::Neon, 1) => neon::<L, WideningMultiply, 1>(w, x, row, out),
                #[cfg(target_arch = "aarch64")]
                (Int8Gemv::Neon, 2) => neon::<L, WideningMultiply, 2>(w, x, row, out),
                #[cfg(target_arch = "aarch64")]
                (Int8Gemv::Neon, _) => neon::<L, WideningMultiply, 4>(w, x, row, out),
                _ => {
                    let mut sums = [0.0; LANES];
                    (row..row + n).for_each(|row| {
                        portable::dot(L::FORMAT, w.bytes, x, row, &mut sums);
                        out.store(row, w.first, &sums);
                    });
                }
            }
        }
        row += n;
    }
}

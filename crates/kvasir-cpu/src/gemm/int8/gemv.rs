//! Integer GEMV: one panel times all rows, some at a time.

use crate::gemm::int8::activations::QuantActivations;
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::gemv_x86::{v256, v256_dots, v512};
#[cfg(target_arch = "aarch64")]
use crate::gemm::int8::neon;
use crate::gemm::int8::portable;
use crate::gemm::output::Output;
#[cfg(target_arch = "aarch64")]
use crate::isa::neon::{Sdot, WideningMultiply};
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemv;
use crate::weights::int8::layouts::Layout;

/// One packed panel and the index of its first output.
pub(crate) struct Panel<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) first: usize,
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
    let (mut row, rows) = (0, out.rows());
    /// Multiplies `$n` rows of one tile and stores the sums.
    macro_rules! rows {
        ($kernel:path, $n:literal) => {{
            let mut sums = [[0.0; LANES]; $n];
            $kernel(w.bytes.as_ptr(), x, row, &mut sums);
            sums.iter().enumerate().for_each(|(n, sums)| out.store(row + n, w.first, sums));
        }};
    }
    macro_rules! portable {
        () => {{
            let mut sums = [0.0; LANES];
            portable::dot(L::FORMAT, w.bytes, x, row, &mut sums);
            out.store(row, w.first, &sums);
        }};
    }
    while row < rows {
        let n = kernel.rows_at_once(rows - row);
        // SAFETY: upheld by the caller; the panel has layout `L`.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            match (kernel, n) {
                (Int8Gemv::Portable, _) => portable!(),
                (Int8Gemv::Avx2, 1) => rows!(v256::dot::<L, 1>, 1),
                (Int8Gemv::Avx2, _) => rows!(v256::dot::<L, 2>, 2),
                (Int8Gemv::AvxVnni, 1) => rows!(v256_dots::dot::<L, 1>, 1),
                (Int8Gemv::AvxVnni, _) => rows!(v256_dots::dot::<L, 2>, 2),
                (Int8Gemv::Avx512Vnni, 1) => rows!(v512::dot::<L, 1>, 1),
                (Int8Gemv::Avx512Vnni, 2) => rows!(v512::dot::<L, 2>, 2),
                (Int8Gemv::Avx512Vnni, 3) => rows!(v512::dot::<L, 3>, 3),
                (Int8Gemv::Avx512Vnni, _) => rows!(v512::dot::<L, 4>, 4),
                (Int8Gemv::Neon | Int8Gemv::NeonDotprod, _) => unreachable!("an Arm kernel"),
            }
            #[cfg(target_arch = "aarch64")]
            match (kernel, n) {
                (Int8Gemv::Portable, _) => portable!(),
                (Int8Gemv::NeonDotprod, 1) => rows!(neon::dot::<L, Sdot, 1>, 1),
                (Int8Gemv::NeonDotprod, 2) => rows!(neon::dot::<L, Sdot, 2>, 2),
                (Int8Gemv::NeonDotprod, _) => rows!(neon::dot::<L, Sdot, 4>, 4),
                (Int8Gemv::Neon, 1) => rows!(neon::dot::<L, WideningMultiply, 1>, 1),
                (Int8Gemv::Neon, 2) => rows!(neon::dot::<L, WideningMultiply, 2>, 2),
                (Int8Gemv::Neon, _) => rows!(neon::dot::<L, WideningMultiply, 4>, 4),
                (Int8Gemv::Avx2 | Int8Gemv::AvxVnni | Int8Gemv::Avx512Vnni, _) => {
                    unreachable!("an x86 kernel")
                }
            }
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            portable!();
        }
        row += n;
    }
}

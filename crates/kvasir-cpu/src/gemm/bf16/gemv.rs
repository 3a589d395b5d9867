//! bf16 GEMV: one panel times up to four rows at once, in the summation order of AMX.

use crate::gemm::bf16::activations::{Bf16Activations, Bf16Terms};
use crate::gemm::output::Output;
use crate::isa::dispatch::per_isa;
use crate::isa::float16::{bf16_pair, f16_pair};
use crate::isa::tile::LANES;

/// `c += a b` for one weight tile and `N` rows, in the order of AMX. Each `a[n]` is a row of 32
/// numbers, f32 if `WHOLE`, else bf16; `b` is a tile, of f16 if `F16`, else of bf16.
///
/// # Safety
/// `b` must point to a tile of 1024 bytes, each `a[n]` to a row.
#[inline(always)]
pub(crate) unsafe fn dot_step<const N: usize, const WHOLE: bool, const F16: bool>(
    a: [*const u8; N],
    b: *const u8,
    c: &mut [[f32; LANES]; N],
) {
    let (mut even, mut odd) = ([[0f32; LANES]; N], [[0f32; LANES]; N]);
    for i in 0..16 {
        // SAFETY: row `i` of the tile and pair `i` of each row.
        let pairs = unsafe { b.add(i * 64).cast::<[u32; LANES]>().read_unaligned() };
        for n in 0..N {
            // SAFETY: as above.
            let [x0, x1] = unsafe {
                if WHOLE {
                    a[n].cast::<[f32; 2]>().add(i).read_unaligned()
                } else {
                    bf16_pair(a[n].cast::<u32>().add(i).read_unaligned())
                }
            };
            for lane in 0..LANES {
                let [w0, w1] = if F16 { f16_pair(pairs[lane]) } else { bf16_pair(pairs[lane]) };
                even[n][lane] = w0.mul_add(x0, even[n][lane]);
                odd[n][lane] = w1.mul_add(x1, odd[n][lane]);
            }
        }
    }
    for n in 0..N {
        for lane in 0..LANES {
            c[n][lane] += even[n][lane] + odd[n][lane];
        }
    }
}

/// The tiles of a panel and the index of its first output.
#[derive(Clone, Copy)]
pub(crate) struct PanelTiles<'a> {
    pub(crate) bytes: &'a [u8],
    /// Whether they hold f16, else bf16. Activations of f16 weights must be f32.
    pub(crate) is_f16: bool,
    pub(crate) first: usize,
}

/// # Safety
/// As for [`vector_panel`].
#[inline(always)]
unsafe fn vector_panel_body(tiles: PanelTiles<'_>, x: &Bf16Activations, rows: usize, out: &Output<'_>) {
    /// # Safety
    /// As for [`vector_panel`]; rows `row .. row + N` must exist.
    #[inline(always)]
    unsafe fn some<const N: usize>(
        PanelTiles { bytes, is_f16, first }: PanelTiles<'_>,
        x: &Bf16Activations,
        row: usize,
        out: &Output<'_>,
    ) {
        let mut sums = [[0.0; LANES]; N];
        for step in 0..x.steps {
            let tile = &bytes[x.weights_of(step)..][..1024];
            let a = std::array::from_fn(|n| x.row(row + n, step));
            // SAFETY: a tile of the panel; the caller's rows.
            unsafe {
                match x.terms {
                    Bf16Terms::Whole if is_f16 => dot_step::<N, true, true>(a, tile.as_ptr(), &mut sums),
                    Bf16Terms::Whole => dot_step::<N, true, false>(a, tile.as_ptr(), &mut sums),
                    _ => dot_step::<N, false, false>(a, tile.as_ptr(), &mut sums),
                }
            }
        }
        // SAFETY: the caller's outputs.
        sums.iter().enumerate().for_each(|(n, s)| unsafe { out.store(row + n, first, s) });
    }
    let mut row = 0;
    while row < rows {
        let n = (rows - row).min(4);
        // SAFETY: upheld by the caller.
        unsafe {
            match n {
                1 => some::<1>(tiles, x, row, out),
                2 => some::<2>(tiles, x, row, out),
                3 => some::<3>(tiles, x, row, out),
                _ => some::<4>(tiles, x, row, out),
            }
        }
        row += n;
    }
}

per_isa! {
    /// GEMV kernel: one panel times all rows.
    ///
    /// # Safety
    /// The rows must exist, and no other thread may write these outputs concurrently.
    unsafe vector_panel(tiles: PanelTiles<'_>, x: &Bf16Activations, rows: usize, out: &Output<'_>) => vector_panel_body
}

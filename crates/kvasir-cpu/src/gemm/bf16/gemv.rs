//! bf16 GEMV: one panel times up to four rows at once, in the summation order of AMX.

use crate::gemm::bf16::activations::Bf16Activations;
use crate::gemm::output::Output;
use crate::isa::dispatch::per_isa;
use crate::isa::tile::{LANES, TILE};

/// `c += a b` for one weight tile and `N` rows, in the order of AMX. Each `a[n]` is a row of 32
/// bf16, `b` a tile.
///
/// # Safety
/// `b` must point to a tile of 1024 bytes, each `a[n]` to 64 bytes.
#[inline(always)]
pub(crate) unsafe fn dot_step<const N: usize>(a: [*const u8; N], b: *const u8, c: &mut [[f32; LANES]; N]) {
    let (mut even, mut odd) = ([[0f32; LANES]; N], [[0f32; LANES]; N]);
    for i in 0..16 {
        // SAFETY: row `i` of the tile and pair `i` of each row.
        let pairs = unsafe { b.add(i * 64).cast::<[u32; LANES]>().read_unaligned() };
        for n in 0..N {
            // SAFETY: as above.
            let x = unsafe { a[n].add(i * 4).cast::<u32>().read_unaligned() };
            let (x0, x1) = (f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000));
            for lane in 0..LANES {
                even[n][lane] = f32::from_bits(pairs[lane] << 16).mul_add(x0, even[n][lane]);
                odd[n][lane] = f32::from_bits(pairs[lane] & 0xffff_0000).mul_add(x1, odd[n][lane]);
            }
        }
    }
    for n in 0..N {
        for lane in 0..LANES {
            c[n][lane] += even[n][lane] + odd[n][lane];
        }
    }
}

/// # Safety
/// As for [`vector_panel`].
#[inline(always)]
unsafe fn vector_panel_body(tiles: &[u8], x: &Bf16Activations, first: usize, rows: usize, out: &Output<'_>) {
    /// # Safety
    /// As for [`vector_panel`]; rows `row .. row + N` must exist.
    #[inline(always)]
    unsafe fn some<const N: usize>(
        tiles: &[u8],
        x: &Bf16Activations,
        first: usize,
        row: usize,
        out: &Output<'_>,
    ) {
        let mut sums = [[0.0; LANES]; N];
        for step in 0..x.steps {
            let tile = &tiles[x.weights_of(step)..][..1024];
            let a =
                std::array::from_fn(|n| x.tile((row + n) / TILE, step).wrapping_add((row + n) % TILE * 64));
            // SAFETY: a tile of the panel; the caller's rows.
            unsafe { dot_step::<N>(a, tile.as_ptr(), &mut sums) };
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
                1 => some::<1>(tiles, x, first, row, out),
                2 => some::<2>(tiles, x, first, row, out),
                3 => some::<3>(tiles, x, first, row, out),
                _ => some::<4>(tiles, x, first, row, out),
            }
        }
        row += n;
    }
}

per_isa! {
    /// GEMV kernel: one panel times all rows; `first` is the index of the panel's first output.
    ///
    /// # Safety
    /// The rows must exist, and no other thread may write these outputs concurrently.
    unsafe vector_panel(tiles: &[u8], x: &Bf16Activations, first: usize, rows: usize, out: &Output<'_>) => vector_panel_body
}

//! f32 micro-kernel: `sums[n][lane] += sum over i of rows[n][i] * columns[i][lane]`, 16 lanes.
//!
//! Every sum is one chain of fused multiply-adds in input order on every instruction set; the test
//! compares all instruction sets with a scalar chain. Used by the f32 GEMM and by attention in f32.

use crate::isa::dispatch::per_isa;
use crate::isa::tile::LANES;

/// A strided view of rows: number `i` of row `n` is at `first + n * row + i * number`. Strides are
/// in f32.
#[derive(Clone, Copy)]
pub(crate) struct StridedRows {
    pub(crate) first: *const f32,
    pub(crate) row: usize,
    pub(crate) number: usize,
}

impl StridedRows {
    /// The view without its first `n` rows.
    fn skip(self, n: usize) -> Self {
        Self { first: self.first.wrapping_add(n * self.row), ..self }
    }
}

/// Rows per register block: 4 x 16 f32 accumulators fit 16 256-bit registers together with the
/// operands.
const FEW: usize = 4;

/// # Safety
/// As for [`add_products`].
#[inline(always)]
unsafe fn add_body(rows: StridedRows, columns: &[[f32; LANES]], sums: &mut [[f32; LANES]]) {
    /// # Safety
    /// As for [`add_products`], of `N` rows.
    #[inline(always)]
    unsafe fn some<const N: usize>(
        rows: StridedRows,
        columns: &[[f32; LANES]],
        sums: &mut [[f32; LANES]; N],
    ) {
        let mut all = *sums;
        for (i, column) in columns.iter().enumerate() {
            for (n, sums) in all.iter_mut().enumerate() {
                // SAFETY: a number of the caller's rows.
                let x = unsafe { *rows.first.add(n * rows.row + i * rows.number) };
                for lane in 0..LANES {
                    sums[lane] = column[lane].mul_add(x, sums[lane]);
                }
            }
        }
        *sums = all;
    }
    let whole = sums.len() / FEW * FEW;
    let (fours, rest) = sums.as_chunks_mut::<FEW>();
    for (n, sums) in fours.iter_mut().enumerate() {
        // SAFETY: the caller's rows.
        unsafe { some(rows.skip(n * FEW), columns, sums) };
    }
    for (n, sums) in rest.as_chunks_mut::<1>().0.iter_mut().enumerate() {
        // SAFETY: as above.
        unsafe { some(rows.skip(whole + n), columns, sums) };
    }
}

per_isa! {
    /// `sums[n][lane] += sum over i of rows(n)[i] * columns[i][lane]`.
    ///
    /// # Safety
    /// `rows` must have a row for each of `sums`, with a number for each of `columns`.
    unsafe add_products(rows: StridedRows, columns: &[[f32; LANES]], sums: &mut [[f32; LANES]]) => add_body, avx512: v512::add
}

#[cfg(target_arch = "x86_64")]
mod v512 {
    use crate::gemm::f32::fma::StridedRows;
    use crate::isa::tile::LANES;
    use std::arch::x86_64::*;

    /// Rows per register block: enough independent chains to hide the FMA latency, and enough uses
    /// of each loaded column.
    const MANY: usize = 16;
    const FEW: usize = 4;

    /// # Safety
    /// As for [`super::add_products`], and the CPU must support the target features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) unsafe fn add(rows: StridedRows, columns: &[[f32; LANES]], sums: &mut [[f32; LANES]]) {
        let mut n = 0;
        // SAFETY: the caller's rows.
        unsafe {
            while let Some(sums) = sums[n..].first_chunk_mut::<MANY>() {
                some(rows.skip(n), columns, sums);
                n += MANY;
            }
            while let Some(sums) = sums[n..].first_chunk_mut::<FEW>() {
                some(rows.skip(n), columns, sums);
                n += FEW;
            }
            while let Some(sums) = sums[n..].first_chunk_mut::<1>() {
                some(rows.skip(n), columns, sums);
                n += 1;
            }
        }
    }

    /// # Safety
    /// As for [`add`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn some<const N: usize>(
        rows: StridedRows,
        columns: &[[f32; LANES]],
        sums: &mut [[f32; LANES]; N],
    ) {
        let mut all = [_mm512_setzero_ps(); N];
        for (all, sums) in all.iter_mut().zip(&*sums) {
            // SAFETY: 16 floats.
            *all = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
        }
        let mut at = rows.first;
        for column in columns {
            // SAFETY: 16 floats, and a number of each of the caller's rows. Four rows share a base
            // register: that is what addressing modes can express.
            unsafe {
                let column = _mm512_loadu_ps(column.as_ptr());
                for (four, all) in all.chunks_mut(FEW).enumerate() {
                    let base = at.add(four * FEW * rows.row);
                    for (n, all) in all.iter_mut().enumerate() {
                        *all = _mm512_fmadd_ps(column, _mm512_set1_ps(*base.add(n * rows.row)), *all);
                    }
                }
            }
            at = at.wrapping_add(rows.number);
        }
        for (all, sums) in all.iter().zip(sums) {
            // SAFETY: 16 floats.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *all) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;

    #[test]
    fn sums_are_fma_chains_in_input_order() {
        let value = |i: usize| ((i as u32).wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let (rows, numbers) = (23, 37);
        let x: Vec<f32> = (0..rows * numbers).map(value).collect();
        let columns: Vec<[f32; LANES]> =
            (0..numbers).map(|i| std::array::from_fn(|lane| value(i * LANES + lane + 5_000))).collect();
        let began: Vec<[f32; LANES]> =
            (0..rows).map(|n| std::array::from_fn(|lane| value(n + lane + 90_000))).collect();
        // Row-major and column-major.
        for (row, number) in [(numbers, 1), (1, rows)] {
            for some in 0..=rows {
                let mut want = began.clone();
                for (n, sums) in want.iter_mut().enumerate().take(some) {
                    for (i, column) in columns.iter().enumerate() {
                        for (sum, c) in sums.iter_mut().zip(column) {
                            *sum = c.mul_add(x[n * row + i * number], *sum);
                        }
                    }
                }
                for isa in isas() {
                    let mut sums = began.clone();
                    let rows = StridedRows { first: x.as_ptr(), row, number };
                    // SAFETY: as many rows and numbers as `x` has at most.
                    unsafe { add_products(isa, rows, &columns, &mut sums[..some]) };
                    assert_eq!(sums, want, "{isa}, {some} rows");
                }
            }
        }
    }
}

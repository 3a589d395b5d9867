//! bf16 GEMM micro-kernel widened to f32, with explicit 512-bit FMA.
//!
//! Same arithmetic as `micro_kernel::multiply_body`. It is written by hand because the compiler
//! vectorizes the plain loop with gathers across lanes.

use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::tile::{LANES, TILE};
use std::arch::x86_64::*;

/// `OperandB::load`: widens bf16 pairs to f32.
///
/// # Safety
/// As there, and the CPU must support the target features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn load_b(columns: &mut OperandB, tile: *const u8) {
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let [even, odd] = &mut columns.0;
    for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
        // SAFETY: a row of the caller's tile; two rows of `columns`.
        unsafe {
            let pairs = _mm512_loadu_si512(tile.wrapping_add(i * 64).cast());
            _mm512_storeu_si512(even.as_mut_ptr().cast(), _mm512_slli_epi32::<16>(pairs));
            _mm512_storeu_si512(odd.as_mut_ptr().cast(), _mm512_and_si512(pairs, high));
        }
    }
}

/// The even (`odd == 0`) or odd FMA chain of 16 rows x 16 columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn chains(rows: &OperandA, columns: &[[f32; LANES]; TILE], odd: usize) -> [__m512; TILE] {
    let mut sums = [_mm512_setzero_ps(); TILE];
    for (i, column) in columns.iter().enumerate() {
        // SAFETY: 16 floats.
        let w = unsafe { _mm512_loadu_ps(column.as_ptr()) };
        for n in 0..TILE {
            sums[n] = _mm512_fmadd_ps(w, _mm512_set1_ps(rows.0[n][2 * i + odd]), sums[n]);
        }
    }
    sums
}

/// `micro_kernel::multiply`, with all 16 rows in one register block.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn multiply(rows: &OperandA, columns: &OperandB, sums: &mut [[f32; LANES]]) {
    let even = chains(rows, &columns.0[0], 0);
    let odd = chains(rows, &columns.0[1], 1);
    for (sums, (even, odd)) in sums.iter_mut().zip(even.into_iter().zip(odd)) {
        // SAFETY: 16 floats.
        unsafe {
            let sum = _mm512_loadu_ps(sums.as_ptr());
            let sum = _mm512_add_ps(sum, _mm512_add_ps(even, odd));
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}

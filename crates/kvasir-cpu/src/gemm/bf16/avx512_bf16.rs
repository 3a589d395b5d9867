//! bf16 GEMM micro-kernel with AVX-512 BF16 dot products (`vdpbf16ps`), without widening to f32.
//!
//! `vdpbf16ps` adds the product of the upper halves, rounds, adds the product of the lower halves,
//! and rounds again. One 32-bit word therefore carries two consecutive inputs of one chain, the
//! earlier one in the upper half. `load_a` and `load_b` regroup neighboring pairs `(x0 x1)
//! (x2 x3)` into an even word `(x0 x2)` and an odd word `(x1 x3)`. The results have the bits of
//! `micro_kernel::multiply` at all other instruction sets.

use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::tile::{LANES, TILE};
use crate::isa::vectors::v512::{add_pairs, shuffle_bytes};
use std::arch::x86_64::*;

/// 32-bit words (two inputs each) per chain and step.
const WORDS: usize = 8;

/// Splits two consecutive vectors of input pairs into a vector of even inputs and one of odd
/// inputs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn apart(first: __m512i, second: __m512i) -> [__m512i; 2] {
    const UPPER: __mmask32 = 0xaaaa_aaaa;
    [
        _mm512_mask_mov_epi16(second, UPPER, _mm512_slli_epi32::<16>(first)),
        _mm512_mask_mov_epi16(_mm512_srli_epi32::<16>(second), UPPER, first),
    ]
}

/// Regroups each four consecutive inputs of a row: the two even ones, then the two odd ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn row_apart(row: __m512i) -> __m512i {
    let fours = _mm512_set1_epi64(0x0302_0706_0100_0504);
    let order = _mm512_or_si512(fours, _mm512_set4_epi32(0x0808_0808, 0x0808_0808, 0, 0));
    shuffle_bytes(row, order)
}

/// `OperandA::load`: alternating words of even and odd inputs, one cache line per row.
///
/// # Safety
/// As there, and the CPU must support the target features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(crate) unsafe fn load_a(rows: &mut OperandA, base: *const u8, stride: usize) {
    for n in 0..TILE {
        // SAFETY: the caller's rows; each destination row has two cache lines, of which one is
        // used.
        unsafe {
            let row = _mm512_loadu_si512(base.wrapping_add(n * stride).cast());
            _mm512_store_si512(rows.0.as_mut_ptr().cast::<__m512i>().add(n), row_apart(row));
        }
    }
}

/// `OperandB::load`: the words of the even chain, then those of the odd chain.
///
/// # Safety
/// As there, and the CPU must support the target features.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn load_b(columns: &mut OperandB, tile: *const u8) {
    for word in 0..WORDS {
        // SAFETY: two rows of the caller's tile; two rows of `columns`.
        unsafe {
            let pairs = |row: usize| _mm512_loadu_si512(tile.wrapping_add(row * 64).cast());
            let [even, odd] = apart(pairs(2 * word), pairs(2 * word + 1));
            let to = columns.0.as_mut_ptr().cast::<__m512i>();
            _mm512_store_si512(to.add(word), even);
            _mm512_store_si512(to.add(WORDS + word), odd);
        }
    }
}

/// Rows per register block: with two chains each, eight rows hide the latency of the dot product.
const AT_ONCE: usize = 8;

/// `micro_kernel::multiply`. `rows` and `columns` must have been converted by this file.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) fn multiply(rows: &OperandA, columns: &OperandB, sums: &mut [[f32; LANES]]) {
    let (rows, columns) = (rows.0.as_ptr().cast::<i32>(), columns.0.as_ptr().cast::<__m512i>());
    for (part, sums) in sums.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate() {
        let mut chains = [[_mm512_setzero_ps(); 2]; AT_ONCE];
        for word in 0..WORDS {
            // SAFETY: within the rows and columns that `load_a` and `load_b` have written.
            unsafe {
                let w = [0, 1].map(|odd| _mm512_load_si512(columns.add(odd * WORDS + word)));
                for (n, chains) in chains.iter_mut().enumerate() {
                    let row = rows.add((part * AT_ONCE + n) * LANES + 2 * word);
                    for odd in 0..2 {
                        chains[odd] = add_pairs(chains[odd], w[odd], _mm512_set1_epi32(*row.add(odd)));
                    }
                }
            }
        }
        for (sums, [even, odd]) in sums.iter_mut().zip(chains) {
            // SAFETY: 16 floats.
            unsafe {
                let sum = _mm512_loadu_ps(sums.as_ptr());
                _mm512_storeu_ps(sums.as_mut_ptr(), _mm512_add_ps(sum, _mm512_add_ps(even, odd)));
            }
        }
    }
}

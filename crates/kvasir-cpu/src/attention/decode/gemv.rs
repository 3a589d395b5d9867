//! The decode kernels in f32, by SIMD width and number of query rows.

use crate::attention::decode::{LINE, ValueRows, VisibleKeys, widened};
use crate::attention::softmax::state::{PackedWeights, ScoreRows, Scores};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::kernels::GEMV_ROWS;
use std::ops::Range;

/// Runs `$body` with `$v` as the [`widened`] kernels of the SIMD width.
macro_rules! in_vectors {
    ($isa:expr, $v:ident => $body:expr) => {
        if $isa.has_avx512() {
            use crate::attention::decode::widened::v512 as $v;
            $body
        } else {
            use crate::attention::decode::widened::v256 as $v;
            $body
        }
    };
}

/// S = Q K^T of one KV head and its query rows. `queries` has their numbers per step of 32.
///
/// # Safety
/// The machine must have the instruction set, and `keys` must be 64 rows of as many steps as
/// `queries`.
pub(crate) unsafe fn scores(
    isa: Isa,
    keys: VisibleKeys<'_>,
    queries: &[OperandB],
    rows: Range<usize>,
    out: &mut ScoreRows,
) {
    assert!(rows.end <= LANES);
    for first in rows.clone().step_by(GEMV_ROWS) {
        // SAFETY: as the caller vouches.
        unsafe {
            in_vectors!(isa, v => match rows.end - first {
                1 => v::positions::<1>(keys, queries, first, out),
                2 => v::positions::<2>(keys, queries, first, out),
                3 => v::positions::<3>(keys, queries, first, out),
                _ => v::positions::<GEMV_ROWS>(keys, queries, first, out),
            });
        }
    }
}

/// Widens attention weights to f32.
///
/// # Safety
/// The instruction set must have AVX2.
pub(crate) unsafe fn widen_weights(isa: Isa, packed: &PackedWeights, weights: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(isa, v => v::widen_weights(packed, weights)) };
}

/// O += P V for some query rows of one head, over an even number of positions. `sums` is in the
/// column order of [`packed_values`](crate::attention::packed_values).
///
/// # Safety
/// The machine must have the instruction set, and the width of the V rows must be a multiple
/// of [`LINE`].
pub(crate) unsafe fn accumulate(
    isa: Isa,
    p: &Scores,
    rows: Range<usize>,
    v: ValueRows<'_>,
    sums: &mut [f32],
) {
    let width = v.width;
    assert!(rows.end <= LANES && sums.len() == rows.len() * width && width.is_multiple_of(LINE));
    let weights = p.as_ptr().cast::<f32>().wrapping_add(rows.start);
    for (n, sums) in sums.chunks_mut(GEMV_ROWS * width).enumerate() {
        let weights = weights.wrapping_add(n * GEMV_ROWS);
        // Register blocking: as much of a row at once as there are registers for.
        macro_rules! steps {
            ($vectors:ident, $rows:expr, $vectors_of_row:expr) => {
                widened::$vectors::steps::<{ $rows }, { $vectors_of_row }>(weights, v, sums)
            };
        }
        // SAFETY: as the caller vouches.
        unsafe {
            match (isa.has_avx512(), sums.len() / width, width / LINE) {
                (false, 1, lines) if lines.is_multiple_of(2) => steps!(v256, 1, 4),
                (false, 1, _) => steps!(v256, 1, 2),
                (false, 2, _) => steps!(v256, 2, 2),
                (false, 3, _) => steps!(v256, 3, 1),
                (false, ..) => steps!(v256, GEMV_ROWS, 1),
                (true, 1, lines) if lines.is_multiple_of(4) => steps!(v512, 1, 4),
                (true, 1, lines) if lines.is_multiple_of(2) => steps!(v512, 1, 2),
                (true, 2, lines) if lines.is_multiple_of(2) => steps!(v512, 2, 2),
                (true, 1, _) => steps!(v512, 1, 1),
                (true, 2, _) => steps!(v512, 2, 1),
                (true, 3, _) => steps!(v512, 3, 1),
                (true, ..) => steps!(v512, GEMV_ROWS, 1),
            }
        }
    }
}

/// Transposes scores from a row per query row to a row per position.
///
/// # Safety
/// The instruction set must have AVX2.
pub(crate) unsafe fn transpose_scores(isa: Isa, rows: &ScoreRows, scores: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(isa, v => v::transpose_scores(rows, scores)) };
}

//! The decode kernels in f32, by SIMD width and number of query rows.

use crate::attention::decode::{HeadRows, LINE, ValueRows, VisibleKeys, widened};
use crate::attention::gemm::operands::GEMV_ROWS;
use crate::attention::softmax::state::{PackedWeights, ScoreRows, Scores};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::prefetch::next_head::NextHead;

/// Runs `$body` with `$v` as the [`widened`] kernels of the level's SIMD width.
macro_rules! in_vectors {
    ($level:expr, $v:ident => $body:expr) => {
        match $level {
            Level::Avx2 | Level::AvxVnni => {
                use crate::attention::decode::widened::v256 as $v;
                $body
            }
            _ => {
                use crate::attention::decode::widened::v512 as $v;
                $body
            }
        }
    };
}

/// S = Q K^T of one KV head and its query rows. `queries` has their numbers per step of 32.
///
/// # Safety
/// The machine must have the level's instructions, and `keys` must be 64 rows of as many steps as
/// `queries`.
pub(crate) unsafe fn scores(
    level: Level,
    keys: VisibleKeys<'_>,
    next_head: &NextHead,
    queries: &[OperandB],
    rows: HeadRows,
    out: &mut ScoreRows,
) {
    assert!(rows.end() <= LANES);
    for first in (rows.first..rows.end()).step_by(GEMV_ROWS) {
        // SAFETY: as the caller vouches.
        unsafe {
            in_vectors!(level, v => match rows.end() - first {
                1 => v::positions::<1>(keys, next_head, queries, first, out),
                2 => v::positions::<2>(keys, next_head, queries, first, out),
                3 => v::positions::<3>(keys, next_head, queries, first, out),
                _ => v::positions::<GEMV_ROWS>(keys, next_head, queries, first, out),
            });
        }
    }
}

/// Widens attention weights to f32.
///
/// # Safety
/// The level must be at least [`Level::Avx2`], and the machine must have its instructions.
pub(crate) unsafe fn widen_weights(level: Level, packed: &PackedWeights, weights: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(level, v => v::widen_weights(packed, weights)) };
}

/// O += P V for some query rows of one head, over an even number of positions with `width` numbers
/// each. `sums` is in the column order of [`pack_v`](crate::attention::pack_v). Prefetches
/// `next_head`.
///
/// # Safety
/// The machine must have the level's instructions, and each of the V rows must point at `width`
/// numbers, a multiple of [`LINE`].
pub(crate) unsafe fn accumulate(
    level: Level,
    weights: &Scores,
    rows: HeadRows,
    values: ValueRows<'_>,
    next_head: &NextHead,
    width: usize,
    sums: &mut [f32],
) {
    assert!(rows.end() <= LANES && sums.len() == rows.count * width && width.is_multiple_of(LINE));
    let weights = weights.as_ptr().cast::<f32>().wrapping_add(rows.first);
    for (n, sums) in sums.chunks_mut(GEMV_ROWS * width).enumerate() {
        let weights = weights.wrapping_add(n * GEMV_ROWS);
        // Register blocking: as much of a row at once as there are registers for.
        macro_rules! steps {
            ($vectors:ident, $rows:expr, $vectors_of_row:expr) => {
                widened::$vectors::steps::<{ $rows }, { $vectors_of_row }>(
                    weights, values, next_head, width, sums,
                )
            };
        }
        // SAFETY: as the caller vouches.
        unsafe {
            match (level, sums.len() / width, width / LINE) {
                (Level::Avx2 | Level::AvxVnni, 1, lines) if lines.is_multiple_of(2) => steps!(v256, 1, 4),
                (Level::Avx2 | Level::AvxVnni, 1, _) => steps!(v256, 1, 2),
                (Level::Avx2 | Level::AvxVnni, 2, _) => steps!(v256, 2, 2),
                (Level::Avx2 | Level::AvxVnni, 3, _) => steps!(v256, 3, 1),
                (Level::Avx2 | Level::AvxVnni, ..) => steps!(v256, GEMV_ROWS, 1),
                (_, 1, lines) if lines.is_multiple_of(4) => steps!(v512, 1, 4),
                (_, 1, lines) if lines.is_multiple_of(2) => steps!(v512, 1, 2),
                (_, 2, lines) if lines.is_multiple_of(2) => steps!(v512, 2, 2),
                (_, 1, _) => steps!(v512, 1, 1),
                (_, 2, _) => steps!(v512, 2, 1),
                (_, 3, _) => steps!(v512, 3, 1),
                _ => steps!(v512, GEMV_ROWS, 1),
            }
        }
    }
}

/// Transposes scores from a row per query row to a row per position.
///
/// # Safety
/// The level must be at least [`Level::Avx2`], and the machine must have its instructions.
pub(crate) unsafe fn transpose_scores(level: Level, rows: &ScoreRows, scores: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe { in_vectors!(level, v => v::transpose_scores(rows, scores)) };
}

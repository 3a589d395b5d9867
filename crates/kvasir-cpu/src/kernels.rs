//! Which kernel runs for which format, instruction set and number of rows.
//!
//! | operand | instruction set | few rows | from this many rows |
//! |---|---|---|---|
//! | block-quantized | AMX | bf16 tiles of dequantized panels | the same |
//! | block-quantized | others: [`QuantKernel`] | `gemm::quant::gemv` | 5: `gemm::quant::gemm` |
//! | bf16 | AMX | tiles | tiles |
//! | bf16 | AVX-512 BF16, others | GEMV | 5, 9: [`Bf16Matmul::Vectors`] |
//! | f32 | all | `gemm::f32` | `gemm::f32` |
//! | recurrent states: [`RecurrentKernel`] | AVX-512, AVX2, others | `recurrent` | the same |
//! | attention | AVX2 and wider | `attention::decode` | above [`max_decode_rows`]: [`AttentionGemm`] |
//!
//! Kernel files hold no such choice. Versions of one function for wider vectors are another matter:
//! `isa::dispatch` picks them.

use crate::isa::features::{Isa, VectorWidth};
use crate::prefetch::kv_prefetch::BUDGET;
use std::ops::RangeInclusive;

/// Kernels of block-quantized weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantKernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl QuantKernel {
    #[inline]
    pub(crate) fn of(isa: Isa) -> Self {
        match (isa.vectors, isa.int_dot) {
            (VectorWidth::Baseline | VectorWidth::Bits128, _) => Self::Portable,
            #[cfg(target_arch = "x86_64")]
            (VectorWidth::Bits256 | VectorWidth::Bits512, false) => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            (VectorWidth::Bits256, true) => Self::AvxVnni,
            #[cfg(target_arch = "x86_64")]
            (VectorWidth::Bits512, true) => Self::Avx512Vnni,
            #[cfg(not(target_arch = "x86_64"))]
            (VectorWidth::Bits256 | VectorWidth::Bits512, _) => Self::Portable,
        }
    }
}

/// Row count up to which block-quantized matrices use GEMV.
pub(crate) const MAX_GEMV_ROWS: usize = 4;

/// Kernels of bf16 matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bf16Matmul {
    Gemv,
    Vectors,
    Tiles,
}

impl Bf16Matmul {
    #[inline]
    pub(crate) fn of(isa: Isa, rows: usize) -> Self {
        // With bf16 dot products, half a row tile is enough.
        let from = if isa.bf16_dot { 5 } else { 9 };
        if isa.tiles {
            Self::Tiles
        } else if rows >= from {
            Self::Vectors
        } else {
            Self::Gemv
        }
    }
}

/// Kernels of one bf16 step of 16 x 32 x 16 without tiles. All have the bits of AMX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bf16MicroKernel {
    /// f32, as the compiler vectorizes it.
    Widened,
    /// f32 in AVX-512.
    Avx512,
    /// bf16 pair dot products.
    Avx512Bf16,
}

impl Bf16MicroKernel {
    #[inline]
    pub(crate) fn of(isa: Isa) -> Self {
        if isa.bf16_dot {
            Self::Avx512Bf16
        } else if isa.has_avx512() {
            Self::Avx512
        } else {
            Self::Widened
        }
    }
}

/// Kernels of recurrent state matrices, each for blocks of one width. All give bit-identical
/// results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentKernel {
    /// One column.
    Scalar,
    /// Arrays, which the compiler vectorizes for the target: the reference on x86, and NEON on Arm.
    Arrays,
    /// Two vectors per row.
    ArrayPairs,
    /// One column, in fused multiply-add instructions.
    #[cfg(target_arch = "x86_64")]
    FusedScalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Two vectors per row.
    #[cfg(target_arch = "x86_64")]
    Avx512Pairs,
}

impl RecurrentKernel {
    /// The kernel of the widest block that fits into `columns` columns.
    pub(crate) fn widest(isa: Isa, columns: usize) -> Self {
        let mut kernels = Self::of(isa).iter().copied();
        kernels.find(|kernel| kernel.columns() <= columns).unwrap_or(Self::Scalar)
    }

    /// The kernels of an instruction set, the widest first.
    #[inline]
    fn of(isa: Isa) -> &'static [Self] {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() {
            return &[Self::Avx512Pairs, Self::Avx512, Self::FusedScalar];
        } else if isa.has_avx2() {
            return &[Self::Avx2, Self::FusedScalar];
        }
        let _ = isa;
        &[Self::ArrayPairs, Self::Arrays, Self::Scalar]
    }

    /// Columns of a block.
    pub(crate) fn columns(self) -> usize {
        match self {
            Self::Scalar => 1,
            Self::Arrays => 4,
            Self::ArrayPairs => 8,
            #[cfg(target_arch = "x86_64")]
            Self::FusedScalar => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Pairs => 32,
        }
    }
}

/// How attention multiplies blocks of query rows; an implementation of `AttentionKernel` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionGemm {
    /// AMX tiles.
    Tiles,
    /// bf16 pair dot products in an order of their own: nothing is widened or transposed.
    Bf16Dot,
    /// f32 in the order of summation of AMX: bf16 operands are widened first.
    Widened,
}

impl AttentionGemm {
    #[inline]
    pub(crate) const fn of(isa: Isa) -> Self {
        if isa.tiles {
            Self::Tiles
        } else if isa.bf16_dot {
            Self::Bf16Dot
        } else {
            Self::Widened
        }
    }
}

/// Up to this many query rows, computing all 16 of a tile is not worth it.
pub(crate) const GEMV_ROWS: usize = 4;

/// Query rows per KV head up to which the decode kernels pay; 0 without such kernels. Tiles have 16
/// rows whatever is used.
#[inline]
pub(crate) fn max_decode_rows(isa: Isa) -> usize {
    if !isa.has_avx2() {
        0
    } else if isa.tiles {
        GEMV_ROWS
    } else {
        8
    }
}

/// Tokens per step for which GEMMs are compute-bound and attention is memory-bound.
const KV_PREFETCH_TOKENS: RangeInclusive<usize> = 5..=64;

/// Whether a step of `tokens` tokens (or rows of one GEMM) gains from the KV prefetch.
pub(crate) fn kv_prefetch_fits(tokens: usize) -> bool {
    KV_PREFETCH_TOKENS.contains(&tokens)
}

/// Whether steps of `tokens` tokens gain from the KV prefetch. With AMX the GEMMs are memory-bound
/// themselves; other instruction sets were not measured.
pub(crate) fn kv_prefetch_pays(isa: Isa, tokens: usize) -> bool {
    isa.bf16_dot && !isa.tiles && kv_prefetch_fits(tokens)
}

/// Pages of KV that one thread prefetches per layer, in a step of `tokens` tokens.
pub(crate) fn kv_prefetch_pages(isa: Isa, tokens: usize, threads: usize) -> usize {
    if kv_prefetch_pays(isa, tokens) { BUDGET / threads } else { 0 }
}

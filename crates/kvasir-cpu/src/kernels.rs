//! Which kernel runs for which format, instruction set and number of rows.
//!
//! | operand | instruction set | few rows | from this many rows |
//! |---|---|---|---|
//! | int8, packed codes | AVX2, AVX-VNNI, AVX-512 VNNI, AMX | [`Int8Gemv`] | 4, 3, 5, 4: [`Int8Gemm`] |
//! | int8, stored unpacked | AVX2, AVX-VNNI, AVX-512 VNNI, AMX | [`Int8Gemv`] | 4, 4, 5, 5: [`Int8Gemm`] |
//! | int8 | portable, NEON | [`Int8Gemv`] | never |
//! | bf16 | AMX | tiles | tiles |
//! | bf16 | AVX-512 BF16, others | GEMV | 5, 9: [`Bf16Matmul::Vectors`] |
//! | f32 | all | `gemm::f32` | `gemm::f32` |
//! | attention | AVX2 and wider | `attention::decode` | above [`max_decode_rows`]: [`AttentionGemm`] |
//!
//! Kernel files hold no such choice. Versions of one function for wider vectors are another matter:
//! `isa::dispatch` picks them.

use crate::isa::features::{Isa, VectorWidth};
use crate::prefetch::kv_prefetch::BUDGET;
use crate::weights::int8::format::Format;
use std::ops::RangeInclusive;

/// GEMV kernels of integer weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Gemv {
    Portable,
    Neon,
    NeonDotprod,
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

impl Int8Gemv {
    #[inline]
    pub(crate) fn of(isa: Isa) -> Self {
        match (isa.vectors, isa.int8_dot) {
            (VectorWidth::Baseline, _) => Self::Portable,
            (VectorWidth::Bits128, false) => Self::Neon,
            (VectorWidth::Bits128, true) => Self::NeonDotprod,
            (VectorWidth::Bits256 | VectorWidth::Bits512, false) => Self::Avx2,
            (VectorWidth::Bits256, true) => Self::AvxVnni,
            (VectorWidth::Bits512, true) => Self::Avx512Vnni,
        }
    }

    /// How many of `left` rows are multiplied at once.
    #[inline]
    pub(crate) fn rows_at_once(self, left: usize) -> usize {
        match self {
            Self::Portable => 1,
            Self::Neon | Self::NeonDotprod if left == 3 => 2,
            // Half as many registers of half the width hold the sums of two rows.
            Self::Avx2 | Self::AvxVnni => left.min(2),
            Self::Neon | Self::NeonDotprod | Self::Avx512Vnni => left.min(4),
        }
    }
}

/// GEMM kernels of integer weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Gemm {
    Avx2,
    AvxVnni,
    Avx512Vnni,
    /// AVX-512 VNNI with transposes of shuffles alone, and with KV prefetch.
    Avx512Bf16,
    Amx,
}

/// Row count up to which a panel pair takes so little time that several form one work item.
pub(crate) const SHORT: usize = 64;

impl Int8Gemm {
    /// The GEMM that multiplies `rows` rows; `None` if GEMV does.
    #[inline]
    pub(crate) fn of(format: Format, isa: Isa, rows: usize) -> Option<Self> {
        let unpacked = format.stores_unpacked();
        let (kernel, from) = match (isa.vectors, isa.int8_dot) {
            (VectorWidth::Baseline | VectorWidth::Bits128, _) => return None,
            (VectorWidth::Bits256 | VectorWidth::Bits512, false) => (Self::Avx2, 4),
            (VectorWidth::Bits256, true) => (Self::AvxVnni, if unpacked { 4 } else { 3 }),
            (VectorWidth::Bits512, true) if isa.tiles => (Self::Amx, if unpacked { 5 } else { 4 }),
            (VectorWidth::Bits512, true) if isa.bf16_dot => (Self::Avx512Bf16, 5),
            (VectorWidth::Bits512, true) => (Self::Avx512Vnni, 5),
        };
        (rows >= from).then_some(kernel)
    }

    /// Panels multiplied together, 1 or 2. AVX2 multiplies only four rows at once, so little time
    /// passes per superblock with few rows: single panels keep memory reads sequential.
    pub(crate) fn panels_at_once(self, rows: usize) -> usize {
        if self == Self::Avx2 && rows <= SHORT { 1 } else { 2 }
    }

    /// Whether the KV cache of the next layer is prefetched beside the products.
    pub(crate) const fn prefetches_kv(self) -> bool {
        matches!(self, Self::Avx512Bf16)
    }
}

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

/// How attention multiplies blocks of query rows.
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

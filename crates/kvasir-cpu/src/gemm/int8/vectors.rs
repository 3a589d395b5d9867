//! Integer vector operations of the quantized kernels, under the same names for AVX-512, AVX2 and
//! AVX-VNNI.
//!
//! `products!` defines the byte dot product that fits a layout. `ZERO_POINT` is what makes weights
//! unsigned: 128 for `vpdpbusd` (unsigned x signed), 0 for the AVX2 fallback, which multiplies
//! magnitudes by sign-adjusted activations.

use crate::gemm::int8::quantize::Sums;
use crate::isa::vectors::operations;
use crate::weights::int8::layouts::Layout;

/// Four 16-byte lanes: one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Lanes([[u8; 16]; 4]);

/// Shuffle indices that move every fourth output's scale to its lane, into the high byte of each
/// 16-bit element, with zero in the low byte.
static PLACES: [Lanes; 4] = {
    let mut all = [Lanes([[0x80; 16]; 4]); 4];
    let mut at = 0;
    while at < 128 {
        let (n, lane, word) = (at / 32, at / 8 % 4, at % 8);
        all[n].0[lane][word * 2 + 1] = (lane * 4 + n) as u8;
        at += 1;
    }
    all
};

/// The byte dot product, and its offset correction, for a layout.
macro_rules! products {
    ($features:literal) => {
        /// Offset of the weights that `add` multiplies.
        pub(crate) const fn zero_point<L: Layout>() -> i32 {
            if L::FORMAT.zero_point() < ZERO_POINT { L::FORMAT.zero_point() } else { ZERO_POINT }
        }

        /// Initial value of a row's superblock sums: minus what the zero point of its weights will
        /// add.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn unlifted<L: Layout>(sums: &Sums) -> Ints {
            if zero_point::<L>() == 0 { zero() } else { splat32(sums.zero_point) }
        }

        /// `sum + dot4(w, x)` per 32-bit lane; `w` is offset by the zero point.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn add<L: Layout>(sum: Ints, w: Ints, x: Ints) -> Ints {
            if L::FORMAT.zero_point() == 0 { add_unsigned(sum, w, x) } else { add_signed(sum, w, x) }
        }
    };
}

/// AVX-512 VNNI: an unpacked vector of 64 bytes holds four inputs of all 16 outputs of a panel.
pub(crate) mod v512 {
    use super::{Layout, Sums, operations};
    use std::arch::x86_64::*;

    pub(crate) use crate::isa::vectors::v512::{
        Numbers as Floats, Words as Ints, bytes, fma, load, load_numbers as load_floats, none as zero_floats,
        shuffle_bytes, splat as splat_floats, store, store_numbers as store_floats, transpose_4x4, zero,
    };
    /// Vectors per line of a panel.
    pub(crate) const HALVES: usize = 1;
    /// Independent accumulators that hide the dot product's latency with one row.
    pub(crate) const CHAINS: usize = 4;
    /// Offset of the weights that `add_signed` multiplies: the first operand is unsigned.
    pub(crate) const ZERO_POINT: i32 = 128;
    pub(crate) use self::{add_fours as add_signed, add_fours as add_unsigned};

    operations! { "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni":
        fn splat16(v: i16) -> Ints = _mm512_set1_epi16(v);
        fn splat32(v: i32) -> Ints = _mm512_set1_epi32(v);
        fn and(a: Ints, b: Ints) -> Ints = _mm512_and_si512(a, b);
        fn or(a: Ints, b: Ints) -> Ints = _mm512_or_si512(a, b);
        fn left16(v: Ints, by: i32) -> Ints = _mm512_sll_epi16(v, _mm_cvtsi32_si128(by));
        fn right16(v: Ints, by: i32) -> Ints = _mm512_srl_epi16(v, _mm_cvtsi32_si128(by));
        /// Narrows 16-bit integers that fit to bytes: in each lane those of `a`, then those of `b`.
        fn pack_saturated(a: Ints, b: Ints) -> Ints = _mm512_packs_epi16(a, b);
        /// Table lookup (`pshufb`) within each 16-byte lane; indices must be below 16.
        fn lookup(table: Ints, places: Ints) -> Ints = _mm512_shuffle_epi8(table, places);
        /// Lookup in the second table where bit `bit` of `bytes` is set, else in the first.
        fn lookup_in(tables: [Ints; 2], places: Ints, bytes: Ints, bit: usize) -> Ints = {
            let second = _mm512_test_epi8_mask(bytes, splat8((1u8 << bit) as i8));
            _mm512_mask_shuffle_epi8(lookup(tables[0], places), second, tables[1], places)
        };
        fn left32(v: Ints, by: i32) -> Ints = _mm512_sll_epi32(v, _mm_cvtsi32_si128(by));
        /// Packs the low 16 bits of `a` and `b` into each 32-bit word.
        fn pair(a: Ints, b: Ints) -> Ints = or(and(a, splat32(0xffff)), left32(b, 16));
        fn mullo16(a: Ints, b: Ints) -> Ints = _mm512_mullo_epi16(a, b);
        fn add32(a: Ints, b: Ints) -> Ints = _mm512_add_epi32(a, b);
        /// `(a * b + 2^14) >> 15` in 16 bits (`pmulhrsw`).
        fn mulhrs(a: Ints, b: Ints) -> Ints = _mm512_mulhrs_epi16(a, b);
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn add_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = _mm512_dpwssd_epi32(sum, a, b);
        /// `sum + dot4(a, b)`: unsigned bytes `a`, signed bytes `b` (`vpdpbusd`).
        fn add_fours(sum: Ints, a: Ints, b: Ints) -> Ints = _mm512_dpbusd_epi32(sum, a, b);
        fn xor(a: Ints, b: Ints) -> Ints = _mm512_xor_si512(a, b);
        /// Horizontal sums within each 16-byte lane: word `i` of a lane is the sum of `v[i]`'s
        /// words there.
        fn sums_in_lanes(v: [Ints; 4]) -> Ints = {
            let two = |a, b| add32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (first, last) = (two(v[0], v[1]), two(v[2], v[3]));
            add32(_mm512_unpacklo_epi64(first, last), _mm512_unpackhi_epi64(first, last))
        };
        fn splat8(v: i8) -> Ints = _mm512_set1_epi8(v);
        fn floats(v: Ints) -> Floats = _mm512_cvtepi32_ps(v);
        fn times(a: Floats, b: Floats) -> Floats = _mm512_mul_ps(a, b);
        /// `c - a * b`
        fn fnma(a: Floats, b: Floats, c: Floats) -> Floats = _mm512_fnmadd_ps(a, b, c);
        fn bf16s(bits: __m256i) -> Floats =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
        fn f16s(bits: __m256i) -> Floats = _mm512_cvtph_ps(bits);
    }

    products! { "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni" }

    /// Stores the numbers whose bit in `lanes` is set.
    ///
    /// # Safety
    /// The selected numbers must be writable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn store_some(at: *mut f32, lanes: u16, v: Floats) {
        // SAFETY: the caller's memory.
        unsafe { _mm512_mask_storeu_ps(at, lanes, v) }
    }

    /// Broadcasts 16 bytes to every lane.
    ///
    /// # Safety
    /// 16 bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn broadcast_lane(at: *const u8) -> Ints {
        // SAFETY: the caller's bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(at.cast())) }
    }

    /// Spreads the byte of each lane's `n`th output over the high halves of its 16-bit elements.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn spread(v: Ints, _: usize, n: usize) -> Ints {
        // SAFETY: 64 bytes.
        shuffle_bytes(v, unsafe { load(super::PLACES[n].0.as_flattened().as_ptr()) })
    }

    /// Sign-extends 16 bytes, one per output, to 32 bits.
    ///
    /// # Safety
    /// 16 bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn widen(at: *const u8) -> Ints {
        // SAFETY: the caller's 16 bytes.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())) }
    }

    /// Combines, per output, the byte at `at` and the one 16 bytes later as two 16-bit integers of
    /// one word.
    ///
    /// # Safety
    /// 32 bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(crate) unsafe fn widen_two(at: *const u8) -> Ints {
        const ORDER: [i16; 32] = {
            let mut order = [0; 32];
            let mut n = 0;
            while n < 32 {
                order[n] = (n / 2 + n % 2 * 16) as i16;
                n += 1;
            }
            order
        };
        // SAFETY: the caller's 32 bytes, and 32 integers.
        unsafe {
            let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
            _mm512_permutexvar_epi16(order, _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast())))
        }
    }

    /// Loads 16 bits per output.
    ///
    /// # Safety
    /// 32 bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn load_halves(at: *const u8) -> __m256i {
        // SAFETY: the caller's 32 bytes.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }
}

/// AVX-512 BF16 CPUs (Zen 4): as `v512`, but with shuffle-only transposes, as they shuffle on
/// several ports.
pub(crate) mod v512_bf16 {
    pub(crate) use super::v512::*;
    pub(crate) use crate::isa::vectors::v512::transpose_4x4_by_shuffles as transpose_4x4;
}

/// AVX2: an unpacked vector of 32 bytes holds four inputs of eight of a panel's outputs.
pub(crate) mod v256 {
    use super::{Layout, Sums, operations};
    use std::arch::x86_64::*;

    pub(crate) use crate::isa::vectors::v256::{
        Numbers as Floats, Words as Ints, fma, load, load_numbers as load_floats, none as zero_floats,
        shuffle_bytes, splat as splat_floats, store, store_numbers as store_floats, transpose_4x4, zero,
    };
    /// Vectors per line of a panel.
    pub(crate) const HALVES: usize = 2;
    /// Independent accumulators per row: one, as an addition has a latency of one cycle.
    pub(crate) const CHAINS: usize = 1;
    /// Offset of the weights that `add_signed` multiplies: none, they stay signed.
    pub(crate) const ZERO_POINT: i32 = 0;

    operations! { "avx2,fma,f16c":
        fn splat16(v: i16) -> Ints = _mm256_set1_epi16(v);
        fn splat32(v: i32) -> Ints = _mm256_set1_epi32(v);
        fn and(a: Ints, b: Ints) -> Ints = _mm256_and_si256(a, b);
        fn or(a: Ints, b: Ints) -> Ints = _mm256_or_si256(a, b);
        fn left16(v: Ints, by: i32) -> Ints = _mm256_sll_epi16(v, _mm_cvtsi32_si128(by));
        fn right16(v: Ints, by: i32) -> Ints = _mm256_srl_epi16(v, _mm_cvtsi32_si128(by));
        /// Interleaves bytes from 16-bit elements: even bytes of `words[0]`, odd bytes of
        /// `words[1]`.
        fn bytes(words: [Ints; 2]) -> Ints =
            _mm256_or_si256(_mm256_slli_epi16::<8>(words[1]), and(words[0], splat16(0xff)));
        /// Narrows 16-bit integers that fit to bytes: in each lane those of `a`, then those of `b`.
        fn pack_saturated(a: Ints, b: Ints) -> Ints = _mm256_packs_epi16(a, b);
        /// Table lookup (`pshufb`) within each 16-byte lane; indices must be below 16.
        fn lookup(table: Ints, places: Ints) -> Ints = _mm256_shuffle_epi8(table, places);
        /// Lookup in the second table where bit `bit` of `bytes` is set, else in the first.
        fn lookup_in(tables: [Ints; 2], places: Ints, bytes: Ints, bit: usize) -> Ints = {
            let second = left16(bytes, 7 - bit as i32);
            _mm256_blendv_epi8(lookup(tables[0], places), lookup(tables[1], places), second)
        };
        fn left32(v: Ints, by: i32) -> Ints = _mm256_sll_epi32(v, _mm_cvtsi32_si128(by));
        /// Packs the low 16 bits of `a` and `b` into each 32-bit word.
        fn pair(a: Ints, b: Ints) -> Ints = or(and(a, splat32(0xffff)), left32(b, 16));
        fn mullo16(a: Ints, b: Ints) -> Ints = _mm256_mullo_epi16(a, b);
        fn add32(a: Ints, b: Ints) -> Ints = _mm256_add_epi32(a, b);
        /// `(a * b + 2^14) >> 15` in 16 bits (`pmulhrsw`).
        fn mulhrs(a: Ints, b: Ints) -> Ints = _mm256_mulhrs_epi16(a, b);
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn add_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        /// `sum + dot4(a, b)` for `a <= 128` and `b > -128`: pairs of products fit 16 bits.
        fn add_unsigned(sum: Ints, a: Ints, b: Ints) -> Ints =
            add32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), splat16(1)));
        /// `sum + dot4(a, b)` for signed bytes, as `|a| * sign(b, a)`.
        fn add_signed(sum: Ints, a: Ints, b: Ints) -> Ints =
            add_unsigned(sum, _mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
        fn xor(a: Ints, b: Ints) -> Ints = _mm256_xor_si256(a, b);
        /// Horizontal sums within each 16-byte lane: word `i` of a lane is the sum of `v[i]`'s
        /// words there.
        fn sums_in_lanes(v: [Ints; 4]) -> Ints = {
            let two = |a, b| add32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (first, last) = (two(v[0], v[1]), two(v[2], v[3]));
            add32(_mm256_unpacklo_epi64(first, last), _mm256_unpackhi_epi64(first, last))
        };
        fn splat8(v: i8) -> Ints = _mm256_set1_epi8(v);
        fn floats(v: Ints) -> Floats = _mm256_cvtepi32_ps(v);
        fn times(a: Floats, b: Floats) -> Floats = _mm256_mul_ps(a, b);
        /// `c - a * b`
        fn fnma(a: Floats, b: Floats, c: Floats) -> Floats = _mm256_fnmadd_ps(a, b, c);
        fn bf16s(bits: __m128i) -> Floats =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits)));
        fn f16s(bits: __m128i) -> Floats = _mm256_cvtph_ps(bits);
    }

    products! { "avx2,fma,f16c" }

    /// Stores the numbers whose bit in the low eight bits of `lanes` is set.
    ///
    /// # Safety
    /// The selected numbers must be writable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn store_some(at: *mut f32, lanes: u16, v: Floats) {
        // SAFETY: the caller's memory.
        unsafe {
            if lanes as u8 == u8::MAX {
                return _mm256_storeu_ps(at, v);
            }
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let there = _mm256_cmpeq_epi32(_mm256_and_si256(splat32(i32::from(lanes)), bits), bits);
            _mm256_maskstore_ps(at, there, v);
        }
    }

    /// Broadcasts 16 bytes to every lane.
    ///
    /// # Safety
    /// 16 bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn broadcast_lane(at: *const u8) -> Ints {
        // SAFETY: the caller's bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(at.cast())) }
    }

    /// Spreads the byte of each lane's `n`th output of a half over the high halves of its 16-bit
    /// elements.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn spread(v: Ints, half: usize, n: usize) -> Ints {
        // SAFETY: 32 bytes.
        shuffle_bytes(v, unsafe { load(super::PLACES[n].0[half * 2].as_ptr()) })
    }

    /// Sign-extends eight bytes, one per output, to 32 bits.
    ///
    /// # Safety
    /// Eight bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn widen(at: *const u8) -> Ints {
        // SAFETY: the caller's eight bytes.
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())) }
    }

    /// Combines, per output, the byte at `at` and the one 16 bytes later as two 16-bit integers of
    /// one word.
    ///
    /// # Safety
    /// Eight bytes must be readable at `at` and 16 behind it.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn widen_two(at: *const u8) -> Ints {
        // SAFETY: as above.
        unsafe { pair(widen(at), widen(at.add(16))) }
    }

    /// Loads 16 bits per output.
    ///
    /// # Safety
    /// 16 bytes must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn load_halves(at: *const u8) -> __m128i {
        // SAFETY: the caller's 16 bytes.
        unsafe { _mm_loadu_si128(at.cast()) }
    }
}

/// AVX-VNNI: 256-bit vectors with dot products of bytes and of 16-bit pairs.
pub(crate) mod v256_dots {
    use super::{Layout, Sums, operations};
    use std::arch::x86_64::*;

    pub(crate) use super::v256::*;
    /// Independent accumulators that hide the dot product's latency with one row.
    pub(crate) const CHAINS: usize = 4;
    /// Offset of the weights that `add_signed` multiplies: the first operand is unsigned.
    pub(crate) const ZERO_POINT: i32 = 128;
    pub(crate) use self::{add_fours as add_signed, add_fours as add_unsigned};

    products! { "avx2,fma,f16c,avxvnni" }

    operations! { "avx2,fma,f16c,avxvnni":
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn add_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = _mm256_dpwssd_avx_epi32(sum, a, b);
        /// `sum + dot4(a, b)`: unsigned bytes `a`, signed bytes `b` (`vpdpbusd`).
        fn add_fours(sum: Ints, a: Ints, b: Ints) -> Ints = _mm256_dpbusd_avx_epi32(sum, a, b);
    }
}

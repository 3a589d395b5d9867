//! Thin wrappers over AVX-512 and AVX2 intrinsics under the same names, so that kernels are written
//! once for both.
//!
//! `operations!` and `memory!` define functions with the right `target_feature`; a kernel module
//! imports `v512` or `v256`. `Ints` are integer vectors, `Floats` f32 vectors.

/// Defines safe functions compiled with these target features.
macro_rules! operations {
    ($features:literal: $($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            #[target_feature(enable = $features)]
            pub(crate) fn $name($($arg: $type),*) -> $result { $body }
        )*
    };
}
pub(crate) use operations;

/// Defines unaligned loads and stores of integer and f32 vectors.
macro_rules! memory {
    ($features:literal: $load:ident, $store:ident, $load_floats:ident, $store_floats:ident) => {
        /// # Safety
        /// A whole vector must be readable at `at`.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn load(at: *const u8) -> Ints {
            // SAFETY: the caller's bytes, a whole vector.
            unsafe { $load(at.cast()) }
        }

        /// # Safety
        /// A whole vector must be writable at `at`.
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn store(at: *mut u8, v: Ints) {
            // SAFETY: as above.
            unsafe { $store(at.cast(), v) }
        }

        /// # Safety
        /// As for [`load`].
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn load_floats(at: *const f32) -> Floats {
            // SAFETY: as above.
            unsafe { $load_floats(at) }
        }

        /// # Safety
        /// As for [`store`].
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn store_floats(at: *mut f32, v: Floats) {
            // SAFETY: as above.
            unsafe { $store_floats(at, v) }
        }
    };
}

pub(crate) mod v512 {
    use std::arch::x86_64::*;

    /// Integer vector.
    pub(crate) type Ints = __m512i;
    /// f32 vector.
    pub(crate) type Floats = __m512;
    /// 32-bit words per vector: bf16 pairs or f32.
    pub(crate) const WORDS: usize = 16;
    /// Passes over the inputs: the chains of even and odd positions fit the registers together.
    pub(crate) const PHASES: usize = 1;

    operations! { "avx512f,avx512bw,avx512vl,avx512dq":
        /// Byte shuffle (`vpshufb`) within each 16-byte lane. Inline assembly, because compilers
        /// that see constant indices emit two instructions instead.
        fn shuffle_bytes(v: Ints, places: Ints) -> Ints = {
            let to;
            // SAFETY: a pure register instruction.
            unsafe {
                std::arch::asm!("vpshufb {0}, {1}, {2}", lateout(zmm_reg) to, in(zmm_reg) v, in(zmm_reg) places, options(pure, nomem, nostack, preserves_flags));
            }
            to
        };
        fn zero() -> Ints = _mm512_setzero_si512();
        fn zero_floats() -> Floats = _mm512_setzero_ps();
        fn splat_floats(v: f32) -> Floats = _mm512_set1_ps(v);
        fn add(a: Floats, b: Floats) -> Floats = _mm512_add_ps(a, b);
        fn sub(a: Floats, b: Floats) -> Floats = _mm512_sub_ps(a, b);
        fn mul(a: Floats, b: Floats) -> Floats = _mm512_mul_ps(a, b);
        /// `a * b + c`
        fn fma(a: Floats, b: Floats, c: Floats) -> Floats = _mm512_fmadd_ps(a, b, c);
        /// Widens bf16 pairs to f32: the even elements, then the odd ones.
        fn widen_bf16(pairs: Ints) -> [Floats; 2] = [
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32))),
        ];
        /// Widens bf16 to f32: of each 16-byte lane the first four, then the last four.
        fn widen_fours(v: Ints) -> [Floats; 2] = [
            _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_setzero_si512(), v)),
            _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_setzero_si512(), v)),
        ];
        /// Transposes 4 x 4 words within each 16-byte lane. Half of the work avoids shuffles, which
        /// have one port on Intel CPUs.
        fn transpose_4x4(r: [Ints; 4]) -> [Ints; 4] = {
            const UPPER: __mmask16 = 0xaaaa;
            let two = |a, b| {
                let first = _mm512_mask_blend_epi32(UPPER, a, _mm512_rol_epi64::<32>(b));
                (first, _mm512_mask_blend_epi32(UPPER, _mm512_rol_epi64::<32>(a), b))
            };
            let ((a, b), (c, d)) = (two(r[0], r[1]), two(r[2], r[3]));
            [
                _mm512_unpacklo_epi64(a, c),
                _mm512_unpacklo_epi64(b, d),
                _mm512_unpackhi_epi64(a, c),
                _mm512_unpackhi_epi64(b, d),
            ]
        };
        /// Transposes a square of words.
        fn transpose_square(r: [Ints; WORDS]) -> [Ints; WORDS] = {
            let mut q = r;
            for four in q.as_chunks_mut().0 {
                *four = transpose_4x4(*four);
            }
            let mut to = q;
            for j in 0..4 {
                let a = _mm512_shuffle_i32x4::<0x88>(q[j], q[4 + j]);
                let b = _mm512_shuffle_i32x4::<0xdd>(q[j], q[4 + j]);
                let c = _mm512_shuffle_i32x4::<0x88>(q[8 + j], q[12 + j]);
                let d = _mm512_shuffle_i32x4::<0xdd>(q[8 + j], q[12 + j]);
                to[j] = _mm512_shuffle_i32x4::<0x88>(a, c);
                to[j + 4] = _mm512_shuffle_i32x4::<0x88>(b, d);
                to[j + 8] = _mm512_shuffle_i32x4::<0xdd>(a, c);
                to[j + 12] = _mm512_shuffle_i32x4::<0xdd>(b, d);
            }
            to
        };
    }

    /// `sum + a.upper * b.upper + a.lower * b.lower` per 32-bit lane, rounded after each addition.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(crate) fn add_pairs(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: vectors of 512 bits.
        let [a, b] = [a, b].map(|v| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) });
        _mm512_dpbf16_ps(sum, a, b)
    }

    /// Reduces four vectors to four numbers, by halves, with the operation `of` (sum or maximum).
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn reduce_by_halves(
        [a, b, c, d]: [__m512; 4],
        of: impl Fn(__m512, __m512) -> __m512,
    ) -> [f32; 4] {
        let eight = |a, b| of(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
        let (ab, cd) = (eight(a, b), eight(c, d));
        let four = of(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
        let two = of(four, _mm512_permute_ps::<0x4e>(four));
        let one = of(two, _mm512_permute_ps::<0xb1>(two));
        let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
        let mut sums = [0.0; 4];
        // SAFETY: four numbers are written.
        unsafe {
            _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
        }
        sums
    }

    /// Elementwise sums of vectors.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn add_each<const N: usize>(a: [__m512; N], b: [__m512; N]) -> [__m512; N] {
        std::array::from_fn(|n| _mm512_add_ps(a[n], b[n]))
    }

    memory! { "avx512f,avx512bw,avx512vl,avx512dq": _mm512_loadu_si512, _mm512_storeu_si512, _mm512_loadu_ps, _mm512_storeu_ps }
}

pub(crate) mod v256 {
    use std::arch::x86_64::*;

    /// Integer vector.
    pub(crate) type Ints = __m256i;
    /// f32 vector.
    pub(crate) type Floats = __m256;
    /// 32-bit words per vector: bf16 pairs or f32.
    pub(crate) const WORDS: usize = 8;
    /// Passes over the inputs: the chains of even and odd positions fit the registers only one
    /// after the other.
    pub(crate) const PHASES: usize = 2;

    operations! { "avx2,fma,f16c":
        fn zero() -> Ints = _mm256_setzero_si256();
        fn zero_floats() -> Floats = _mm256_setzero_ps();
        fn splat_floats(v: f32) -> Floats = _mm256_set1_ps(v);
        fn add(a: Floats, b: Floats) -> Floats = _mm256_add_ps(a, b);
        fn sub(a: Floats, b: Floats) -> Floats = _mm256_sub_ps(a, b);
        fn mul(a: Floats, b: Floats) -> Floats = _mm256_mul_ps(a, b);
        /// `a * b + c`
        fn fma(a: Floats, b: Floats, c: Floats) -> Floats = _mm256_fmadd_ps(a, b, c);
        /// Widens bf16 pairs to f32: the even elements, then the odd ones.
        fn widen_bf16(pairs: Ints) -> [Floats; 2] = [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32))),
        ];
        /// Widens bf16 to f32: of each 16-byte lane the first four, then the last four.
        fn widen_fours(v: Ints) -> [Floats; 2] = [
            _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), v)),
            _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), v)),
        ];
        /// Transposes 4 x 4 words within each 16-byte lane.
        fn transpose_4x4(r: [Ints; 4]) -> [Ints; 4] = {
            let (a, b) = (_mm256_unpacklo_epi32(r[0], r[1]), _mm256_unpackhi_epi32(r[0], r[1]));
            let (c, d) = (_mm256_unpacklo_epi32(r[2], r[3]), _mm256_unpackhi_epi32(r[2], r[3]));
            [
                _mm256_unpacklo_epi64(a, c),
                _mm256_unpackhi_epi64(a, c),
                _mm256_unpacklo_epi64(b, d),
                _mm256_unpackhi_epi64(b, d),
            ]
        };
        /// Transposes a square of words.
        fn transpose_square(r: [Ints; WORDS]) -> [Ints; WORDS] = {
            let mut q = r;
            for four in q.as_chunks_mut().0 {
                *four = transpose_4x4(*four);
            }
            let mut to = q;
            for j in 0..4 {
                to[j] = _mm256_permute2x128_si256::<0x20>(q[j], q[4 + j]);
                to[j + 4] = _mm256_permute2x128_si256::<0x31>(q[j], q[4 + j]);
            }
            to
        };
    }

    memory! { "avx2,fma,f16c": _mm256_loadu_si256, _mm256_storeu_si256, _mm256_loadu_ps, _mm256_storeu_ps }
}

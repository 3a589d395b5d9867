//! Vector operations of the quantized kernels: one vocabulary for AVX-512 VNNI, AVX-VNNI, AVX2 and
//! arrays.
//!
//! `Ints` holds 16-bit pairs or 32-bit integers, one per output; `Floats` holds f32. A panel's 16
//! outputs take `VECTORS` vectors; kernels call the index of one `half`.

#[cfg(target_arch = "x86_64")]
use crate::isa::vectors::operations;

/// AVX-512 VNNI.
#[cfg(target_arch = "x86_64")]
pub(crate) mod v512 {
    use super::operations;
    use std::arch::x86_64::*;

    pub(crate) use crate::isa::vectors::v512::{
        Floats, Ints, fma, load, load_floats, mul, splat_floats, store, store_floats, zero, zero_floats,
    };
    /// Vectors per panel.
    pub(crate) const VECTORS: usize = 1;
    /// Independent accumulators that hide the latency of `dot_pairs` with one row.
    pub(crate) const CHAINS: usize = 4;
    /// Whether `dot_pairs` is one instruction.
    pub(crate) const FUSED: bool = true;

    operations! { "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni":
        fn splat16(v: u16) -> Ints = _mm512_set1_epi16(v as i16);
        fn splat32(v: i32) -> Ints = _mm512_set1_epi32(v);
        fn and(a: Ints, b: Ints) -> Ints = _mm512_and_si512(a, b);
        fn or(a: Ints, b: Ints) -> Ints = _mm512_or_si512(a, b);
        fn shl16(v: Ints, by: usize) -> Ints = _mm512_sll_epi16(v, _mm_cvtsi32_si128(by as i32));
        fn shr16(v: Ints, by: usize) -> Ints = _mm512_srl_epi16(v, _mm_cvtsi32_si128(by as i32));
        fn shr32(v: Ints, by: usize) -> Ints = _mm512_srl_epi32(v, _mm_cvtsi32_si128(by as i32));
        /// Looks up bytes below 16 in the table that every 16-byte lane holds.
        fn shuffle_bytes(table: Ints, indices: Ints) -> Ints = _mm512_shuffle_epi8(table, indices);
        fn sub16(a: Ints, b: Ints) -> Ints = _mm512_sub_epi16(a, b);
        fn add32(a: Ints, b: Ints) -> Ints = _mm512_add_epi32(a, b);
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn dot_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = _mm512_dpwssd_epi32(sum, a, b);
        fn to_f32(v: Ints) -> Floats = _mm512_cvtepi32_ps(v);
        fn to_bits(v: Floats) -> Ints = _mm512_castps_si512(v);
    }

    /// Broadcasts 16 bytes to every 16-byte lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn broadcast_128(lane: &[u8; 16]) -> Ints {
        // SAFETY: 16 bytes.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(lane.as_ptr().cast())) }
    }

    /// Widens a signed byte per output.
    ///
    /// # Safety
    /// A byte per output must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn load_i8_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))) }
    }

    /// Widens an f16 per output.
    ///
    /// # Safety
    /// 16 bits per output must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn load_f16_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    /// Widens a bf16 per output.
    ///
    /// # Safety
    /// 16 bits per output must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn load_bf16_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        let bits = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())) };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
    }
}

/// AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod v256 {
    use super::operations;
    use std::arch::x86_64::*;

    pub(crate) use crate::isa::vectors::v256::{
        Floats, Ints, fma, load, load_floats, mul, splat_floats, store, store_floats, zero, zero_floats,
    };
    /// Vectors per panel.
    pub(crate) const VECTORS: usize = 2;
    /// One accumulator per row is enough: an addition has a latency of one cycle.
    pub(crate) const CHAINS: usize = 1;
    /// `dot_pairs` is two instructions.
    pub(crate) const FUSED: bool = false;

    operations! { "avx2,fma,f16c":
        fn splat16(v: u16) -> Ints = _mm256_set1_epi16(v as i16);
        fn splat32(v: i32) -> Ints = _mm256_set1_epi32(v);
        fn and(a: Ints, b: Ints) -> Ints = _mm256_and_si256(a, b);
        fn or(a: Ints, b: Ints) -> Ints = _mm256_or_si256(a, b);
        fn shl16(v: Ints, by: usize) -> Ints = _mm256_sll_epi16(v, _mm_cvtsi32_si128(by as i32));
        fn shr16(v: Ints, by: usize) -> Ints = _mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32));
        fn shr32(v: Ints, by: usize) -> Ints = _mm256_srl_epi32(v, _mm_cvtsi32_si128(by as i32));
        /// Looks up bytes below 16 in the table that every 16-byte lane holds.
        fn shuffle_bytes(table: Ints, indices: Ints) -> Ints = _mm256_shuffle_epi8(table, indices);
        fn sub16(a: Ints, b: Ints) -> Ints = _mm256_sub_epi16(a, b);
        fn add32(a: Ints, b: Ints) -> Ints = _mm256_add_epi32(a, b);
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn dot_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        fn to_f32(v: Ints) -> Floats = _mm256_cvtepi32_ps(v);
        fn to_bits(v: Floats) -> Ints = _mm256_castps_si256(v);
    }

    /// Broadcasts 16 bytes to every 16-byte lane.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) fn broadcast_128(lane: &[u8; 16]) -> Ints {
        // SAFETY: 16 bytes.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(lane.as_ptr().cast())) }
    }

    /// Widens a signed byte per output.
    ///
    /// # Safety
    /// A byte per output must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn load_i8_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }

    /// Widens an f16 per output.
    ///
    /// # Safety
    /// 16 bits per output must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn load_f16_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    /// Widens a bf16 per output.
    ///
    /// # Safety
    /// 16 bits per output must be readable at `at`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(crate) unsafe fn load_bf16_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        let bits = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

/// AVX-VNNI: AVX2 with dot products of 16-bit pairs.
#[cfg(target_arch = "x86_64")]
pub(crate) mod v256_vnni {
    use super::operations;
    use std::arch::x86_64::*;

    pub(crate) use super::v256::*;
    /// Independent accumulators that hide the latency of `dot_pairs` with one row.
    pub(crate) const CHAINS: usize = 4;
    /// Whether `dot_pairs` is one instruction.
    pub(crate) const FUSED: bool = true;

    operations! { "avx2,fma,f16c,avxvnni":
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn dot_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = _mm256_dpwssd_avx_epi32(sum, a, b);
    }
}

/// Arrays, which the compiler vectorizes for the target: the reference on x86, and NEON on Arm.
pub(crate) mod portable {
    use crate::isa::float16::{bf16, half};
    use crate::isa::tile::LANES;
    use std::array::from_fn;

    pub(crate) type Ints = [u32; LANES];
    pub(crate) type Floats = [f32; LANES];
    /// Vectors per panel.
    pub(crate) const VECTORS: usize = 1;
    /// Independent accumulators per row.
    pub(crate) const CHAINS: usize = 1;
    /// `dot_pairs` is several instructions.
    pub(crate) const FUSED: bool = false;

    macro_rules! operations {
        ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {
            $(
                $(#[$doc])*
                #[inline(always)]
                pub(crate) fn $name($($arg: $type),*) -> $result { $body }
            )*
        };
    }

    operations! {
        fn zero() -> Ints = [0; LANES];
        fn zero_floats() -> Floats = [0.0; LANES];
        fn splat16(v: u16) -> Ints = [u32::from(v) * 0x1_0001; LANES];
        fn splat32(v: i32) -> Ints = [v as u32; LANES];
        fn splat_floats(v: f32) -> Floats = [v; LANES];
        fn and(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i] & b[i]);
        fn or(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i] | b[i]);
        fn shl16(v: Ints, by: usize) -> Ints = from_fn(|i| (v[i] << by) & ((0xffff << by & 0xffff) * 0x1_0001));
        fn shr16(v: Ints, by: usize) -> Ints = from_fn(|i| (v[i] >> by) & ((0xffff >> by) * 0x1_0001));
        fn shr32(v: Ints, by: usize) -> Ints = from_fn(|i| v[i] >> by);
        fn sub16(a: Ints, b: Ints) -> Ints = from_fn(|i| {
            let low = (a[i] as u16).wrapping_sub(b[i] as u16);
            let high = ((a[i] >> 16) as u16).wrapping_sub((b[i] >> 16) as u16);
            u32::from(low) | u32::from(high) << 16
        });
        fn add32(a: Ints, b: Ints) -> Ints = from_fn(|i| a[i].wrapping_add(b[i]));
        /// `sum + dot2(a, b)`: 16-bit pairs to 32 bits.
        fn dot_pairs(sum: Ints, a: Ints, b: Ints) -> Ints = from_fn(|i| {
            let product = |a: u32, b: u32| i32::from(a as i16) * i32::from(b as i16);
            let pair = product(a[i], b[i]).wrapping_add(product(a[i] >> 16, b[i] >> 16));
            sum[i].wrapping_add(pair as u32)
        });
        fn to_f32(v: Ints) -> Floats = v.map(|v| v as i32 as f32);
        fn to_bits(v: Floats) -> Ints = v.map(f32::to_bits);
        fn mul(a: Floats, b: Floats) -> Floats = from_fn(|i| a[i] * b[i]);
        /// `a * b + c`
        fn fma(a: Floats, b: Floats, c: Floats) -> Floats = from_fn(|i| a[i].mul_add(b[i], c[i]));
        /// Looks up bytes below 16 in the table that every 16-byte lane holds.
        fn shuffle_bytes(table: Ints, indices: Ints) -> Ints = from_fn(|i| {
            let byte = |index: u8| (table[usize::from(index) / 4] >> (index % 4 * 8)) as u8;
            u32::from_le_bytes(indices[i].to_le_bytes().map(byte))
        });
        /// Broadcasts 16 bytes to every 16-byte lane.
        fn broadcast_128(lane: &[u8; 16]) -> Ints = from_fn(|i| u32::from_le_bytes(lane.as_chunks().0[i % 4]));
    }

    /// # Safety
    /// A vector must be readable at `at`.
    #[inline(always)]
    pub(crate) unsafe fn load(at: *const u8) -> Ints {
        // SAFETY: the caller's bytes.
        unsafe { at.cast::<Ints>().read_unaligned() }.map(u32::from_le)
    }

    /// # Safety
    /// A vector must be writable at `at`.
    #[inline(always)]
    pub(crate) unsafe fn store(at: *mut u8, v: Ints) {
        // SAFETY: the caller's bytes.
        unsafe { at.cast::<Ints>().write_unaligned(v.map(u32::to_le)) }
    }

    /// # Safety
    /// As for [`load`].
    #[inline(always)]
    pub(crate) unsafe fn load_floats(at: *const f32) -> Floats {
        // SAFETY: the caller's numbers.
        unsafe { at.cast::<Floats>().read_unaligned() }
    }

    /// # Safety
    /// As for [`store`].
    #[inline(always)]
    pub(crate) unsafe fn store_floats(at: *mut f32, v: Floats) {
        // SAFETY: the caller's numbers.
        unsafe { at.cast::<Floats>().write_unaligned(v) }
    }

    /// Widens a signed byte per output.
    ///
    /// # Safety
    /// A byte per output must be readable at `at`.
    #[inline(always)]
    pub(crate) unsafe fn load_i8_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { at.cast::<[i8; LANES]>().read() }.map(f32::from)
    }

    /// Widens an f16 per output.
    ///
    /// # Safety
    /// 16 bits per output must be readable at `at`.
    #[inline(always)]
    pub(crate) unsafe fn load_f16_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { at.cast::<[u16; LANES]>().read_unaligned() }.map(|v| half(u16::from_le(v)))
    }

    /// Widens a bf16 per output.
    ///
    /// # Safety
    /// 16 bits per output must be readable at `at`.
    #[inline(always)]
    pub(crate) unsafe fn load_bf16_as_f32(at: *const u8) -> Floats {
        // SAFETY: the caller's bytes.
        unsafe { at.cast::<[u16; LANES]>().read_unaligned() }.map(|v| bf16(u16::from_le(v)))
    }
}

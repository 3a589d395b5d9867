//! int8 dot products on Arm NEON: `sdot` (Armv8.2), or the fallback with widening multiplies, whose
//! pairs fit 16 bits.

use std::arch::aarch64::*;
use std::arch::asm;

/// How products of four inputs x four outputs are accumulated.
pub(crate) trait Int8Dot {
    type Sum: Copy;
    const NONE: Self::Sum;
    /// Adds two lines of weights times four activations each; `x` holds the four activations in
    /// every 32-bit lane.
    ///
    /// # Safety
    /// The CPU must support the instructions.
    unsafe fn add(sum: Self::Sum, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> Self::Sum;
    /// Reduces to one sum per output.
    fn finish(sum: Self::Sum) -> int32x4_t;
}

/// With `sdot`, which adds four byte products per 32-bit lane.
pub(crate) struct Sdot;

impl Int8Dot for Sdot {
    type Sum = int32x4_t;
    // SAFETY: all zero bits are a valid integer vector.
    const NONE: int32x4_t = unsafe { std::mem::zeroed() };

    #[inline(always)]
    unsafe fn add(mut sum: int32x4_t, w: [int8x16_t; 2], x: [int8x16_t; 2]) -> int32x4_t {
        for i in 0..2 {
            // SAFETY: the caller guarantees the instruction (its intrinsic is unstable); only
            // registers are touched.
            unsafe {
                asm!(".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) w[i], in(vreg) x[i],
                    options(pure, nomem, nostack, preserves_flags))
            };
        }
        sum
    }

    #[inline(always)]
    fn finish(sum: int32x4_t) -> int32x4_t {
        sum
    }
}

/// With 16-bit products; the sum of two fits: 2 x 128 x 127.
pub(crate) struct WideningMultiply;

impl Int8Dot for WideningMultiply {
    /// Two partial sums per output: of inputs 0 and 1, and of inputs 2 and 3.
    type Sum = [int32x4_t; 2];
    const NONE: [int32x4_t; 2] = [Sdot::NONE; 2];

    #[inline(always)]
    unsafe fn add(
        [low, high]: [int32x4_t; 2],
        [w0, w1]: [int8x16_t; 2],
        [x0, x1]: [int8x16_t; 2],
    ) -> [int32x4_t; 2] {
        // SAFETY: NEON is part of the aarch64 baseline.
        unsafe {
            let a = vmlal_s8(vmull_s8(vget_low_s8(w0), vget_low_s8(x0)), vget_low_s8(w1), vget_low_s8(x1));
            let b = vmlal_high_s8(vmull_high_s8(w0, x0), w1, x1);
            [vpadalq_s16(low, a), vpadalq_s16(high, b)]
        }
    }

    #[inline(always)]
    fn finish([low, high]: [int32x4_t; 2]) -> int32x4_t {
        // SAFETY: NEON is part of the aarch64 baseline.
        unsafe { vpaddq_s32(low, high) }
    }
}

//! Peak FLOPS microbenchmarks on Arm: f32 FMA and 16-bit multiply-adds.

use std::arch::aarch64::*;

const ROUNDS: usize = 250_000;
/// Independent accumulators, to hide the latency of the multiply-add.
const CHAINS: usize = 12;

pub(crate) fn floats() -> f64 {
    // SAFETY: NEON is part of the aarch64 baseline.
    unsafe {
        let (x, y) = (vdupq_n_f32(std::hint::black_box(0.999)), vdupq_n_f32(std::hint::black_box(0.9)));
        let mut sums = [y; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = vfmaq_f32(y, *sum, x);
            }
            std::hint::black_box(());
        }
        std::hint::black_box(sums);
    }
    (ROUNDS * CHAINS * 4 * 2) as f64
}

/// 16-bit multiply-adds to 32 bits.
pub(crate) fn pairs(numbers: &[u8; 4096]) -> f64 {
    // SAFETY: 4096 bytes; NEON is part of the aarch64 baseline.
    unsafe {
        let load = |i: usize| vld1q_s16(numbers.as_ptr().add(i * 16).cast());
        let (w, x) = (load(0), load(1));
        let mut sums = [vdupq_n_s32(0); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                // The operand is hidden from the compiler, which would otherwise compute the
                // product once.
                let mut x = x;
                std::arch::asm!("/* {0:v} */", inout(vreg) x, options(nomem, nostack, preserves_flags));
                *sum = vmlal_high_s16(vmlal_s16(*sum, vget_low_s16(w), vget_low_s16(x)), w, x);
            }
        }
        std::hint::black_box(sums);
    }
    (ROUNDS * CHAINS * 8 * 2) as f64
}

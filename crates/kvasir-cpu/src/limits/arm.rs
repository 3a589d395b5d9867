//! Peak FLOPS microbenchmarks on Arm: f32 FMA and int8 dot products.

use crate::isa::neon::Int8Dot;
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

/// # Safety
/// The processor must have the instructions of `D`.
pub(crate) unsafe fn bytes<D: Int8Dot>(numbers: &[u8; 4096]) -> f64 {
    // SAFETY: 4096 bytes; the caller vouches for the instructions.
    unsafe {
        let load = |i: usize| vld1q_s8(numbers.as_ptr().add(i * 16).cast());
        let (w, x) = ([load(0), load(1)], [load(2), load(3)]);
        let mut sums = [D::NONE; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                // The operand is hidden from the compiler, which would otherwise compute the
                // product once.
                let [mut a, b] = x;
                std::arch::asm!("/* {0:v} */", inout(vreg) a, options(nomem, nostack, preserves_flags));
                *sum = D::add(*sum, w, [a, b]);
            }
        }
        std::hint::black_box(sums);
    }
    (ROUNDS * CHAINS * 32 * 2) as f64
}

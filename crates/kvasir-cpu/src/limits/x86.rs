//! Peak FLOPS microbenchmarks on x86: f32 FMA, 16-bit integers (AVX2, VNNI) and bf16 (AVX-512, AMX).

use crate::isa::amx::{Tiles, tile_dot_bf16, tile_load, tile_zero};
use crate::isa::vectors::v512::add_pairs;
use std::arch::x86_64::*;

const ROUNDS: usize = 500_000;
/// Independent accumulators, to hide the latency of the multiply-add.
const CHAINS: usize = 12;

/// Defines an f32 FMA benchmark of `$lanes` SIMD lanes.
macro_rules! floats {
    ($name:ident, $features:literal, $fused:path, from $all:path, $lanes:literal each) => {
        #[target_feature(enable = $features)]
        pub(crate) fn $name() -> f64 {
            let (x, y) = ($all(std::hint::black_box(0.999)), $all(std::hint::black_box(0.9)));
            let mut sums: [_; CHAINS] = std::array::from_fn(|i| $all(i as f32));
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = $fused(*sum, x, y);
                }
                std::hint::black_box(());
            }
            std::hint::black_box(sums);
            (ROUNDS * CHAINS * $lanes * 2) as f64
        }
    };
}

floats!(floats_16, "avx512f", _mm512_fmadd_ps, from _mm512_set1_ps, 16 each);
floats!(floats_8, "avx2,fma", _mm256_fmadd_ps, from _mm256_set1_ps, 8 each);

/// `sum + dot2(a, b)` without VNNI: 16-bit pairs to 32 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn add_madd(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
    let mut x = x;
    // The operand is hidden from the compiler, which would otherwise compute the product once.
    // SAFETY: the assembly is empty; it only hides the value.
    unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags)) };
    _mm256_add_epi32(sum, _mm256_madd_epi16(w, x))
}

/// Defines a benchmark of SIMD dot products of the first two vectors of `numbers`.
macro_rules! products {
    ($name:ident, $features:literal, $load:ident of $bytes:literal, $product:path, from $none:path, $operations:literal each) => {
        #[target_feature(enable = $features)]
        pub(crate) fn $name(numbers: &[u8; 4096]) -> f64 {
            // SAFETY: there are 4096 bytes.
            let load = |i: usize| unsafe { $load(numbers.as_ptr().add(i * $bytes).cast()) };
            let (w, x) = (std::hint::black_box(load(0)), std::hint::black_box(load(1)));
            let mut sums = [$none(); CHAINS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = $product(*sum, w, x);
                }
                // Keeps the compiler from folding the rounds into one.
                std::hint::black_box(());
            }
            std::hint::black_box(sums);
            (ROUNDS * CHAINS * $operations) as f64
        }
    };
}

products!(pairs_avx2, "avx2", _mm256_loadu_si256 of 32, add_madd, from _mm256_setzero_si256, 32 each);
products!(pairs_avx_vnni, "avx2,avxvnni", _mm256_loadu_si256 of 32, _mm256_dpwssd_avx_epi32, from _mm256_setzero_si256, 32 each);
products!(pairs_avx512, "avx512f,avx512bw,avx512vl,avx512vnni", _mm512_loadu_si512 of 64, _mm512_dpwssd_epi32, from _mm512_setzero_si512, 64 each);
products!(pairs_bf16, "avx512f,avx512bw,avx512bf16", _mm512_loadu_si512 of 64, add_pairs, from _mm512_setzero_ps, 64 each);

/// Loads operands into two AMX tiles and zeros into two accumulators. No more than four tiles: with
/// hyper-threading each further tile in use slows the products down.
///
/// # Safety
/// AMX tiles must be configured.
unsafe fn fill(numbers: &[u8; 4096]) {
    let at = numbers.as_ptr();
    // SAFETY: the caller has configured tiles; two tiles are 2048 of the 4096 bytes.
    unsafe {
        tile_zero!(0);
        tile_zero!(1);
        tile_load!(2, at, 64);
        tile_load!(3, at.add(1024), 64);
    }
}

/// bf16 AMX tile products.
///
/// # Safety
/// The system must have permitted AMX tiles.
pub(crate) unsafe fn tiles_bf16(numbers: &[u8; 4096]) -> f64 {
    // SAFETY: the caller vouches for the permission.
    unsafe {
        let _tiles = Tiles::configure();
        fill(numbers);
        for _ in 0..ROUNDS / 2 {
            tile_dot_bf16!(0, 2, 3);
            tile_dot_bf16!(1, 2, 3);
        }
    }
    (ROUNDS * 16 * 16 * 32 * 2) as f64
}

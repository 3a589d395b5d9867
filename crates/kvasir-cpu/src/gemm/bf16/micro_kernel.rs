//! bf16 GEMM micro-kernel for CPUs without AMX, bit-identical to the AMX instruction `tdpbf16ps`.
//! The bf16 GEMM and attention (`Q K^T` and `P V`) use it.
//!
//! `C[16 x 16] += A[16 x 32] B[32 x 16]` per step. Order of summation on every instruction set:
//!
//! 1. one chain of fused multiply-adds over the even inputs of the step, starting at zero;
//! 2. one chain over the odd inputs;
//! 3. `c += even + odd`.
//!
//! Operands are converted once to the form that the instruction set multiplies (`load`) and then
//! reused: widened to f32 (`avx512.rs`), or left as bf16 pairs for `vdpbf16ps` (`avx512_bf16.rs`).
//! The order is guarded by `gemm/tests.rs`, which compares all instruction sets bit by bit.

use crate::gemm::bf16::operands::{OperandA, OperandB};
#[cfg(target_arch = "x86_64")]
use crate::gemm::bf16::{avx512, avx512_bf16};
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::float16::{bf16, bf16_pair, f16_pair};
use crate::isa::tile::{LANES, STEP, TILE};
use crate::kernels::Bf16MicroKernel;

impl OperandA {
    /// Converts 16 bf16 rows that start at `base` and are `stride` bytes apart.
    ///
    /// # Safety
    /// 16 rows of 64 bytes must be readable.
    pub(crate) unsafe fn load(&mut self, isa: Isa, base: *const u8, stride: usize) {
        #[cfg(target_arch = "x86_64")]
        if Bf16MicroKernel::of(isa) == Bf16MicroKernel::Avx512Bf16 {
            // SAFETY: the instruction set was detected on this machine; the caller's rows.
            return unsafe { avx512_bf16::load_a(self, base, stride) };
        }
        // SAFETY: the caller's rows.
        unsafe { load_a(isa, &mut self.0, base, stride) };
    }
}

impl OperandB {
    /// Converts one tile in VNNI layout: 16 rows of bf16 input pairs x 16 columns.
    ///
    /// # Safety
    /// 1024 bytes must be readable at `tile`.
    pub(crate) unsafe fn load(&mut self, isa: Isa, tile: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the instruction set was detected on this machine; the caller's tile.
        unsafe {
            match Bf16MicroKernel::of(isa) {
                Bf16MicroKernel::Avx512Bf16 => return avx512_bf16::load_b(self, tile),
                Bf16MicroKernel::Avx512 => return avx512::load_b(self, tile),
                Bf16MicroKernel::Widened => {}
            }
        }
        // SAFETY: the caller's tile.
        unsafe { load_b(isa, &mut self.0, tile) };
    }

    /// Loads a tile of f16, widened to f32.
    ///
    /// # Safety
    /// 1024 bytes must be readable at `tile`.
    pub(crate) unsafe fn load_f16(&mut self, isa: Isa, tile: *const u8) {
        debug_assert!(!isa.has_bf16_dot());
        // SAFETY: the caller's tile.
        unsafe { load_b_f16(isa, &mut self.0, tile) };
    }
}

/// `sums[row] += rows[row] * columns` for the first `sums.len()` rows, a multiple of eight.
pub(crate) fn multiply(isa: Isa, rows: &OperandA, columns: &OperandB, sums: &mut [[f32; LANES]]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction set was detected on this machine.
    unsafe {
        match Bf16MicroKernel::of(isa) {
            Bf16MicroKernel::Avx512Bf16 => return avx512_bf16::multiply(rows, columns, sums),
            Bf16MicroKernel::Avx512 => return avx512::multiply(rows, columns, sums),
            Bf16MicroKernel::Widened => {}
        }
    }
    multiply_by_compiler(isa, rows, columns, sums);
}

/// # Safety
/// As for [`OperandA::load`].
#[inline(always)]
unsafe fn load_a_body(rows: &mut [[f32; STEP]; TILE], base: *const u8, stride: usize) {
    for (n, row) in rows.iter_mut().enumerate() {
        // SAFETY: one of the caller's rows.
        let bits = unsafe { base.wrapping_add(n * stride).cast::<[u16; STEP]>().read_unaligned() };
        for (v, bits) in row.iter_mut().zip(bits) {
            *v = bf16(bits);
        }
    }
}

per_isa! {
    /// # Safety
    /// As for [`OperandA::load`].
    unsafe load_a(rows: &mut [[f32; STEP]; TILE], base: *const u8, stride: usize) => load_a_body
}

/// Widens the pairs of a tile with `widen`.
///
/// # Safety
/// As for [`OperandB::load`].
#[inline(always)]
unsafe fn widen_b(
    [even, odd]: &mut [[[f32; LANES]; TILE]; 2],
    tile: *const u8,
    widen: impl Fn(u32) -> [f32; 2],
) {
    for (i, (even, odd)) in even.iter_mut().zip(odd).enumerate() {
        // SAFETY: a row of the caller's tile.
        let pairs = unsafe { tile.wrapping_add(i * 64).cast::<[u32; LANES]>().read_unaligned() };
        for lane in 0..LANES {
            [even[lane], odd[lane]] = widen(pairs[lane]);
        }
    }
}

/// # Safety
/// As for [`OperandB::load`].
#[inline(always)]
unsafe fn load_b_body(columns: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) {
    // SAFETY: the caller's tile.
    unsafe { widen_b(columns, tile, bf16_pair) };
}

/// # Safety
/// As for [`OperandB::load_f16`].
#[inline(always)]
unsafe fn load_b_f16_body(columns: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) {
    // SAFETY: the caller's tile.
    unsafe { widen_b(columns, tile, f16_pair) };
}

per_isa! {
    /// # Safety
    /// As for [`OperandB::load_f16`].
    unsafe load_b_f16(columns: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) => load_b_f16_body
}

per_isa! {
    /// # Safety
    /// As for [`OperandB::load`].
    unsafe load_b(columns: &mut [[[f32; LANES]; TILE]; 2], tile: *const u8) => load_b_body
}

/// The even (`odd == 0`) or odd FMA chain of `N` rows x 16 columns.
#[inline(always)]
fn chains<const N: usize>(
    rows: &[[f32; STEP]; N],
    columns: &[[f32; LANES]; TILE],
    odd: usize,
) -> [[f32; LANES]; N] {
    let mut sums = [[0f32; LANES]; N];
    for (i, column) in columns.iter().enumerate() {
        for n in 0..N {
            let x = rows[n][2 * i + odd];
            for lane in 0..LANES {
                sums[n][lane] = column[lane].mul_add(x, sums[n][lane]);
            }
        }
    }
    sums
}

/// Rows per register block: 4 x 16 f32 accumulators fit 16 256-bit registers with the operands.
const AT_ONCE: usize = 4;

#[inline(always)]
fn multiply_body(rows: &OperandA, columns: &OperandB, sums: &mut [[f32; LANES]]) {
    for (rows, sums) in rows.0.as_chunks::<AT_ONCE>().0.iter().zip(sums.as_chunks_mut::<AT_ONCE>().0) {
        let even = chains(rows, &columns.0[0], 0);
        let odd = chains(rows, &columns.0[1], 1);
        for n in 0..AT_ONCE {
            for lane in 0..LANES {
                sums[n][lane] += even[n][lane] + odd[n][lane];
            }
        }
    }
}

per_isa! { multiply_by_compiler(rows: &OperandA, columns: &OperandB, sums: &mut [[f32; LANES]]) => multiply_body }

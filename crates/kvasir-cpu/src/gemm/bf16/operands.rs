//! Operands of the bf16 micro-kernel: one step of 32 inputs, in the form that the instruction set
//! multiplies (widened to f32, or bf16 pairs for `vdpbf16ps`).

use crate::isa::tile::{LANES, STEP, TILE};

/// Operand A: 16 rows x 32 inputs.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct OperandA(pub(crate) [[f32; STEP]; TILE]);

/// Operand B: 32 inputs x 16 columns; even inputs, then odd ones.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct OperandB(pub(crate) [[[f32; LANES]; TILE]; 2]);

/// f32 accumulators of 16 rows x 16 columns.
pub(crate) type Accumulators = [[f32; LANES]; TILE];

impl OperandA {
    pub(crate) const NONE: Self = Self([[0.0; STEP]; TILE]);
}

impl OperandB {
    pub(crate) const NONE: Self = Self([[[0.0; LANES]; TILE]; 2]);

    /// Input `2 * pair + odd` of a column. Valid only where operands are widened to f32 (not
    /// AVX-512 BF16).
    #[inline(always)]
    pub(crate) fn number(&self, odd: usize, pair: usize, column: usize) -> f32 {
        self.0[odd][pair][column]
    }
}

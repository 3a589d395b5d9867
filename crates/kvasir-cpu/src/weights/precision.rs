//! The arithmetic precision of a model's matrices, and the default chosen from its checkpoint.

use crate::weights::quant::format::Format;
use crate::weights::source::WeightSource;
use kvasir_formats::{DType, Error};
use kvasir_program::{Op, Program, Role, Weight};

/// MXFP4 tensors of fewer weights are not multiplied as integers.
const MIN_QUANTIZED_EXPERT: usize = 1 << 20;

/// Arithmetic precision of matrix products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Precision {
    /// f32 arithmetic on the weights as stored.
    F32,
    /// bf16 weights times activations split into two bf16 terms (at least 16 bits); all else in
    /// f32.
    Bf16x2,
    /// The fastest batch-invariant kernels: activations in 16-bit integers, bf16 or f32, by weight
    /// type and instruction set.
    #[default]
    Auto,
}

impl Precision {
    /// The minimum precision of a program with these weights:
    ///
    /// - `F32` if all matrices are stored as f32: such checkpoints serve as references.
    /// - `Bf16x2` for MoE models with float experts: router scores lie close together, and rounded
    ///   activations would select other experts. Large MXFP4 experts are exempt, because their
    ///   users expect integer speed.
    /// - `Auto` otherwise.
    ///
    /// The projection of a draft head's features does not count: it must not change the target.
    pub fn least(program: &Program, source: &dyn WeightSource) -> Result<Self, Error> {
        let routed = program.ops.iter().any(|op| matches!(op, Op::Route { .. }));
        let mut least = Self::F32;
        let counts =
            |w: &&Weight| matches!(w.role, Role::Matrix | Role::Experts) && w.name != Program::FEATURES;
        for weight in program.weights.iter().filter(counts) {
            let dtype = source.stored(&weight.name, &weight.shape)?.map(|stored| stored.dtype);
            let weights: usize = weight.shape.iter().product();
            let integers = dtype.is_some_and(|dtype| {
                Format::of(dtype).is_some() && !(dtype == DType::Mxfp4 && weights < MIN_QUANTIZED_EXPERT)
            });
            match dtype {
                Some(DType::F32) => {}
                _ if !routed || integers => return Ok(Self::Auto),
                _ => least = Self::Bf16x2,
            }
        }
        Ok(least)
    }
}

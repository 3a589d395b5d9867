//! Weights that are multiplied in f32 arithmetic: storage widths, FP8 and MXFP4 codes, and panels.
//!
//! A panel is a sequence of parts of [`PART`] inputs x 16 outputs, dequantized to f32 inside the
//! GEMM loop. Knows no kernel; builds on `weights::panels`.

pub(crate) mod fp8;
pub(crate) mod mxfp4;
pub(crate) mod panels;
pub(crate) mod width;

use crate::isa::tile::LANES;

/// Inputs that are dequantized together; also the block size of the formats with scales.
pub(crate) const PART: usize = 32;

/// One dequantized part: `[input][output]`.
pub(crate) type Dequantized = [[f32; LANES]; PART];

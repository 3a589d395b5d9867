//! GEMM and GEMV in f32 arithmetic, and the multiply-add kernel that attention in f32 shares.

pub(crate) mod fma;
pub(crate) mod product;

//! Encoded weights: what each block's bytes mean, and how values become bytes.
//!
//! The arithmetic is f32 in the order in which llama.cpp's reference functions have it, without fused
//! multiply-add, so that both directions agree with published files to the bit.

mod k_decode;
mod legacy_decode;
mod mxfp4;
mod plain;

use crate::{DType, Error, Result};

pub use mxfp4::{E2M1_DOUBLED, e8m0_half};
pub use plain::f8_e4m3;

/// Decodes `out.len()` elements; `bytes` must be exactly theirs. Scales kept in other tensors are not applied.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if dtype.row_bytes(out.len())? != bytes.len() {
        return Err(Error::at(
            "",
            format!("{} bytes are not {} elements of {dtype}", bytes.len(), out.len()),
        ));
    }
    match dtype {
        DType::Q4_0 => blocks(bytes, out, legacy_decode::q4_0),
        DType::Q4_1 => blocks(bytes, out, legacy_decode::q4_1),
        DType::Q5_0 => blocks(bytes, out, legacy_decode::q5_0),
        DType::Q5_1 => blocks(bytes, out, legacy_decode::q5_1),
        DType::Q8_0 => blocks(bytes, out, legacy_decode::q8_0),
        DType::Q2K => blocks(bytes, out, k_decode::q2_k),
        DType::Q3K => blocks(bytes, out, k_decode::q3_k),
        DType::Q4K => blocks(bytes, out, k_decode::q4_k),
        DType::Q5K => blocks(bytes, out, k_decode::q5_k),
        DType::Q6K => blocks(bytes, out, k_decode::q6_k),
        DType::Mxfp4 => blocks(bytes, out, mxfp4::decode),
        _ => plain::decode(dtype, bytes, out),
    }
    Ok(())
}

/// Applies a block's decoder to each block. `N` bytes make `L` values.
fn blocks<const N: usize, const L: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; N], &mut [f32; L]),
) {
    for (block, values) in bytes.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<L>().0) {
        decode(block, values);
    }
}

/// The little-endian f16 at `at`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

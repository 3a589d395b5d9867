//! Dequantize and quantize tensor rows: the byte layout of every block type.
//!
//! The arithmetic is f32 in the operation order of llama.cpp's reference functions, without fused
//! multiply-add. Both directions therefore agree with published files bit for bit. The optimized
//! kernels live in `kvasir-cpu`; this is the reference. Guarded by `tests/encodings.rs`.

mod iq4;
mod k_decode;
mod k_encode;
mod k_fit;
mod k_scales;
mod legacy_decode;
mod legacy_encode;
mod mxfp4;
mod plain;

use crate::dtype::DType;
use crate::error::{Error, Result};
use half::{bf16, f16};

pub use crate::encoding::iq4::{IQ4_VALUES, iq4_xs_scale};
pub use crate::encoding::k_scales::{q3_k_scale, q45_k_scale_min};
pub use crate::encoding::mxfp4::{E2M1_DOUBLED, e8m0_half};
pub use crate::encoding::plain::f8_e4m3;

/// Dequantizes `out.len()` elements. `bytes` must have exactly their size; companion scales are not
/// applied.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if dtype.row_bytes(out.len())? != bytes.len() {
        return Err(Error::at(
            "",
            format!("{} bytes do not encode {} elements of {dtype}", bytes.len(), out.len()),
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
        DType::Iq4Nl => blocks(bytes, out, iq4::nl),
        DType::Iq4Xs => blocks(bytes, out, iq4::xs),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::F8E4M3
        | DType::F8E8M0
        | DType::U8
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::Bool => plain::decode(dtype, bytes, out),
    }
    Ok(())
}

/// Quantizes `values` and appends the bytes to `out`.
///
/// `row` is the row length and must be a multiple of the block length. Non-finite values are
/// refused for block types.
pub fn quantize(dtype: DType, values: &[f32], row: usize, out: &mut Vec<u8>) -> Result<()> {
    dtype.row_bytes(row)?;
    if row == 0 || !values.len().is_multiple_of(row) {
        return Err(Error::at(
            "",
            format!("{} values are not a multiple of the row length {row}", values.len()),
        ));
    }
    if dtype.is_quantized()
        && let Some(at) = values.iter().position(|v| !v.is_finite())
    {
        return Err(Error::at(
            format!("value {at}"),
            format!("`{}` cannot be stored as {dtype}", values[at]),
        ));
    }
    match dtype {
        DType::Q4_0 => each_block(values, out, legacy_encode::q4_0),
        DType::Q4_1 => each_block(values, out, legacy_encode::q4_1),
        DType::Q5_0 => each_block(values, out, legacy_encode::q5_0),
        DType::Q5_1 => each_block(values, out, legacy_encode::q5_1),
        DType::Q8_0 => each_block(values, out, legacy_encode::q8_0),
        DType::Q2K => each_block(values, out, k_encode::q2_k),
        DType::Q3K => each_block(values, out, k_encode::q3_k),
        DType::Q4K => each_block(values, out, k_encode::q4_k),
        DType::Q5K => each_block(values, out, k_encode::q5_k),
        DType::Q6K => each_block(values, out, k_encode::q6_k),
        DType::Mxfp4 => each_block(values, out, mxfp4::encode),
        DType::F32 => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        DType::F16 => out.extend(values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes())),
        DType::BF16 => out.extend(values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes())),
        DType::F64
        | DType::F8E4M3
        | DType::F8E8M0
        | DType::U8
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::Bool
        | DType::Iq4Nl
        | DType::Iq4Xs => return Err(Error::at("", format!("values cannot be stored as {dtype}"))),
    }
    Ok(())
}

/// Whether [`quantize`] can write the type. The codebook search of the nonlinear IQ4 types is not
/// implemented, for instance.
pub(crate) fn is_written(dtype: DType) -> bool {
    let block = vec![0.0; dtype.block_len()];
    quantize(dtype, &block, block.len(), &mut Vec::new()).is_ok()
}

fn each_block<const L: usize, const N: usize>(
    values: &[f32],
    out: &mut Vec<u8>,
    encode: fn(&[f32; L]) -> [u8; N],
) {
    out.reserve(values.len() / L * N);
    for block in values.as_chunks::<L>().0 {
        out.extend(encode(block));
    }
}

/// Applies a block decoder to all blocks; `N` bytes yield `L` values.
fn blocks<const N: usize, const L: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; N], &mut [f32; L]),
) {
    for (block, values) in bytes.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<L>().0) {
        decode(block, values);
    }
}

/// The little-endian f16 at byte offset `at`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

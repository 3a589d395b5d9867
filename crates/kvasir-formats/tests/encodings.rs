//! Quantize and dequantize against recorded bytes of llama.cpp's reference functions, bit for bit.

#![allow(clippy::panic, clippy::unwrap_used)]

use kvasir_formats::{DType, encoding};
use std::path::Path;

/// Encodings that can be read but not written.
const READ_ONLY: [DType; 2] = [DType::Iq4Nl, DType::Iq4Xs];

fn block_types() -> impl Iterator<Item = DType> {
    DType::all().filter(|dtype| dtype.is_quantized())
}

fn written_types() -> impl Iterator<Item = DType> {
    block_types().filter(|dtype| !READ_ONLY.contains(dtype))
}

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encodings").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn floats(name: &str) -> Vec<f32> {
    data(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn decoding_agrees_to_the_bit() {
    for dtype in block_types() {
        let expected = floats(&format!("{dtype}.decoded.bin"));
        let mut got = vec![0.0; expected.len()];
        encoding::dequantize(dtype, &data(&format!("{dtype}.bin")), &mut got).unwrap();
        for (i, (e, g)) in expected.iter().zip(&got).enumerate() {
            assert_eq!(e.to_bits(), g.to_bits(), "{dtype} value {i}: expected {e}, got {g}");
        }
    }
}

#[test]
fn encoding_agrees_to_the_bit() {
    let values = floats("values.bin");
    for dtype in written_types() {
        let expected = data(&format!("{dtype}.bin"));
        let mut got = Vec::new();
        encoding::quantize(dtype, &values, 256, &mut got).unwrap();
        assert_eq!(got.len(), expected.len());
        let block = dtype.block_bytes();
        for (i, (e, g)) in expected.chunks(block).zip(got.chunks(block)).enumerate() {
            assert_eq!(
                e,
                g,
                "{dtype} block {i}: {:?}",
                &values[i * dtype.block_len()..][..dtype.block_len()]
            );
        }
    }
}

#[test]
fn values_that_are_not_finite_are_refused() {
    let mut values = [1.0; 256];
    values[7] = f32::NAN;
    for dtype in written_types() {
        let error = encoding::quantize(dtype, &values, 256, &mut Vec::new()).unwrap_err();
        assert_eq!(error.place(), "value 7", "{dtype}");
    }
    assert!(encoding::quantize(DType::Q4K, &[0.0; 128], 128, &mut Vec::new()).is_err());
    for dtype in READ_ONLY.into_iter().chain([DType::I32]) {
        assert!(encoding::quantize(dtype, &[0.0; 256], 256, &mut Vec::new()).is_err());
    }
}

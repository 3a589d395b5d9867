//! Tests of the quantized GEMM and GEMV: every format, instruction set, row count and packing state
//! gives the same bits, and errs against an f64 product with the
//! dequantized weights by no more than rounding the operands explains. Also: the fused gate and up
//! projection, products of dequantized tiles, and the classes of prefetch tuners.

use crate::gemm::bf16::activations::{Bf16Activations, Bf16Terms};
use crate::gemm::bf16::product::matmul_bf16;
use crate::gemm::output::Output;
use crate::gemm::quant::activations::QuantActivations;
use crate::gemm::quant::gated::Gated;
use crate::gemm::quant::gemv::tuner;
use crate::gemm::quant::product::matmul_quant;
use crate::isa::features::Isa;
use crate::isa::features::tests::isas;
use crate::isa::float16::bf16;
use crate::kernels::MAX_GEMV_ROWS;
use crate::rowwise::activate;
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::weights::bf16::{TileLayout, TileScratch};
use crate::weights::panels::tests::MemoryRows;
use crate::weights::quant::format::{BLOCK, Format};
use crate::weights::quant::panels::QuantPanels;
use crate::weights::random::scales_at;
use kvasir_formats::{DType, encoding};
use kvasir_testkit::Random;

/// Roughly normally distributed, with a standard deviation of about one.
fn normal(random: &mut Random) -> f32 {
    (0..6).map(|_| random.unit() / 2.0).sum::<f32>() * 1.4
}

/// Random encoded rows with scales of plausible size.
fn random_rows(random: &mut Random, dtype: DType, rows: usize, inputs: usize) -> Vec<u8> {
    let n = rows * inputs / dtype.block_len();
    let mut bytes: Vec<u8> = (0..n * dtype.block_bytes()).map(|_| random.bits() as u8).collect();
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        if dtype == DType::Mxfp4 {
            block[0] = 116 + random.below(6) as u8;
        }
        for &at in scales_at(dtype) {
            let sign = if random.one_in(5) && dtype != DType::Q2K { -1.0 } else { 1.0 };
            let d =
                half::f16::from_f32(sign * (0.5 + random.below(1 << 24) as f32 / (1 << 24) as f32) * 0.01);
            block[at..at + 2].copy_from_slice(&d.to_le_bytes());
        }
    }
    bytes
}

/// A packed matrix with its dequantized weights, and activations.
struct Case {
    w: QuantPanels,
    x: QuantActivations,
    dense: Vec<f32>,
    inputs: Vec<f32>,
}

/// How activations are distributed.
#[derive(Clone, Copy, PartialEq)]
enum Channels {
    /// All with the same standard deviation.
    Normal,
    /// A few are 50 to 200 times the others, as in trained models.
    Outliers,
}

fn dtypes() -> impl Iterator<Item = DType> {
    DType::all().filter(|dtype| Format::of(*dtype).is_some())
}

fn case(dtype: DType, outputs: usize, inputs: usize, rows: usize, channels: Channels) -> Case {
    let mut random = Random::new(dtype as u64 * 1000 + (outputs * inputs + rows) as u64);
    let bytes = random_rows(&mut random, dtype, outputs, inputs);
    let mut dense = vec![0.0; outputs * inputs];
    encoding::dequantize(dtype, &bytes, &mut dense).unwrap();
    let rows_of = MemoryRows { step: bytes.len() / outputs, bytes };
    let Ok(w) = QuantPanels::quantized(dtype, (outputs, inputs), rows_of, None) else {
        unreachable!("{dtype}")
    };
    let scales: Vec<f32> = (0..inputs)
        .map(|_| match channels {
            Channels::Outliers if random.one_in(60) => 50.0 + random.below(151) as f32,
            _ => 1.0,
        })
        .collect();
    let values: Vec<f32> = (0..rows * inputs).map(|i| normal(&mut random) * scales[i % inputs]).collect();
    let x = QuantActivations::new(rows, inputs).unwrap();
    for (r, row) in values.chunks_exact(inputs).enumerate() {
        // SAFETY: single-threaded; row indices are below the allocated count.
        unsafe { x.write(Isa::detect(), r, 0, row) };
    }
    Case { w, x, dense, inputs: values }
}

/// The first `rows` rows of a product.
fn product(w: &QuantPanels, x: &QuantActivations, isa: Isa, rows: usize, threads: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * w.outputs];
    let mut output = Output::new(&mut out, rows, w.outputs, w.outputs);
    matmul_quant(&ThreadPool::new(threads), isa, [(w, &mut output)].into_iter(), x, &Prologue::none());
    out
}

/// A number of inputs that the type permits: with a tail of less than a superblock if possible.
fn inputs_of(dtype: DType, whole: usize) -> usize {
    if dtype.block_len() == BLOCK { whole + 3 * BLOCK } else { whole }
}

/// Row counts on both sides of each limit of the kernels.
const ROWS: [usize; 12] = [1, 2, 3, 4, 5, 7, 16, 17, 31, 33, 48, 70];

#[test]
fn every_isa_and_number_of_rows_gives_the_same_bits() {
    for dtype in dtypes() {
        for (outputs, inputs) in [(35, 512), (16, 256), (64, 768)] {
            let case = case(dtype, outputs, inputs_of(dtype, inputs), 70, Channels::Normal);
            let reference = product(&case.w, &case.x, Isa::PORTABLE, 70, 1);
            // First read in place, then partly packed, then packed.
            for packed in 0..3 {
                for isa in isas() {
                    for rows in ROWS {
                        let got = product(&case.w, &case.x, isa, rows, 1 + rows % 2);
                        for (i, (a, b)) in got.iter().zip(&reference).enumerate() {
                            assert_eq!(
                                a.to_bits(),
                                b.to_bits(),
                                "{dtype} {isa} rows {rows} packed {packed} at {i}: {a} {b}"
                            );
                        }
                    }
                }
                assert_eq!(case.w.is_packed(), packed == 2 || packed == 1 && case.w.panels() == 1);
                let threads = ThreadPool::new(2);
                match packed {
                    0 => assert!(case.w.pack_some(&threads, 1).unwrap() > 0),
                    _ => while case.w.pack_some(&threads, usize::MAX).unwrap() > 0 {},
                }
            }
        }
    }
}

/// Checks products against f64 ones. `sigma(w, x)` is the standard deviation of the error that
/// rounding the operands of one output causes.
fn assert_close(case: &Case, got: &[f32], what: &str, sigma: impl Fn(&[f32], &[f32]) -> f64) {
    let outputs = case.w.outputs;
    let inputs = case.dense.len() / outputs;
    for (got, x) in got.chunks_exact(outputs).zip(case.inputs.chunks_exact(inputs)) {
        for ((o, w), got) in case.dense.chunks_exact(inputs).enumerate().zip(got) {
            let products = || w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (exact, size) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
            let (error, bound) = ((f64::from(*got) - exact).abs(), 6.0 * sigma(w, x) + 1e-6 * size);
            assert!(error <= bound, "{what}, output {o}: error {error:e} exceeds {bound:e} of {exact:e}");
        }
    }
}

/// Rounding activations to 16 bits per block.
fn sigma_of_codes(w: &[f32], x: &[f32]) -> f64 {
    let blocks = w.chunks(BLOCK).zip(x.chunks(BLOCK));
    let variance = blocks.map(|(w, x)| {
        let step = f64::from(x.iter().fold(0f32, |max, x| max.max(x.abs()))) / 32767.0;
        w.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() * step * step / 12.0
    });
    variance.sum::<f64>().sqrt()
}

/// Rounding both operands to bf16.
fn sigma_of_bf16(w: &[f32], x: &[f32]) -> f64 {
    let variance = w.iter().zip(x).map(|(&w, &x)| (f64::from(w) * f64::from(x) / 256.0).powi(2) / 6.0);
    variance.sum::<f64>().sqrt()
}

#[test]
fn errors_are_bounded_by_rounding_activations_to_16_bits() {
    for (dtype, channels) in dtypes().flat_map(|d| [(d, Channels::Normal), (d, Channels::Outliers)]) {
        let case = case(dtype, 40, inputs_of(dtype, 512), 33, channels);
        for (isa, rows) in isas().into_iter().flat_map(|isa| [1, 3, 33].map(|rows| (isa, rows))) {
            let got = product(&case.w, &case.x, isa, rows, 2);
            assert_close(&case, &got, &format!("{dtype} {isa} rows {rows}"), sigma_of_codes);
        }
    }
}

#[test]
fn dequantized_tiles_round_weights_to_bf16() {
    for dtype in dtypes() {
        let (outputs, inputs) = (35, inputs_of(dtype, 512));
        let case = case(dtype, outputs, inputs, 1, Channels::Normal);
        case.w.read(&ThreadPool::new(1), |reader| {
            for panel in 0..case.w.panels() {
                let mut scratch = TileScratch::default();
                let tiles = TileLayout::tiles(&reader, panel, &mut scratch);
                for (i, pair) in tiles.as_chunks::<64>().0.iter().enumerate() {
                    for (n, bits) in pair.as_chunks::<2>().0.iter().enumerate() {
                        let (output, input) = (panel * 16 + n / 2, i * 2 + n % 2);
                        let Some(w) = case.dense.get(output * inputs + input).filter(|_| output < outputs)
                        else {
                            continue;
                        };
                        let got = bf16(u16::from_le_bytes(*bits));
                        // Half a unit, and what rounding to f32 first may add.
                        let bound = w.abs().max(1e-6) / 255.9;
                        assert!((got - w).abs() <= bound, "{dtype} {output} {input}: {got} {w}");
                    }
                }
            }
        });
    }
}

#[test]
fn products_of_dequantized_tiles_have_the_same_bits_on_every_isa() {
    for (dtype, channels) in dtypes().flat_map(|d| [(d, Channels::Normal), (d, Channels::Outliers)]) {
        let (outputs, inputs) = (35, inputs_of(dtype, 256));
        let case = case(dtype, outputs, inputs, 33, channels);
        let mut reference: Vec<f32> = Vec::new();
        for packed in [false, true] {
            for (isa, rows) in isas().into_iter().rev().flat_map(|isa| [33, 1, 4, 17].map(|rows| (isa, rows)))
            {
                let x = Bf16Activations::new(rows, inputs, Bf16Terms::One).unwrap();
                for (r, row) in case.inputs.chunks_exact(inputs).take(rows).enumerate() {
                    // SAFETY: single-threaded; row indices are below the allocated count.
                    unsafe { x.write_row(isa, r, row) };
                }
                let mut got = vec![f32::NAN; rows * outputs];
                let mut output = Output::new(&mut got, rows, outputs, outputs);
                matmul_bf16(&ThreadPool::new(2), isa, &case.w, &x, &mut output, &Prologue::none());
                if reference.is_empty() {
                    reference.clone_from(&got);
                    assert_close(&case, &got, &format!("{dtype} {isa}"), sigma_of_bf16);
                }
                assert_eq!(got, reference[..got.len()], "{dtype} {isa} rows {rows} packed {packed}");
            }
            while case.w.pack_some(&ThreadPool::new(2), usize::MAX).unwrap() > 0 {}
        }
    }
}

#[test]
fn fused_gate_and_up_have_the_bits_of_separate_steps() {
    for (isa, dtype) in isas().into_iter().flat_map(|isa| dtypes().map(move |dtype| (isa, dtype))) {
        let inner = if dtype.block_len() == BLOCK { 288 } else { 512 };
        let (gate, up, down) = (
            case(dtype, inner, 256, 70, Channels::Normal),
            case(dtype, inner, 256, 71, Channels::Normal),
            case(dtype, 35, inner, 70, Channels::Normal),
        );
        let activation = kvasir_program::Activation::Silu;
        for rows in [3, 8, 9, 17, 70] {
            let gated = Gated::new(isa, [&gate.w, &up.w], activation, rows);
            assert_eq!(gated.is_some(), rows > MAX_GEMV_ROWS && !isa.tiles);
            let Some(gated) = gated else { continue };
            let (apart, together) =
                (QuantActivations::new(rows, inner).unwrap(), QuantActivations::new(rows, inner).unwrap());
            gated.multiply(&ThreadPool::new(2), &gate.x, rows, &together);
            let product_of = |w| product(w, &gate.x, isa, rows, 2);
            let mut y = vec![f32::NAN; rows * inner];
            activate(isa, &product_of(&gate.w), &product_of(&up.w), activation, &mut y);
            for (r, row) in y.chunks_exact(inner).enumerate() {
                // SAFETY: single-threaded; row indices are below the allocated count.
                unsafe { apart.write(isa, r, 0, row) };
            }
            let of = |x| product(&down.w, x, isa, rows, 1).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(of(&together), of(&apart), "{dtype} rows {rows}");
        }
    }
}

#[test]
fn one_hot_activations_return_the_stored_weights() {
    for dtype in dtypes() {
        let (outputs, inputs) = (35, inputs_of(dtype, 512));
        let mut case = case(dtype, outputs, inputs, 1, Channels::Normal);
        for input in [0, 1, 17, 31, 32, 255, 256, 300, inputs - 1] {
            let mut row = vec![0.0; inputs];
            row[input] = 1.0;
            case.x = QuantActivations::new(1, inputs).unwrap();
            // SAFETY: single-threaded, the only row.
            unsafe { case.x.write(Isa::detect(), 0, 0, &row) };
            let got = product(&case.w, &case.x, Isa::detect(), 1, 1);
            for (o, (w, got)) in case.dense.chunks_exact(inputs).zip(got).enumerate() {
                let error = (w[input] - got).abs();
                assert!(error <= 1e-6 * w[input].abs().max(0.1), "{dtype} {o} {input}: {} {got}", w[input]);
            }
        }
    }
}

#[test]
fn mxfp4_scales_span_the_range_of_their_exponents() {
    let (outputs, inputs) = (16, 64);
    for exponent in [0, 1, 2, 3, 100, 127, 200, 250] {
        let mut bytes = random_rows(&mut Random::new(7), DType::Mxfp4, outputs, inputs);
        bytes.chunks_exact_mut(17).for_each(|block| block[0] = exponent);
        let mut dense = vec![0.0; outputs * inputs];
        encoding::dequantize(DType::Mxfp4, &bytes, &mut dense).unwrap();
        let rows = MemoryRows { step: bytes.len() / outputs, bytes };
        let Ok(w) = QuantPanels::quantized(DType::Mxfp4, (outputs, inputs), rows, None) else {
            unreachable!()
        };
        let x = QuantActivations::new(1, inputs).unwrap();
        let mut row = vec![0.0; inputs];
        // Keeps small and large products within the range of f32.
        row[33] = if exponent < 127 { 1e6 } else { 1e-6 };
        // SAFETY: single-threaded, the only row.
        unsafe { x.write(Isa::detect(), 0, 0, &row) };
        for (w, got) in dense.chunks_exact(inputs).zip(product(&w, &x, Isa::detect(), 1, 1)) {
            let exact = w[33] * row[33];
            assert!((got - exact).abs() <= exact.abs() * 1e-6, "2^({exponent} - 127): {got} {exact}");
        }
    }
}

#[test]
fn a_reader_keeps_the_packing_state_of_its_creation() {
    let case = case(DType::Q4_0, 64, 256, 16, Channels::Normal);
    let threads = ThreadPool::new(1);
    case.w.read(&threads, |reader| {
        // Another engine may pack panels while this reader is in use.
        while case.w.pack_some(&threads, usize::MAX).unwrap() > 0 {}
        assert!(case.w.is_packed() && !reader.is_packed());
    });
    case.w.read(&threads, |reader| assert!(reader.is_packed()));
}

#[test]
fn prefetch_tuners_differ_by_rows_and_panel_length() {
    let format = Format::of(DType::Q8_0).unwrap();
    let of = |blocks, rows| std::ptr::from_ref(tuner(format, blocks, rows));
    let same = |a, b| of(32, a) == of(32, b);
    assert!(same(1, 1) && same(2, 3) && same(4, 8) && same(8, 32));
    assert!(!same(1, 2) && !same(3, 4));
    // Nor do long and short panels share a tuner.
    assert!(of(64, 1) == of(96, 1) && of(32, 1) != of(96, 1) && of(0, 1) == of(8, 1));
    assert!(of(1024, 1) == of(1 << 20, 1));
}

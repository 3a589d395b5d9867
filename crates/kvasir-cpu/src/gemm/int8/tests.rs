//! Tests of the integer GEMM and GEMV: every format, instruction set, row count and packing state
//! gives the bits of the portable kernel, close to an f64 product with the dequantized weights.
//! Also: unpacking ahead, the fused gate and up projection, MXFP4 and 16-bit accuracy, and the
//! classes of prefetch tuners.

use crate::gemm::int8::activations::QuantActivations;
use crate::gemm::int8::block::gemm;
use crate::gemm::int8::gated::Gated;
#[cfg(target_arch = "x86_64")]
use crate::gemm::int8::gemv_x86::tuner;
use crate::gemm::int8::product::matmul;
use crate::gemm::output::Output;
use crate::isa::features::Isa;
use crate::isa::features::tests::isas;
use crate::isa::tile::LANES;
use crate::kernels::Int8Gemm;
use crate::rowwise::gate as activate;
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::threads::worker::Worker;
use crate::weights::int8::format::Format;
use crate::weights::int8::layouts::with_layout;
use crate::weights::int8::panels::QuantPanels;
use crate::weights::panels::tests::MemoryRows;
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

/// A packed matrix with its dequantized weights, and activations quantized and in f32.
struct Case {
    w: QuantPanels,
    x: QuantActivations,
    dense: Vec<f32>,
    inputs: Vec<f32>,
}

/// Every encoding in its own format, and some in the 16-bit format of small matrices.
fn formats() -> impl Iterator<Item = (DType, Format)> {
    let own = DType::all().filter_map(|dtype| Some((dtype, Format::of(dtype)?)));
    own.chain([DType::Q8_0, DType::Q4K].map(|dtype| (dtype, Format::INT16)))
}

fn case(format: Format, dtype: DType, outputs: usize, inputs: usize, rows: usize) -> Case {
    let mut random = Random::new(dtype as u64 * 1000 + (outputs * inputs + rows) as u64);
    let bytes = random_rows(&mut random, dtype, outputs, inputs);
    let mut dense = vec![0.0; outputs * inputs];
    encoding::dequantize(dtype, &bytes, &mut dense).unwrap();
    let rows_of = MemoryRows { step: bytes.len() / outputs, bytes };
    let w = QuantPanels::in_format(format, dtype, (outputs, inputs), rows_of);
    let values: Vec<f32> = (0..rows * inputs).map(|_| normal(&mut random)).collect();
    let x = QuantActivations::new(rows, inputs).unwrap();
    for (r, row) in values.chunks_exact(inputs).enumerate() {
        // SAFETY: single-threaded; row indices are below the allocated count.
        unsafe { x.write_row(Isa::detect(), r, row) };
    }
    Case { w, x, dense, inputs: values }
}

/// The first `rows` rows of a product.
fn product(w: &QuantPanels, x: &QuantActivations, isa: Isa, rows: usize, threads: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * w.outputs];
    let mut output = Output::new(&mut out, rows, w.outputs, w.outputs);
    matmul(&ThreadPool::new(threads), isa, [(w, &mut output)].into_iter(), x, &Prologue::none());
    out
}

/// The product of a case's first `rows` rows.
fn run(case: &Case, isa: Isa, rows: usize, threads: usize) -> Vec<f32> {
    product(&case.w, &case.x, isa, rows, threads)
}

#[test]
fn every_level_and_number_of_rows_gives_the_same_bits() {
    for (dtype, format) in formats() {
        for (outputs, inputs) in [(35, 512), (16, 256), (64, 768)] {
            let case = case(format, dtype, outputs, inputs, 70);
            let reference = run(&case, Isa::PORTABLE, 70, 1);
            // First read in place, then partly packed, then packed.
            for packed in 0..3 {
                for isa in isas() {
                    for rows in [1, 2, 3, 4, 5, 7, 16, 17, 32, 33, 48, 49, 70] {
                        let got = run(&case, isa, rows, 1 + rows % 2);
                        for (i, (a, b)) in got.iter().zip(&reference).enumerate() {
                            let bits = (a.to_bits(), b.to_bits());
                            assert_eq!(bits.0, bits.1, "{dtype} {isa} rows {rows} packed {packed} at {i}");
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

#[test]
fn results_are_those_of_the_decoded_weights() {
    for (dtype, format) in formats() {
        let inputs = if dtype.block_len() == 32 { 416 } else { 512 };
        let case = case(format, dtype, 40, inputs, 3);
        let got = run(&case, Isa::detect(), 3, 2);
        let mut worst = 0f64;
        for (row, x) in case.inputs.chunks_exact(inputs).enumerate() {
            for (o, w) in case.dense.chunks_exact(inputs).enumerate() {
                let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                let size: f64 =
                    w.iter().zip(x).map(|(&w, &x)| (f64::from(w) * f64::from(x)).powi(2)).sum::<f64>().sqrt();
                worst = worst.max((f64::from(got[row * 40 + o]) - exact).abs() / size);
            }
        }
        // Int8 activations: an error of a few percent of one output's standard deviation.
        assert!(worst < 0.06, "{dtype}: {worst}");
    }
}

/// Kernels unpack the probable next panels ahead. The thread may multiply other panels next, at
/// another instruction set.
#[test]
fn superblocks_unpacked_ahead_serve_only_their_panels() {
    let rows = 16;
    for (dtype, format) in formats() {
        let both = [96, 97].map(|outputs| case(format, dtype, outputs, 768, rows));
        let threads = ThreadPool::new(1);
        both.iter().for_each(|case| while case.w.pack_some(&threads, usize::MAX).unwrap() > 0 {});
        let wanted = both.each_ref().map(|case| run(case, Isa::PORTABLE, rows, 1));
        let kernels: Vec<Int8Gemm> =
            isas().into_iter().filter_map(|isa| Int8Gemm::of(format, isa, rows)).collect();
        let mut worker = Worker::new(0);
        let pieces = [(0, 0), (0, 2), (1, 2), (1, 4), (0, 4), (0, 2), (0, 4), (1, 0), (1, 2), (1, 4), (1, 6)];
        // One kernel for all work items, and alternating kernels.
        for turn in 0..2 * kernels.len() {
            for (n, (which, first)) in pieces.into_iter().enumerate() {
                let (case, wanted) = (&both[which], &wanted[which]);
                let kernel = kernels[(turn / 2 + n * (turn % 2)) % kernels.len()];
                let (outputs, end) = (case.w.outputs, case.w.panels().min(first + 2));
                let mut out = vec![f32::NAN; rows * outputs];
                let to = Output::new(&mut out, rows, outputs, outputs);
                let w = case.w.packed_reader().unwrap();
                // SAFETY: the machine has the kernel's instructions, the rows exist, and no other
                // thread has the outputs.
                with_layout!(format, L => unsafe {
                    gemm::<L>(kernel, w, first..end, &case.x, 0..rows, &mut worker, &to);
                });
                for (out, wanted) in out.chunks_exact(outputs).zip(wanted.chunks_exact(outputs)) {
                    let some = first * LANES..outputs.min(end * LANES);
                    assert_eq!(
                        out[some.clone()],
                        wanted[some],
                        "{dtype} {kernel:?}, piece {n} of turn {turn}"
                    );
                }
            }
        }
    }
}

#[test]
fn fused_gate_and_up_have_the_bits_of_separate_steps() {
    for (isa, (dtype, format)) in isas().into_iter().flat_map(|isa| formats().map(move |f| (isa, f))) {
        let inner = if dtype.block_len() == 32 { 288 } else { 512 };
        let (gate, up, down) = (
            case(format, dtype, inner, 256, 70),
            case(format, dtype, inner, 256, 71),
            case(format, dtype, 35, inner, 70),
        );
        let activation = kvasir_program::Activation::Silu;
        for rows in [8, 9, 16, 17, 40, 70] {
            let gated = Gated::new(isa, [&gate.w, &up.w], activation, rows);
            assert!(rows < 40 || gated.is_some() == isa.has_avx2());
            let Some(gated) = gated else { continue };
            let (apart, together) =
                (QuantActivations::new(rows, inner).unwrap(), QuantActivations::new(rows, inner).unwrap());
            gated.multiply(&ThreadPool::new(2), &gate.x, rows, &together);
            let product_of = |w| product(w, &gate.x, isa, rows, 2);
            let mut y = vec![f32::NAN; rows * inner];
            activate(isa, &product_of(&gate.w), &product_of(&up.w), activation, &mut y);
            for (r, row) in y.chunks_exact(inner).enumerate() {
                // SAFETY: single-threaded; row indices are below the allocated count.
                unsafe { apart.write_row(isa, r, row) };
            }
            let of = |x| product(&down.w, x, isa, rows, 1).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(of(&together), of(&apart), "{dtype} rows {rows}");
        }
    }
}

/// The effective weights of one input: a one-hot activation is quantized to 127 with scale 1/127.
fn column(case: &Case, input: usize) -> Vec<f32> {
    let inputs = case.dense.len() / case.w.outputs;
    let x = QuantActivations::new(1, inputs).unwrap();
    let mut row = vec![0.0; inputs];
    row[input] = 1.0;
    // SAFETY: single-threaded, the only row.
    unsafe { x.write_row(Isa::detect(), 0, &row) };
    product(&case.w, &x, Isa::detect(), 1, 1)
}

#[test]
fn mxfp4_is_exact_within_three_powers_of_two() {
    let (outputs, inputs) = (35, 416);
    let mut bytes = random_rows(&mut Random::new(7), DType::Mxfp4, outputs, inputs);
    for (n, block) in bytes.chunks_exact_mut(17).enumerate() {
        // One exponent range per row; with a largest scale byte below 8 the unit would not be a
        // normal number.
        let least = [7, 100, 120, 240][n / 13 % 4];
        block[0] = least + block[0] % 4;
    }
    let mut dense = vec![0.0; outputs * inputs];
    encoding::dequantize(DType::Mxfp4, &bytes, &mut dense).unwrap();
    let rows = MemoryRows { step: bytes.len() / outputs, bytes };
    let w = QuantPanels::in_format(Format::MXFP4, DType::Mxfp4, (outputs, inputs), rows);
    let case = Case { w, x: QuantActivations::new(1, inputs).unwrap(), dense, inputs: Vec::new() };
    for input in [0, 1, 31, 32, 255, 256, 300, inputs - 1] {
        for (o, (w, got)) in case.dense.chunks_exact(inputs).zip(column(&case, input)).enumerate() {
            let error = (w[input] - got).abs();
            assert!(error <= w[input].abs() * 1e-6, "output {o} input {input}: {} {got}", w[input]);
        }
    }
}

#[test]
fn int16_weights_equal_the_decoded_weights() {
    for dtype in DType::all().filter(|dtype| Format::of(*dtype).is_some()) {
        let (outputs, inputs) = (35, if dtype.block_len() == 32 { 416 } else { 512 });
        let case = case(Format::INT16, dtype, outputs, inputs, 1);
        assert_eq!(Format::for_matrix(dtype, outputs * inputs), Some(Format::INT16));
        assert_ne!(Format::for_matrix(dtype, 1 << 20), Some(Format::INT16));
        for i in [0, 1, 255, 256, 300, inputs - 1] {
            let got = column(&case, i);
            for (o, (w, got)) in case.dense.chunks_exact(inputs).zip(got).enumerate() {
                let largest = w[i / 256 * 256..inputs.min(i / 256 * 256 + 256)]
                    .iter()
                    .fold(0f32, |a, w| a.max(w.abs()));
                // Half of the unit, which is rounded up to a bf16.
                assert!(
                    (w[i] - got).abs() < largest / 32_639.0 * 0.51,
                    "{dtype} output {o} input {i}: {} {got}",
                    w[i]
                );
            }
        }
    }
}

#[test]
fn a_reader_knows_what_was_packed_when_it_was_made() {
    let case = case(Format::Q4_0, DType::Q4_0, 64, 256, 16);
    let threads = ThreadPool::new(1);
    case.w.read(&threads, |reader| {
        // As another engine may do between two work items of this one.
        while case.w.pack_some(&threads, usize::MAX).unwrap() > 0 {}
        assert!(case.w.is_packed() && !reader.is_packed());
    });
    case.w.read(&threads, |reader| assert!(reader.is_packed()));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn prefetch_tuners_differ_by_rows_and_panel_length() {
    let format = Format::of(DType::Q8_0).unwrap();
    let of = |superblocks, rows| std::ptr::from_ref(tuner(format, superblocks, rows));
    let same = |a, b| of(4, a) == of(4, b);
    assert!(same(1, 1) && same(2, 3) && same(4, 8) && same(8, 32));
    assert!(!same(1, 2) && !same(3, 4));
    // Nor do long and short panels share a tuner.
    assert!(of(8, 1) == of(12, 1) && of(4, 1) != of(12, 1) && of(0, 1) == of(1, 1));
    assert!(of(128, 1) == of(1 << 20, 1));
}

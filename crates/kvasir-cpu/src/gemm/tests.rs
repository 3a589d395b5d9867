//! Tests of the float GEMM and GEMV: every instruction set and row count gives the same bits, close
//! to an f64 reference; in-place matrices give the bits of packed ones.
#![allow(clippy::unwrap_used)]

use crate::gemm::bf16::activations::{Bf16Activations, Bf16Terms};
use crate::gemm::bf16::product::matmul_bf16;
use crate::gemm::f32::product::{ActivationRows, matmul_f32};
use crate::gemm::output::Output;
use crate::isa::features::Isa;
use crate::isa::features::tests::{isas, value};
use crate::isa::float16::{bf16, round_bf16};
use crate::threads::pool::ThreadPool;
use crate::threads::prologue::Prologue;
use crate::weights::bf16::Bf16Panels;
use crate::weights::f32::panels::F32Panels;
use crate::weights::f32::width::Width;
use crate::weights::panels::tests::MemoryRows;
use kvasir_formats::{DType, encoding};

#[test]
fn every_level_and_number_of_rows_gives_the_same_bits() {
    for (outputs, inputs) in [(40, 96), (16, 32), (77, 200)] {
        let threads = ThreadPool::new(2);
        let row = |n: usize, out: &mut [f32]| {
            out.iter_mut().enumerate().for_each(|(i, v)| *v = value(n * 7919 + i));
            Ok(())
        };
        let w = Bf16Panels::rounded(&threads, (outputs, inputs), None, &row).unwrap();
        let wide = F32Panels::numbers(&threads, (outputs, inputs), Width::F32, None, &row).unwrap();
        let values: Vec<f32> = (0..70 * inputs).map(|i| value(i + 1_000_000)).collect();
        let [once, twice, whole] = [Bf16Terms::One, Bf16Terms::Two, Bf16Terms::Whole].map(|terms| {
            let x = Bf16Activations::new(70, inputs, terms).unwrap();
            for (r, v) in values.chunks_exact(inputs).enumerate() {
                // SAFETY: single-threaded; row indices are below the allocated count.
                unsafe { x.write_row(Isa::detect(), r, v) };
            }
            x
        });
        let run = |isa, rows: usize| {
            let mut out = vec![f32::NAN; rows * outputs * 4];
            let (a, rest) = out.split_at_mut(rows * outputs);
            let (b, rest) = rest.split_at_mut(rows * outputs);
            let (c, d) = rest.split_at_mut(rows * outputs);
            let output = |out| Output::new(out, rows, outputs, outputs);
            let rows_f32 = ActivationRows { values: &values, stride: inputs };
            matmul_bf16(&threads, isa, &w, &once, &mut output(a), &Prologue::none());
            matmul_bf16(&threads, isa, &w, &twice, &mut output(c), &Prologue::none());
            if isa.has_bf16_dot() {
                d.fill(0.0);
            } else {
                matmul_bf16(&threads, isa, &w, &whole, &mut output(d), &Prologue::none());
            }
            matmul_f32(&threads, isa, &wide, rows_f32, &mut output(b));
            [a.to_vec(), b.to_vec(), c.to_vec(), d.to_vec()]
        };
        let reference = run(Isa::PORTABLE, 70);
        for isa in isas() {
            for rows in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 25, 32, 33, 70] {
                let got = run(isa, rows);
                // Activations in f32 are for instruction sets without products of bf16.
                let compared = if isa.has_bf16_dot() { 3 } else { 4 };
                for (got, want) in got.iter().zip(&reference).take(compared) {
                    assert!(got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{isa} {rows}");
                }
            }
        }
        let exact = |weight: &dyn Fn(usize) -> f32, r: usize, o: usize| -> f64 {
            let product = |i| f64::from(weight(o * 7919 + i)) * f64::from(values[r * inputs + i]);
            (0..inputs).map(product).sum()
        };
        let narrow = |i| bf16(round_bf16(value(i)));
        for i in 0..70 * outputs {
            let (r, o) = (i / outputs, i % outputs);
            let [once, wide, twice, whole] = reference.each_ref().map(|all| f64::from(all[i]));
            let (want, narrow) = (exact(&value, r, o), exact(&narrow, r, o));
            assert!((once - want).abs() < 0.15, "bf16: {once} {want}");
            assert!((wide - want).abs() < 1e-4, "f32: {wide} {want}");
            assert!((twice - narrow).abs() < 1e-3, "bf16 times two terms: {twice} {narrow}");
            assert!((whole - narrow).abs() < 1e-4, "bf16 times f32: {whole} {narrow}");
        }
    }
}

#[test]
fn rows_read_in_place_give_the_bits_of_packed_ones() {
    let (outputs, threads) = (77, ThreadPool::new(2));
    for (dtype, inputs) in [(DType::BF16, 200), (DType::BF16, 96), (DType::F16, 200)] {
        let values: Vec<f32> = (0..outputs * inputs).map(value).collect();
        let mut bytes = Vec::new();
        for row in values.chunks_exact(inputs) {
            encoding::quantize(dtype, row, inputs, &mut bytes).unwrap();
        }
        let mut stored = vec![0.0; values.len()];
        encoding::dequantize(dtype, &bytes, &mut stored).unwrap();
        let row = |n: usize, out: &mut [f32]| {
            out.copy_from_slice(&stored[n * inputs..][..inputs]);
            Ok(())
        };
        let floats = || {
            let rows = MemoryRows { step: bytes.len() / outputs, bytes: bytes.clone() };
            Bf16Panels::floats(dtype, (outputs, inputs), rows, None)
        };
        let (w, packed, terms) = match dtype {
            DType::F16 => (floats(), floats(), Bf16Terms::Whole),
            _ => (
                floats(),
                Bf16Panels::rounded(&threads, (outputs, inputs), None, &row).unwrap(),
                Bf16Terms::One,
            ),
        };
        while packed.pack_some(&threads, usize::MAX).unwrap() > 0 {}
        let x = Bf16Activations::new(70, inputs, terms).unwrap();
        for r in 0..70 {
            let row: Vec<f32> = (0..inputs).map(|i| value(r * inputs + i + 1_000_000)).collect();
            // SAFETY: single-threaded; row indices are below the allocated count.
            unsafe { x.write_row(Isa::detect(), r, &row) };
        }
        for part in 0..3 {
            for isa in isas() {
                for rows in [1, 5, 16, 40, 70] {
                    let run = |w: &Bf16Panels| {
                        let mut out = vec![f32::NAN; rows * outputs];
                        let mut output = Output::new(&mut out, rows, outputs, outputs);
                        matmul_bf16(&threads, isa, w, &x, &mut output, &Prologue::none());
                        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                    };
                    assert!(run(&w) == run(&packed), "{dtype} {isa} {rows} rows, part {part}");
                }
            }
            assert_eq!(w.is_packed(), part == 2);
            match part {
                0 => assert!(w.pack_some(&threads, 1).unwrap() > 0),
                _ => while w.pack_some(&threads, usize::MAX).unwrap() > 0 {},
            }
        }
    }
}

#[test]
fn f16_weights_are_multiplied_unrounded() {
    let (outputs, inputs, rows) = (40, 200, 33);
    let weights: Vec<f32> = (0..outputs * inputs)
        .map(|i| half::f16::from_f32(value(i) * if i % 7 == 0 { 1e-6 } else { 1.0 }).to_f32())
        .collect();
    let bytes = weights.iter().flat_map(|w| half::f16::from_f32(*w).to_le_bytes()).collect();
    let w = Bf16Panels::floats(DType::F16, (outputs, inputs), MemoryRows { step: inputs * 2, bytes }, None);
    let x = Bf16Activations::new(rows, inputs, Bf16Terms::Whole).unwrap();
    let values: Vec<f32> = (0..rows * inputs).map(|i| value(i + 1_000_000)).collect();
    for (r, row) in values.chunks_exact(inputs).enumerate() {
        // SAFETY: single-threaded; row indices are below the allocated count.
        unsafe { x.write_row(Isa::detect(), r, row) };
    }
    let mut reference: Vec<f32> = Vec::new();
    for (isa, rows) in isas().into_iter().rev().flat_map(|isa| [rows, 1, 4, 9].map(|rows| (isa, rows))) {
        let mut got = vec![f32::NAN; rows * outputs];
        let mut output = Output::new(&mut got, rows, outputs, outputs);
        matmul_bf16(&ThreadPool::new(2), isa, &w, &x, &mut output, &Prologue::none());
        if reference.is_empty() {
            reference.clone_from(&got);
        }
        assert_eq!(got, reference[..got.len()], "{isa} {rows}");
    }
    for (got, x) in reference.chunks_exact(outputs).zip(values.chunks_exact(inputs)) {
        for (got, w) in got.iter().zip(weights.chunks_exact(inputs)) {
            let exact: f64 = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            assert!((f64::from(*got) - exact).abs() < 1e-4, "{got} {exact}");
        }
    }
}

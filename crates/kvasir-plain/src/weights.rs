//! Weights dequantized to f32, and matrix products over strided views of them.

use kvasir_formats::{Checkpoint, Error};
use kvasir_program::{Matrix, Program, Vector, WeightId};
use std::{collections::HashMap, ops::Range, sync::Arc};

use crate::math::{add_scaled, dot};

/// A program's weights in f32. Programs of one checkpoint share them by name.
pub(crate) struct Weights {
    /// By `WeightId`: the tensor, and the range of its elements that belongs to the weight.
    data: Vec<(Arc<Vec<f32>>, Range<usize>)>,
}

impl Weights {
    /// Dequantizes the weights of `program` that are not in `shared` yet; checks their shapes.
    pub(crate) fn load(
        program: &Program,
        checkpoint: &Checkpoint,
        shared: &mut HashMap<String, Arc<Vec<f32>>>,
    ) -> Result<Self, Error> {
        let mut data = Vec::with_capacity(program.weights.len());
        for id in 0..program.weights.len() as u32 {
            let weight = program.weight(program.resolve(WeightId(id)));
            if let Some(have) = shared.get(&weight.name) {
                data.push((Arc::clone(have), weight.elements()));
                continue;
            }
            let (shape, values) = checkpoint.dense(&weight.name)?;
            if shape != weight.shape {
                let why = format!("has shape {shape:?}, the program wants {:?}", weight.shape);
                return Err(Error::at(format!("tensor {}", weight.name), why));
            }
            let values = Arc::new(values);
            shared.insert(weight.name.clone(), Arc::clone(&values));
            data.push((values, weight.elements()));
        }
        Ok(Self { data })
    }

    pub(crate) fn get(&self, id: WeightId) -> &[f32] {
        let (values, part) = &self.data[id.0 as usize];
        &values[part.clone()]
    }

    /// One row of a table (embedding lookup).
    pub(crate) fn row(&self, id: WeightId, row: usize, width: usize) -> &[f32] {
        &self.get(id)[row * width..(row + 1) * width]
    }

    /// One element of a strided vector (a bias).
    fn number(&self, vector: &Vector, place: usize) -> f32 {
        self.get(vector.weight)[vector.offset + place * vector.stride]
    }

    /// GEMM: matrix times each row of `x`. Rows of `x` start `x_stride` apart, rows of the result
    /// `y_stride`.
    pub(crate) fn multiply(&self, m: &Matrix, x: &[f32], x_stride: usize, y: &mut [f32], y_stride: usize) {
        let rows = || x.chunks(x_stride).map(|row| &row[..m.inputs]);
        let data = &self.get(m.weight)[m.offset..];
        if m.input_stride == 1 {
            // Outputs in the outer loop: each weight row is read once for all rows of x.
            for output in 0..m.outputs {
                let weights = &data[output * m.output_stride..][..m.inputs];
                for (x, y) in rows().zip(y.chunks_mut(y_stride)) {
                    y[output] = dot(weights, x);
                }
            }
        } else {
            for (x, y) in rows().zip(y.chunks_mut(y_stride)) {
                y[..m.outputs].fill(0.0);
                for (input, x) in x.iter().enumerate() {
                    let column = &data[input * m.input_stride..];
                    if m.output_stride == 1 {
                        add_scaled(&mut y[..m.outputs], *x, column);
                        continue;
                    }
                    let places = column.iter().step_by(m.output_stride);
                    y[..m.outputs].iter_mut().zip(places).for_each(|(y, w)| *y += x * w);
                }
            }
        }
        if let Some(bias) = &m.bias {
            for y in y.chunks_mut(y_stride) {
                (0..m.outputs).for_each(|output| y[output] += self.number(bias, output));
            }
        }
    }
}

//! The weight schema: named tensors, and matrices as strided views into them.
//!
//! `element(output, input) = weight[offset + output * output_stride + input * input_stride]`.
//!
//! Strides express fused QKV, interleaved gate/up, transposed, per-head and per-expert matrices
//! without a copy and without an op of their own.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// An index into [`Program::weights`](crate::ir::program::Program::weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightId(pub u32);

/// The use of a weight. Quantization rules and backends' memory layouts depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding: one row per token id.
    Embedding,
    /// LM head: hidden state to logits.
    Head,
    /// Weight or bias of a norm.
    Norm,
    /// A dense matrix: every token is multiplied with it.
    Matrix,
    /// Expert matrices, of which each token uses a few (MoE).
    Experts,
    /// A router's matrix: small, and sensitive to quantization.
    Router,
    /// Bias of a linear projection.
    Bias,
    /// Attention sinks: one logit per query head.
    Sinks,
    /// Convolution, decay, time step and skip weights of recurrent layers.
    Recurrence,
}

/// One tensor that the program needs from the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// The Hugging Face name.
    pub name: String,
    /// Dimensions, the slowest first (row-major).
    pub shape: Vec<usize>,
    /// Its use.
    pub role: Role,
    /// A tied weight: the one whose bytes are used instead.
    ///
    /// The checkpoint need not contain this tensor; if it does, the tensor is a copy.
    pub tie: Option<WeightId>,
    /// Elements per quantization block, which lies in one row; 1 for unquantized types. Only whole
    /// blocks can be dequantized.
    #[serde(default = "one")]
    pub block: usize,
    /// The elements of the flattened tensor that the weight consists of; `None` for all of them.
    /// Only sharded vectors and convolution weights have a part; a sharded matrix is a [`Matrix`]
    /// view of the whole weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Range<usize>>,
}

impl Weight {
    /// The elements of the flattened tensor that the weight consists of.
    pub fn elements(&self) -> Range<usize> {
        self.part.clone().unwrap_or_else(|| 0..self.shape.iter().product())
    }
}

const fn one() -> usize {
    1
}

/// A strided vector inside a weight (a bias).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// The weight that contains it.
    pub weight: WeightId,
    /// Offset of element 0, in elements.
    pub offset: usize,
    /// Elements between neighbors.
    pub stride: usize,
}

/// A matrix inside a weight: a strided view, counted in elements of the weight in row-major order.
///
/// `element(output, input) = weight[offset + output * output_stride + input * input_stride]`.
///
/// Most matrices are whole weights of shape [outputs, inputs]. The strides describe the others: an
/// expert of a stack, every second row (interleaved gate and up), or a transposed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// The weight that contains it.
    pub weight: WeightId,
    /// Offset of element (0, 0).
    pub offset: usize,
    /// Number of outputs (rows).
    pub outputs: usize,
    /// Number of inputs (columns).
    pub inputs: usize,
    /// Elements between the rows of two neighboring outputs.
    pub output_stride: usize,
    /// Elements between neighboring inputs; 1 if rows are contiguous.
    pub input_stride: usize,
    /// Bias, added to the outputs.
    pub bias: Option<Vector>,
}

impl Matrix {
    /// A whole weight of shape [outputs, inputs], without a bias.
    pub fn whole(weight: WeightId, outputs: usize, inputs: usize) -> Self {
        Self { weight, offset: 0, outputs, inputs, output_stride: inputs, input_stride: 1, bias: None }
    }

    /// Adds a bias: a weight with one element per output.
    #[must_use]
    pub fn with_bias(self, weight: Option<WeightId>) -> Self {
        Self { bias: weight.map(|weight| Vector { weight, offset: 0, stride: 1 }), ..self }
    }

    /// The view of a range of its outputs, with their biases (column-parallel).
    #[must_use]
    pub fn slice_outputs(self, outputs: Range<usize>) -> Self {
        let shift = |bias: Vector| Vector { offset: bias.offset + outputs.start * bias.stride, ..bias };
        Self {
            offset: self.offset + outputs.start * self.output_stride,
            outputs: outputs.len(),
            bias: self.bias.map(shift),
            ..self
        }
    }

    /// The view of a range of its inputs, with the complete bias (row-parallel).
    #[must_use]
    pub fn slice_inputs(self, inputs: Range<usize>) -> Self {
        Self { offset: self.offset + inputs.start * self.input_stride, inputs: inputs.len(), ..self }
    }

    /// The stored rows that its outputs read, for a weight whose rows have `row_len` elements.
    /// `None` unless each output is one contiguous column range, equal for all, of one stored row.
    ///
    /// All leading dimensions of the weight count as rows. Only such matrices can be dequantized
    /// row by row.
    pub fn stored_rows(&self, row_len: usize) -> Option<StoredRows> {
        let row_len = row_len.max(1);
        let start = self.offset % row_len;
        let rows = self.input_stride == 1
            && start + self.inputs <= row_len
            && self.output_stride.is_multiple_of(row_len);
        let (first, step) = (self.offset / row_len, self.output_stride / row_len);
        rows.then(|| StoredRows { first, step, columns: start..start + self.inputs })
    }
}

/// The stored rows of a matrix: output `n` is `columns` of stored row `first + n * step`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRows {
    /// Stored row of output 0.
    pub first: usize,
    /// Stored rows from one output to the next.
    pub step: usize,
    /// Column range within each stored row, in elements.
    pub columns: Range<usize>,
}

/// A family of equal matrices: all experts' gates, or one matrix per head. Matrix `n` is the first,
/// moved by `n` strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrices {
    /// Number of matrices.
    pub count: usize,
    /// Matrix 0.
    pub first: Matrix,
    /// Step in weight ids from one matrix to the next; also for the bias.
    pub weight_stride: u32,
    /// Step in elements from one matrix to the next, within one weight.
    pub offset_stride: usize,
    /// Step in elements from one bias to the next.
    pub bias_stride: usize,
}

impl Matrices {
    /// The sub-family of the matrices numbered `of`.
    #[must_use]
    pub fn range(&self, of: Range<usize>) -> Self {
        Self { count: of.len(), first: self.nth(of.start), ..*self }
    }

    /// Matrix number `n`.
    pub fn nth(&self, n: usize) -> Matrix {
        let weight = |id: WeightId| WeightId(id.0 + self.weight_stride * n as u32);
        let mut matrix = self.first;
        matrix.weight = weight(matrix.weight);
        matrix.offset += self.offset_stride * n;
        if let Some(bias) = &mut matrix.bias {
            bias.weight = weight(bias.weight);
            bias.offset += self.bias_stride * n;
        }
        matrix
    }
}

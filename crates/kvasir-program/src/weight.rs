use serde::{Deserialize, Serialize};

/// A place in [`Program::weights`](crate::Program::weights).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightId(pub u32);

/// What a weight is for. Conversion rules and backends' layouts go by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A row per token id.
    Embedding,
    /// From the hidden state to logits.
    Head,
    /// Scales of a norm, or what a layer norm adds.
    Norm,
    /// A matrix that every token passes.
    Matrix,
    /// A matrix, or a stack of them, of which every token passes a few.
    Experts,
    /// Decides which experts; small, and sensitive to rounding.
    Router,
    /// Added to a matrix's result.
    Bias,
    /// One logit per head that takes attention away from all rows.
    Sinks,
}

/// One tensor of the checkpoint, as the program needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// The Hugging Face name.
    pub name: String,
    /// Slowest dimension first.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// The weight whose bytes are used in its place: the checkpoint need not have a tensor of this name, and one that is
    /// there is a copy.
    pub tie: Option<WeightId>,
}

/// `outputs` numbers of a weight, `stride` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vector {
    /// Where they are.
    pub weight: WeightId,
    /// Element of the first.
    pub offset: usize,
    /// Elements from one to the next.
    pub stride: usize,
}

/// A matrix inside a weight: element (output, input) is at `offset + output * output_stride + input * input_stride`,
/// counted in elements of the weight in its row-major order.
///
/// Most matrices are whole weights of shape [outputs, inputs]. The strides say what is not: an expert of a stack, every second
/// row (gate and up in turns), a transposed part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Where it is.
    pub weight: WeightId,
    /// Element (0, 0).
    pub offset: usize,
    /// Numbers it yields.
    pub outputs: usize,
    /// Numbers it takes.
    pub inputs: usize,
    /// Elements from one output's row to the next.
    pub output_stride: usize,
    /// Elements from one input to the next; 1 where the rows of the weight are the rows of the matrix.
    pub input_stride: usize,
    /// Added to the outputs.
    pub bias: Option<Vector>,
}

impl Matrix {
    /// A weight of shape [outputs, inputs].
    pub fn whole(weight: WeightId, outputs: usize, inputs: usize) -> Self {
        Self { weight, offset: 0, outputs, inputs, output_stride: inputs, input_stride: 1, bias: None }
    }

    /// With a bias that holds one number per output.
    #[must_use]
    pub fn with_bias(self, weight: Option<WeightId>) -> Self {
        Self { bias: weight.map(|weight| Vector { weight, offset: 0, stride: 1 }), ..self }
    }

    /// First row of the weight (all leading dimensions counted as one) and rows from one output to the next, if the matrix
    /// consists of whole rows of a weight whose rows have `row_len` elements.
    pub fn stored_rows(&self, row_len: usize) -> Option<(usize, usize)> {
        let rows = self.input_stride == 1
            && self.inputs == row_len
            && self.offset.is_multiple_of(row_len.max(1))
            && self.output_stride.is_multiple_of(row_len.max(1));
        rows.then(|| (self.offset / row_len.max(1), self.output_stride / row_len.max(1)))
    }
}

/// Matrices of one kind, such as all experts' gates or one per head. Number `n` is the first one moved by `n` strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrices {
    /// How many.
    pub count: usize,
    /// Number 0.
    pub first: Matrix,
    /// Weights from one to the next, also for the bias.
    pub weight_stride: u32,
    /// Elements from one to the next inside one weight.
    pub offset_stride: usize,
    /// The same for the bias.
    pub bias_stride: usize,
}

impl Matrices {
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

use crate::quant::Format;
use crate::source::WeightSource;
use kvasir_formats::{DType, Error};
use kvasir_program::{Op, Program, Role};

/// How a model is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// f32 arithmetic on the weights as stored.
    Exact,
    /// Nearly that: weights stored as bf16 are multiplied with numbers of 16 bits and more; all else is f32.
    Close,
    /// The fastest that keeps a row's bits independent of its company.
    #[default]
    Auto,
}

impl Precision {
    /// How weights must be computed at least. A checkpoint whose matrices are f32 is there to be compared with. And experts stored as floats of any
    /// width are chosen by scores that lie close together: rounded activations choose others. Large matrices of MXFP4 are taken for the integers that
    /// their users want the speed of.
    pub(crate) fn least(program: &Program, source: &dyn WeightSource) -> Result<Self, Error> {
        let routed = program.ops.iter().any(|op| matches!(op, Op::Route { .. }));
        let mut least = Self::Exact;
        for weight in program.weights.iter().filter(|w| matches!(w.role, Role::Matrix | Role::Experts)) {
            let dtype = source.stored(&weight.name, &weight.shape)?.map(|stored| stored.dtype);
            let integers = dtype.is_some_and(|dtype| {
                let format = Format::for_matrix(dtype, weight.shape.iter().product());
                format.is_some() && !(dtype == DType::Mxfp4 && format == Some(Format::FINE))
            });
            match dtype {
                Some(DType::F32) => {}
                _ if !routed || integers => return Ok(Self::Auto),
                _ => least = Self::Close,
            }
        }
        Ok(least)
    }
}

//! Test checkpoints on the CPU backend, in each precision: quantized to q8_0, as stored in f32, and
//! with routed experts in bf16.
use crate::paths::model;
use kvasir_cpu::{CpuModel, Precision, Stored, ThreadPool, WeightSource};
use kvasir_formats::{Checkpoint, DType, Error, encoding};
use kvasir_program::{Model, Program, Role};
use std::{collections::HashMap, sync::Arc};

/// A checkpoint whose matrices are quantized to q8_0, or rounded to bf16 where a row is not a whole
/// number of blocks. The recorded ones are mostly f32, which would force `Precision::F32`.
pub struct Narrow {
    checkpoint: Checkpoint,
    narrowed: HashMap<String, (DType, Vec<u8>)>,
}

impl Narrow {
    fn new(checkpoint: Checkpoint, program: &Program) -> Self {
        let wide = |role| matches!(role, Role::Matrix | Role::Experts | Role::Embedding | Role::Head);
        let mut narrowed = HashMap::new();
        for weight in program.weights.iter().filter(|w| wide(w.role) && w.tie.is_none()) {
            let values = WeightSource::dense(&checkpoint, &weight.name, &weight.shape).unwrap();
            let row = *weight.shape.last().unwrap();
            let dtype = if row % 32 == 0 { DType::Q8_0 } else { DType::BF16 };
            let mut bytes = Vec::new();
            encoding::quantize(dtype, &values, row, &mut bytes).unwrap();
            narrowed.insert(weight.name.clone(), (dtype, bytes));
        }
        Self { checkpoint, narrowed }
    }
}

impl WeightSource for Narrow {
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error> {
        let Some((dtype, bytes)) = self.narrowed.get(name) else {
            return self.checkpoint.stored(name, shape);
        };
        let row_len = *shape.last().unwrap();
        let len = dtype.row_bytes(row_len)?;
        let row = move |n: usize| &bytes[n * len..(n + 1) * len];
        Ok(Some(Stored { dtype: *dtype, row_len, rows: bytes.len() / len, row: Box::new(row) }))
    }

    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let Some((dtype, bytes)) = self.narrowed.get(name) else {
            return WeightSource::dense(&self.checkpoint, name, shape);
        };
        let mut values = vec![0.0; shape.iter().product()];
        encoding::dequantize(*dtype, bytes, &mut values)?;
        Ok(values)
    }
}

/// A recorded checkpoint of `testdata/models`, quantized, at `Precision::Auto`.
pub fn narrow(case: &str, threads: usize) -> Arc<CpuModel> {
    let (checkpoint, model) = open(case);
    let source = Arc::new(Narrow::new(checkpoint, &model.target));
    let model =
        CpuModel::load(&model.target, source, Precision::Auto, Arc::new(ThreadPool::new(threads))).unwrap();
    assert_eq!(model.precision(), Precision::Auto, "{case}");
    Arc::new(model)
}

/// The checkpoint as stored, at `Precision::F32`.
pub fn exact(case: &str, threads: usize) -> Arc<CpuModel> {
    let (checkpoint, model) = open(case);
    let thread_pool = Arc::new(ThreadPool::new(threads));
    Arc::new(CpuModel::load(&model.target, Arc::new(checkpoint), Precision::F32, thread_pool).unwrap())
}

/// A mixture-of-experts checkpoint as stored, at `Precision::Bf16x2`: the fastest that does not
/// change expert routing.
pub fn close(case: &str, threads: usize) -> Arc<CpuModel> {
    let (checkpoint, model) = open(case);
    let thread_pool = Arc::new(ThreadPool::new(threads));
    let model = CpuModel::load(&model.target, Arc::new(checkpoint), Precision::Auto, thread_pool).unwrap();
    assert_eq!(model.precision(), Precision::Bf16x2, "{case}");
    Arc::new(model)
}

fn open(case: &str) -> (Checkpoint, Model) {
    let checkpoint = Checkpoint::open(&model(case)).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    (checkpoint, model)
}

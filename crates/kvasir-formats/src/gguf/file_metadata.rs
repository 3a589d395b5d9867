//! [`FileMetadata`]: a GGUF file's metadata as architectures read it.

use crate::dtype::DType;
use crate::error::Error;
use crate::gguf::reader::{Gguf, TensorInfo};
use crate::gguf::value::{Kind, Value};
use kvasir_program::{Metadata, ProgramError};
use serde_json::Value as Json;

/// Most elements of a per-layer list, and of a tensor that is part of a config.
const MAX_LIST: usize = 65_536;

pub(crate) struct FileMetadata<'a>(pub(crate) &'a Gguf);

impl FileMetadata<'_> {
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.0.tensors().iter().find(|tensor| tensor.name == name)
    }

    /// An error of an architecture's rules at its place in the file.
    pub(crate) fn error(&self, error: ProgramError) -> Error {
        match error {
            ProgramError::Metadata { key, why } if self.tensor(&key).is_some() => {
                Error::at(format!("tensor {key}"), why)
            }
            ProgramError::Metadata { key, why } => Error::at(format!("{}.{key}", self.0.architecture()), why),
            error @ ProgramError::UnknownArchitecture { .. } => Error::at("general.architecture", error),
            error => Error::at("", error),
        }
    }
}

impl Metadata for FileMetadata<'_> {
    fn value(&self, key: &str) -> Option<Json> {
        match self.0.arch(key)? {
            Value::Array(all) if all.kind() == Kind::Str || all.len() > MAX_LIST => None,
            Value::Array(all) => all.scalars().map(|value| scalar(&value)).collect(),
            value => scalar(value),
        }
    }

    fn shape(&self, tensor: &str) -> Option<&[usize]> {
        self.tensor(tensor).map(|tensor| &tensor.shape[..])
    }

    fn floats(&self, tensor: &str) -> Result<Option<Vec<f32>>, ProgramError> {
        let Some(info) = self.tensor(tensor) else { return Ok(None) };
        if info.dtype != DType::F32 || info.shape.len() != 1 || info.shape.iter().any(|&n| n > MAX_LIST) {
            let why = "is not a short list of f32".to_owned();
            return Err(ProgramError::Metadata { key: tensor.to_owned(), why });
        }
        let bytes = self.0.bytes(info).as_chunks::<4>().0;
        Ok(Some(bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }
}

/// A scalar as JSON. An f32 takes its shortest decimal form, so that 1e-6 stays 1e-6.
fn scalar(value: &Value) -> Option<Json> {
    match value {
        Value::F32(v) => v.to_string().parse::<f64>().ok().filter(|v| v.is_finite()).map(Json::from),
        Value::F64(v) => Some(*v).filter(|v| v.is_finite()).map(Json::from),
        Value::Bool(v) => Some((*v).into()),
        Value::Str(v) => Some(v.as_str().into()),
        v => v.as_u64().map(Json::from),
    }
}

//! `ModelCard`: what lists of models show: size, type, context. Read from the checkpoint's headers.

use crate::opened::OpenedModel;
use kvasir_formats::DType;
use serde::Serialize;
use std::{collections::BTreeMap, time::SystemTime};

/// Description of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelCard {
    /// Architecture as configs name it (`model_type`), such as `qwen3`.
    pub architecture: String,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Number of weights.
    pub parameters: u64,
    /// Type of most weights, such as `Q8_0`.
    pub quantization: String,
    /// Size of all tensors as stored, in bytes.
    pub bytes: u64,
    /// Most positions of a sequence.
    pub context: usize,
    /// When the file was written; 1970 where that is not known.
    pub modified: SystemTime,
}

impl ModelCard {
    /// Describes an opened model. Cost: linear in the number of tensors.
    pub fn of(opened: &OpenedModel) -> Self {
        let (checkpoint, target) = (&opened.checkpoint, &opened.model.target);
        let (mut bytes, mut parameters) = (0, 0);
        let mut weights = BTreeMap::<DType, u64>::new();
        for tensor in checkpoint.tensors() {
            bytes += tensor.bytes.len() as u64;
            // Companions of block-scaled weights; packed blocks hold two weights per byte.
            if tensor.name.ends_with("_scale_inv") || tensor.name.ends_with("_scales") {
                continue;
            }
            let packed = tensor.name.ends_with("_blocks") && tensor.dtype == DType::U8;
            let count = tensor.len() as u64 * if packed { 2 } else { 1 };
            parameters += count;
            *weights.entry(if packed { DType::Mxfp4 } else { tensor.dtype }).or_default() += count;
        }
        let most = weights.into_iter().max_by_key(|(_, count)| *count);
        let model_type = checkpoint.config().get("model_type").and_then(serde_json::Value::as_str);
        let modified = std::fs::metadata(checkpoint.path()).and_then(|file| file.modified());
        Self {
            architecture: model_type.unwrap_or(&target.architecture).to_owned(),
            format: if checkpoint.gguf().is_some() { "gguf" } else { "safetensors" }.to_owned(),
            parameters,
            quantization: most.map_or_else(String::new, |(dtype, _)| dtype.name().to_uppercase()),
            bytes,
            context: target.max_positions,
            modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

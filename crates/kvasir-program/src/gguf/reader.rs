//! [`ConfigReader`]: a config in Hugging Face spelling that is made from GGUF metadata.

use crate::error::{ProgramError, Result};
use crate::gguf::metadata::Metadata;
use serde_json::{Map, Value as Json};

/// Upper bound of layers in per-layer lists, whatever the file says.
const MAX_LAYERS: u64 = 1 << 12;

/// The metadata of a file, and the config made from it so far.
pub(crate) struct ConfigReader<'a> {
    pub(crate) file: &'a dyn Metadata,
    pub(crate) config: Map<String, Json>,
}

impl<'a> ConfigReader<'a> {
    pub(crate) fn new(file: &'a dyn Metadata) -> Self {
        Self { file, config: Map::new() }
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.config.insert(key.to_owned(), value.into());
    }

    /// Sets a key of `rope_scaling`, which a file without scaling does not have yet.
    pub(crate) fn set_scaling(&mut self, key: &str, value: impl Into<Json>) {
        let scaling = self.config.entry("rope_scaling").or_insert_with(|| Map::new().into());
        if let Some(map) = scaling.as_object_mut() {
            map.insert(key.to_owned(), value.into());
        }
    }

    /// A number; of a per-layer list, the first.
    pub(crate) fn number(&self, key: &str) -> Option<Json> {
        let value = match self.file.value(key)? {
            Json::Array(all) => all.into_iter().next()?,
            one => one,
        };
        value.is_number().then_some(value)
    }

    /// An integer per layer; one integer stands for all layers.
    pub(crate) fn uints(&self, key: &str) -> Option<Vec<u64>> {
        match self.file.value(key)? {
            Json::Array(all) => all.iter().map(Json::as_u64).collect(),
            one => one.as_u64().map(|n| vec![n; self.blocks() as usize]),
        }
    }

    pub(crate) fn uint(&self, key: &str) -> Option<u64> {
        self.number(key)?.as_u64()
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.file.value(key)?.as_bool()
    }

    /// Number of blocks, prediction layers included.
    pub(crate) fn blocks(&self) -> u64 {
        self.uint("block_count").unwrap_or(0).min(MAX_LAYERS)
    }

    /// Number of prediction layers (MTP).
    pub(crate) fn prediction_layers(&self) -> u64 {
        self.uint("nextn_predict_layers").unwrap_or(0)
    }

    /// Number of layers, without prediction layers.
    pub(crate) fn layers(&self) -> u64 {
        self.blocks().saturating_sub(self.prediction_layers())
    }

    pub(crate) fn has(&self, tensor: &str) -> bool {
        self.file.shape(tensor).is_some()
    }

    /// Whether any block `N` has the tensor `blk.N.{tensor}`.
    pub(crate) fn any_block_has(&self, tensor: &str) -> bool {
        (0..self.blocks()).any(|block| self.has(&format!("blk.{block}.{tensor}")))
    }

    pub(crate) fn missing(key: &str) -> ProgramError {
        ProgramError::metadata(key, "is missing or not a number")
    }

    pub(crate) fn required_uint(&self, key: &str) -> Result<u64> {
        self.uint(key).ok_or_else(|| Self::missing(key))
    }
}

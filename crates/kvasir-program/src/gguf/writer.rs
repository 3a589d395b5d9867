//! [`MetadataWriter`]: GGUF metadata that is made from a config in Hugging Face spelling.

use crate::builder::config::Config;
use crate::error::Result;
use serde_json::Value as Json;

/// A metadata value to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// An integer.
    Count(u32),
    /// A number.
    Float(f32),
    /// A flag.
    Flag(bool),
    /// A string.
    Text(&'static str),
    /// A flag per layer.
    Flags(Vec<bool>),
    /// An integer per layer.
    Counts(Vec<u32>),
    /// A list of 64-bit integers.
    Integers(Vec<u64>),
}

/// What a converted file says of its architecture.
#[derive(Clone, Debug, Default)]
pub struct WrittenMetadata {
    /// Keys below the architecture's prefix. A later entry of the same key replaces an earlier one.
    pub keys: Vec<(&'static str, MetadataValue)>,
    /// Tensors whose values follow from the config: RoPE divisors.
    pub tensors: Vec<(&'static str, Vec<f32>)>,
}

/// A config, and the metadata made from it so far.
pub(crate) struct MetadataWriter<'a> {
    pub(crate) json: &'a Json,
    /// Typed access to the same config.
    pub(crate) config: Config<'a>,
    pub(crate) has_tensor: &'a dyn Fn(&str) -> bool,
    pub(crate) written: WrittenMetadata,
}

impl<'a> MetadataWriter<'a> {
    pub(crate) fn new(json: &'a Json, has_tensor: &'a dyn Fn(&str) -> bool) -> Self {
        Self { json, config: Config::new(json), has_tensor, written: WrittenMetadata::default() }
    }

    pub(crate) fn set(&mut self, key: &'static str, value: MetadataValue) {
        self.written.keys.push((key, value));
    }

    /// Sizes of configs are far below `u32::MAX`; sums and products of two are cut there.
    pub(crate) fn count(&mut self, key: &'static str, n: usize) {
        self.set(key, MetadataValue::Count(u32::try_from(n).unwrap_or(u32::MAX)));
    }

    pub(crate) fn float(&mut self, key: &'static str, value: f64) {
        self.set(key, MetadataValue::Float(value as f32));
    }

    /// A size per layer, as one integer if all are equal.
    pub(crate) fn counts(&mut self, key: &'static str, all: &[usize]) {
        match all {
            [first, rest @ ..] if rest.iter().all(|n| n == first) => self.count(key, *first),
            _ => {
                let small = |n: &usize| u32::try_from(*n).unwrap_or(u32::MAX);
                self.set(key, MetadataValue::Counts(all.iter().map(small).collect()));
            }
        }
    }

    /// Copies a config value, if it is a number.
    pub(crate) fn copy_count(&mut self, key: &'static str, from: &str) -> Result<()> {
        if self.json.get(from).is_some_and(Json::is_number) {
            let n = self.config.count(from)?;
            self.count(key, n);
        }
        Ok(())
    }

    /// A RoPE setting. Newer configs use `rope_parameters`, older ones the top level;
    /// `rope_scaling` wins.
    pub(crate) fn rope_value(&self, key: &str) -> Option<&'a Json> {
        let places = ["/rope_scaling/", "/rope_parameters/full_attention/", "/rope_parameters/", "/"];
        let found = places.into_iter().find_map(|place| self.json.pointer(&format!("{place}{key}")));
        found.filter(|value| !value.is_null())
    }

    pub(crate) fn rope_float(&self, key: &str) -> Option<f64> {
        self.rope_value(key)?.as_f64()
    }
}

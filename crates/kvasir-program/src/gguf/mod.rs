//! How GGUF spells an architecture: names, metadata keys and changed values, in both directions.
//!
//! An [`Architecture`](crate::arch::Architecture) holds one [`Gguf`]: plain data, and function
//! pairs for what no table says. From it follow the config of a GGUF file ([`Gguf::config`]), the
//! metadata that a conversion writes ([`Gguf::metadata`]), the names of tensors and the [`Layout`]
//! of weights.
//!
//! This module knows GGUF's vocabulary and no file: [`Metadata`] is what a file says, and
//! [`WrittenMetadata`] what a file is to say. Guarded by `kvasir-formats/tests/architectures.rs`,
//! which loops over all architectures.

pub(crate) mod encoder;
pub(crate) mod experts;
pub(crate) mod heads;
pub(crate) mod kimi_delta;
pub(crate) mod latent;
pub(crate) mod metadata;
pub(crate) mod reader;
pub(crate) mod rope;
pub(crate) mod rule;
pub(crate) mod sizes;
pub(crate) mod tensor_name;
pub(crate) mod transform;
pub(crate) mod windows;
pub(crate) mod writer;

use crate::builder::source::Layout;
use crate::error::Result;
use crate::gguf::metadata::Metadata;
use crate::gguf::reader::ConfigReader;
use crate::gguf::rule::Rule;
use crate::gguf::tensor_name::TensorName;
use crate::gguf::transform::StoredAs;
use crate::gguf::writer::{MetadataWriter, WrittenMetadata};
use serde_json::{Map, Value as Json};

/// An architecture's spelling in GGUF.
#[derive(Clone, Copy, Debug)]
pub struct Gguf {
    /// Values of `general.architecture` whose files are read.
    pub names: &'static [&'static str],
    /// The one of them that is written for a config.
    pub(crate) written: fn(&Json) -> &'static str,
    /// Whether a file of one of these names has this architecture. Several architectures may share
    /// a name; the first that claims a file gets it.
    pub(crate) claims: fn(&dyn Metadata) -> bool,
    /// Tensor names beside the common ones, which they hide.
    pub tensors: &'static [&'static [TensorName]],
    /// Tensors whose values differ from the Hugging Face ones; the first that matches applies.
    pub transforms: &'static [&'static [StoredAs]],
    /// Metadata keys and config keys, beside the common ones; applied in order, after those.
    pub(crate) rules: &'static [&'static [Rule]],
}

impl Gguf {
    /// `general.architecture` of a converted checkpoint.
    pub fn written_name(&self, config: &Json) -> &'static str {
        (self.written)(config)
    }

    /// Whether this is the spelling of a file, given its `general.architecture`.
    pub fn reads(&self, name: &str, file: &dyn Metadata) -> bool {
        self.names.contains(&name) && (self.claims)(file)
    }

    /// The config of a file in Hugging Face spelling, without `architectures` and `model_type`.
    pub fn config(&self, file: &dyn Metadata) -> Result<Map<String, Json>> {
        let mut reader = ConfigReader::new(file);
        for rule in self.all_rules() {
            rule.read(&mut reader)?;
        }
        Ok(reader.config)
    }

    /// The metadata of a converted checkpoint. `config` has the architecture's defaults filled in,
    /// `has_tensor` says whether the checkpoint has a tensor of a Hugging Face name.
    pub fn metadata(&self, config: &Json, has_tensor: &dyn Fn(&str) -> bool) -> Result<WrittenMetadata> {
        let mut writer = MetadataWriter::new(config, has_tensor);
        for rule in self.all_rules() {
            rule.write(&mut writer)?;
        }
        Ok(writer.written)
    }

    /// The deviations of a file from the Hugging Face layout.
    pub fn layout(&self, file: &dyn Metadata) -> Layout {
        let mut layout = Layout::default();
        self.all_transforms().for_each(|stored| stored.transform.mark(&mut layout, file));
        layout
    }

    /// How the values of a tensor of this Hugging Face name change on the way to GGUF.
    pub fn transform(&self, tensor: &str) -> Option<transform::Transform> {
        self.all_transforms().find(|stored| tensor.contains(stored.tensors)).map(|stored| stored.transform)
    }

    fn all_transforms(&self) -> impl Iterator<Item = &'static StoredAs> {
        self.transforms.iter().copied().flatten()
    }

    fn all_rules(&self) -> impl Iterator<Item = &'static Rule> {
        [sizes::SIZES, rope::ROPE].into_iter().chain(self.rules.iter().copied()).flatten()
    }
}

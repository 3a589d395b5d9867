//! [`Rule`]: one correspondence between GGUF metadata and a config, in both directions.

use crate::error::Result;
use crate::gguf::reader::ConfigReader;
use crate::gguf::writer::{MetadataValue, MetadataWriter};
use serde_json::Value as Json;

/// The type of a value that both sides have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Count,
    Float,
    Flag,
}

/// A config value that no metadata key gives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Constant {
    Null,
    Flag(bool),
    Count(u64),
    Float(f64),
    Text(&'static str),
}

/// What a file without the metadata key means.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absent {
    /// It cannot be read.
    Fail,
    /// The config lacks its key, too: the architecture's default holds.
    Omit,
    /// The config key has this value.
    Means(Constant),
}

/// One correspondence between GGUF metadata and a config.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// A metadata key and a config key of the same value.
    Same { key: &'static str, config: &'static str, kind: Kind, absent: Absent },
    /// A config flag that is true if a file has a tensor; nothing is written.
    HasTensor { config: &'static str, tensor: &'static str },
    /// A config flag that is true if any block `N` has the tensor `blk.N.{tensor}`; nothing is
    /// written.
    AnyBlockHas { config: &'static str, tensor: &'static str },
    /// A config value that published files share and GGUF has no key for; nothing is written.
    Implied { config: &'static str, value: Constant },
    /// Whatever is not a copy. The two functions are inverse to each other.
    Code { read: fn(&mut ConfigReader<'_>) -> Result<()>, write: fn(&mut MetadataWriter<'_>) -> Result<()> },
}

/// The second half of a [`Rule::Code`] whose config value follows from the tensors.
pub(crate) fn write_nothing(_: &mut MetadataWriter<'_>) -> Result<()> {
    Ok(())
}

impl Rule {
    pub(crate) const fn count(key: &'static str, config: &'static str, absent: Absent) -> Self {
        Self::Same { key, config, kind: Kind::Count, absent }
    }

    pub(crate) const fn float(key: &'static str, config: &'static str, absent: Absent) -> Self {
        Self::Same { key, config, kind: Kind::Float, absent }
    }

    pub(crate) const fn flag(key: &'static str, config: &'static str, absent: Absent) -> Self {
        Self::Same { key, config, kind: Kind::Flag, absent }
    }

    pub(crate) fn read(&self, reader: &mut ConfigReader<'_>) -> Result<()> {
        match *self {
            Self::Same { key, config, kind, absent } => {
                let found = match kind {
                    Kind::Count | Kind::Float => reader.number(key),
                    Kind::Flag => reader.flag(key).map(Json::from),
                };
                match (found, absent) {
                    (Some(value), _) => reader.set(config, value),
                    (None, Absent::Means(value)) => reader.set(config, value),
                    (None, Absent::Omit) => {}
                    (None, Absent::Fail) => return Err(ConfigReader::missing(key)),
                }
            }
            Self::HasTensor { config, tensor } => reader.set(config, reader.has(tensor)),
            Self::AnyBlockHas { config, tensor } => reader.set(config, reader.any_block_has(tensor)),
            Self::Implied { config, value } => reader.set(config, value),
            Self::Code { read, .. } => read(reader)?,
        }
        Ok(())
    }

    pub(crate) fn write(&self, writer: &mut MetadataWriter<'_>) -> Result<()> {
        match *self {
            Self::Same { key, config, kind, .. } => {
                let found = writer.json.get(config);
                match kind {
                    Kind::Count => writer.copy_count(key, config)?,
                    Kind::Float => {
                        found.and_then(Json::as_f64).into_iter().for_each(|value| writer.float(key, value));
                    }
                    Kind::Flag => {
                        let flag = found.and_then(Json::as_bool);
                        flag.into_iter().for_each(|value| writer.set(key, MetadataValue::Flag(value)));
                    }
                }
            }
            Self::HasTensor { .. } | Self::AnyBlockHas { .. } | Self::Implied { .. } => {}
            Self::Code { write, .. } => write(writer)?,
        }
        Ok(())
    }
}

impl From<Constant> for Json {
    fn from(constant: Constant) -> Self {
        match constant {
            Constant::Null => Self::Null,
            Constant::Flag(value) => value.into(),
            Constant::Count(value) => value.into(),
            Constant::Float(value) => value.into(),
            Constant::Text(value) => value.into(),
        }
    }
}

//! Resolution of a model's name: a path, a hub name, or the name of the built-in model.
//!
//! Every command and option that takes a model resolves it here. An existing path is never treated as a name.

use crate::built_in;
use crate::error::Error;
use crate::hub::HubName;
use crate::load::OpenedModel;
use kvasir_formats::{Checkpoint, TextFiles, gguf::Gguf};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

/// Where the files of a model are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelFiles {
    /// Embedded in the binary.
    BuiltIn,
    /// A directory in the Hugging Face layout or a file.
    At(PathBuf),
}

impl ModelFiles {
    /// Resolves a path, a [`HubName`] or the name of the built-in model.
    pub fn locate(name: &Path) -> Result<Self, Error> {
        if name.as_os_str() == built_in::NAME && !name.exists() {
            return Ok(Self::BuiltIn);
        }
        HubName::locate(name).map(Self::At)
    }

    /// Opens the checkpoint; builds no program.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        Ok(match self {
            Self::BuiltIn => Checkpoint::of_gguf(gguf()?)?,
            Self::At(path) => Checkpoint::open(path)?,
        })
    }

    /// Opens the model.
    pub fn open(&self) -> Result<OpenedModel, Error> {
        match self {
            Self::BuiltIn => OpenedModel::built_in(),
            Self::At(path) => OpenedModel::open(path),
        }
    }

    /// Tokenizer and chat template. A vocabulary-only GGUF file or a `tokenizer.json` suffices.
    pub fn text_files(&self) -> Result<TextFiles, Error> {
        Ok(match self {
            Self::BuiltIn => TextFiles::of_gguf(gguf()?),
            Self::At(path) => TextFiles::open(path)?,
        })
    }
}

fn gguf() -> Result<Arc<Gguf>, Error> {
    Ok(Arc::new(Gguf::built_in(built_in::NAME, built_in::BYTES)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_model_is_found_by_its_name() {
        let files = ModelFiles::locate(Path::new(built_in::NAME)).unwrap();
        assert_eq!(files, ModelFiles::BuiltIn);
        assert!(files.checkpoint().is_ok() && files.text_files().unwrap().tokenizer().is_ok());
        let there = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(ModelFiles::locate(there).unwrap(), ModelFiles::At(there.into()));
    }
}

//! Resolution of a model's name. Every command and option that takes a model resolves it here.
//!
//! In this order: an existing path, the name of the built-in model, a model of the folder `KVASIR_MODELS_DIR`, a hub
//! name, a [short name](ShortNames) of the hub.

use crate::built_in;
use crate::error::Error;
use crate::hub::HubName;
use crate::hub::cached::CachedModel;
use crate::hub::short_names::ShortNames;
use kvasir_formats::{Checkpoint, TextFiles, check_kv_facts, gguf::Gguf};
use kvasir_program::Model;
use std::{
    env,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Folder of models, which have their file names as names, with or without `.gguf`.
const FOLDER: &str = "KVASIR_MODELS_DIR";

/// Where the files of a model are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelFiles {
    /// Embedded in the binary.
    BuiltIn,
    /// A directory in the Hugging Face layout or a file.
    At(PathBuf),
}

impl ModelFiles {
    /// Resolves a path or a name. A model of the hub that is not on this machine is fetched.
    pub fn locate(name: &Path) -> Result<Self, Error> {
        if name.exists() {
            return of_directory(name).map(|file| Self::At(file.unwrap_or_else(|| name.to_owned())));
        }
        if name.as_os_str() == built_in::NAME {
            return Ok(Self::BuiltIn);
        }
        let text = name.to_str().unwrap_or_default();
        if let Some(path) = in_folder(env::var_os(FOLDER).map(PathBuf::from).as_deref(), text) {
            return Ok(Self::At(path));
        }
        match HubName::named(text) {
            Some(hub) => hub.find().map(Self::At),
            None if is_path(name) => {
                Err(Error::Failed(format!("{}: no such file or directory", name.display())))
            }
            None => Err(Error::invalid("model", unknown(name))),
        }
    }

    /// Whether `locate` takes `name` as a path, existing or not, or as a known model name. All
    /// other texts are unknown.
    pub fn is_named(name: &Path) -> bool {
        let text = name.to_str().unwrap_or_default();
        name.exists()
            || is_path(name)
            || name.as_os_str() == built_in::NAME
            || in_folder(env::var_os(FOLDER).map(PathBuf::from).as_deref(), text).is_some()
            || HubName::named(text).is_some()
    }

    /// Opens the checkpoint; builds no program.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        Ok(match self {
            Self::BuiltIn => Checkpoint::of_gguf(gguf()?)?,
            Self::At(path) => Checkpoint::open(path)?,
        })
    }

    /// Opens the checkpoint and builds its programs; checks one against the other.
    pub(crate) fn programs(&self) -> Result<(Checkpoint, Model), Error> {
        let checkpoint = self.checkpoint()?;
        let path = checkpoint.path();
        let model = Model::build(&checkpoint.source());
        let model = model.map_err(|e| kvasir_formats::Error::at(path.display(), e))?;
        if let Some(gguf) = checkpoint.gguf() {
            check_kv_facts(gguf, &model.target.layers).map_err(|error| error.in_file(path))?;
        }
        Ok((checkpoint, model))
    }

    /// Tokenizer and chat template. A vocabulary-only GGUF file or a `tokenizer.json` suffices.
    pub fn text_files(&self) -> Result<TextFiles, Error> {
        Ok(match self {
            Self::BuiltIn => TextFiles::of_gguf(gguf()?),
            Self::At(path) => TextFiles::open(path)?,
        })
    }
}

/// Finds a model in `folder` by its file name, or by a file name of its hub repository.
fn in_folder(folder: Option<&Path>, text: &str) -> Option<PathBuf> {
    let folder =
        folder.filter(|folder| !folder.as_os_str().is_empty() && !text.is_empty() && !text.contains('/'))?;
    let of_short = HubName::named(text).map(|hub| hub.file_names()).unwrap_or_default();
    // A file name has no colon on every system.
    let own = [text.to_owned(), format!("{text}.gguf"), format!("{}.gguf", text.replace(':', "-"))];
    let paths = own.into_iter().chain(of_short).map(|name| folder.join(name));
    paths.into_iter().find(|path| path.is_file() || path.join("config.json").is_file())
}

/// The GGUF file of a directory that is no model itself; fails if there are several to choose from.
fn of_directory(directory: &Path) -> Result<Option<PathBuf>, Error> {
    let is_model = ["config.json", "tokenizer.json"].iter().any(|file| directory.join(file).exists());
    if !directory.is_dir() || is_model {
        return Ok(None);
    }
    let mut models = CachedModel::of_folder(directory)?;
    match models.as_slice() {
        [_, _, ..] => {
            let names: Vec<String> = models.into_iter().map(|model| model.name).collect();
            let directory = directory.display();
            let reason = format!("{directory}: holds several models; name one: {}", names.join(", "));
            Err(Error::invalid("model", reason))
        }
        _ => Ok(models.pop().map(|model| model.path)),
    }
}

/// Whether a name can only be a path.
fn is_path(name: &Path) -> bool {
    let text = name.to_string_lossy();
    let is_file =
        [".gguf", ".safetensors", ".json"].iter().any(|end| text.to_ascii_lowercase().ends_with(end));
    is_file
        || ["/", "./", "../", "~"].iter().any(|start| text.starts_with(start))
        || text == "."
        || text == ".."
}

/// Error message for an unknown model name, with a similar name if there is one.
fn unknown(name: &Path) -> String {
    let text = name.display();
    let nearest = ShortNames::nearest(&name.to_string_lossy());
    let nearest = nearest.map_or_else(String::new, |known| format!("; similar: `{known}`"));
    format!(
        "`{text}` is no file and no known model{nearest}; models of huggingface.co have the name OWNER/NAME-GGUF:TYPE, such as Qwen/Qwen3-0.6B-GGUF:Q8_0"
    )
}

fn gguf() -> Result<Arc<Gguf>, Error> {
    Ok(Arc::new(Gguf::built_in(built_in::NAME, built_in::BYTES)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_built_in_model_is_found_by_its_name() {
        let files = ModelFiles::locate(Path::new(built_in::NAME)).unwrap();
        assert_eq!(files, ModelFiles::BuiltIn);
        assert!(files.checkpoint().is_ok() && files.text_files().unwrap().tokenizer().is_ok());
        let there = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"));
        assert_eq!(ModelFiles::locate(there).unwrap(), ModelFiles::At(there.into()));
    }

    #[test]
    fn a_folder_of_models_is_searched_by_name_and_short_name() {
        let folder = env::temp_dir().join(format!("kvasir-folder-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("whole")).unwrap();
        for file in ["own.gguf", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", "qwen3-0.6b.gguf", "whole/config.json"]
        {
            std::fs::write(folder.join(file), "").unwrap();
        }
        let found = |text: &str| {
            let path = in_folder(Some(&folder), text)?;
            Some(path.strip_prefix(&folder).unwrap().display().to_string())
        };
        assert_eq!(found("own").as_deref(), Some("own.gguf"));
        assert_eq!(found("own.gguf").as_deref(), Some("own.gguf"));
        assert_eq!(found("whole").as_deref(), Some("whole"));
        assert_eq!(found("llama3.2:1b").as_deref(), Some("Llama-3.2-1B-Instruct-Q4_K_M.gguf"));
        assert_eq!(found("qwen3:0.6b").as_deref(), Some("qwen3-0.6b.gguf"));
        for other in ["llama3.2", "none", "", "whole/config.json"] {
            assert_eq!(found(other), None, "{other}");
        }
        assert_eq!(in_folder(None, "own"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_directory_of_files_is_its_only_one_or_lists_them() {
        let folder = env::temp_dir().join(format!("kvasir-several-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(ModelFiles::locate(&folder).unwrap(), ModelFiles::At(folder.clone()));
        std::fs::write(folder.join("a.gguf"), "").unwrap();
        assert_eq!(ModelFiles::locate(&folder).unwrap(), ModelFiles::At(folder.join("a.gguf")));
        std::fs::write(folder.join("b.gguf"), "").unwrap();
        let why = ModelFiles::locate(&folder).unwrap_err().to_string();
        assert!(why.contains("name one: ") && why.contains("a.gguf, ") && why.contains("b.gguf"), "{why}");
        std::fs::write(folder.join("config.json"), "").unwrap();
        assert_eq!(ModelFiles::locate(&folder).unwrap(), ModelFiles::At(folder.clone()));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unknown_names_are_answered_with_a_known_one() {
        let message = |name: &str| ModelFiles::locate(Path::new(name)).unwrap_err().to_string();
        assert!(message("./none.gguf").ends_with("no such file or directory"));
        assert!(message("llama9").contains("`llama3`") && message("llama9").contains("OWNER/NAME-GGUF:TYPE"));
        assert!(!message("hello").contains("similar"));
        for (name, is_named) in [
            ("hello", false),
            ("llama9", false),
            ("llama3.2:1b", true),
            ("a/b", true),
            ("x.gguf", true),
            (".", true),
        ] {
            assert_eq!(ModelFiles::is_named(Path::new(name)), is_named, "{name}");
        }
    }
}

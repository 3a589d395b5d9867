//! Models that are there without a network: those of the hub's cache, and those of a folder.

use crate::error::Error;
use crate::hub::{HubName, files_of, interrupted, missing, model_path};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// What commands take: a hub name, or a path.
    pub name: String,
    /// Where it is; not opened yet.
    pub path: PathBuf,
    /// Whether files of it are missing, because a fetch was interrupted.
    pub is_partial: bool,
}

impl CachedModel {
    /// Models of the hub's cache, by name: one per repository with safetensors, one per GGUF file
    /// (or set of shards). Empty without a cache.
    pub fn of_hub() -> Result<Vec<Self>, Error> {
        let mut models = of_cache(&HubName::cache()?);
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// Models of a folder: GGUF files, and folders with a `config.json`.
    pub fn of_folder(folder: &Path) -> Result<Vec<Self>, Error> {
        let entries = fs::read_dir(folder);
        let entries = entries.map_err(|e| Error::Failed(format!("{}: {e}", folder.display())))?;
        let paths = entries.flatten().map(|entry| entry.path());
        let is_model = |path: &PathBuf| {
            let name = path.to_string_lossy().to_ascii_lowercase();
            // Of a set of shards, the first one names the model.
            let is_first = !name.contains("-of-") || name.contains("-00001-of-");
            path.join("config.json").is_file() || path.is_file() && name.ends_with(".gguf") && is_first
        };
        let model = |path: PathBuf| Self { name: path.display().to_string(), path, is_partial: false };
        let mut models: Vec<Self> = paths.filter(is_model).map(model).collect();
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }
}

fn of_cache(cache: &Path) -> Vec<CachedModel> {
    let mut models = Vec::new();
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let folder = entry.path();
        let Some(name) =
            entry.file_name().to_str().and_then(|name| name.strip_prefix("models--")).map(str::to_owned)
        else {
            continue;
        };
        let Some((owner, name)) = name.split_once("--") else { continue };
        let refs = fs::read_dir(folder.join("refs")).into_iter().flatten().flatten();
        for reference in refs {
            let Ok(commit) = fs::read_to_string(reference.path()) else { continue };
            let revision = reference.file_name().to_string_lossy().into_owned();
            let at = if revision == "main" { String::new() } else { format!("@{revision}") };
            let snapshot = folder.join("snapshots").join(commit.trim());
            models.extend(of_snapshot(&format!("{owner}/{name}{at}"), &snapshot, interrupted(&folder)));
        }
    }
    models
}

/// The models of one snapshot.
fn of_snapshot(name: &str, snapshot: &Path, interrupted: bool) -> Vec<CachedModel> {
    let files = files_of(snapshot);
    let ggufs: Vec<&String> =
        files.iter().filter(|file| file.to_ascii_lowercase().ends_with(".gguf")).collect();
    let is_directory = files.iter().any(|file| file == "config.json")
        && files.iter().any(|file| file.ends_with(".safetensors"));
    if is_directory || ggufs.is_empty() {
        let Some(parsed) = HubName::parse(name).filter(|_| is_directory) else { return Vec::new() };
        let chosen = parsed.choose(&files).unwrap_or_default();
        let is_partial = interrupted || !missing(snapshot, &chosen, &files).is_empty();
        return vec![CachedModel { name: name.to_owned(), path: model_path(snapshot, &chosen), is_partial }];
    }
    let tag = |file: &str| {
        let stem = file.rsplit('/').next().unwrap_or(file);
        let stem = &stem[..stem.len() - ".gguf".len()];
        let stem = stem.split("-00001-of-").next().unwrap_or(stem);
        stem.rsplit(['-', '.']).next().unwrap_or(stem).to_owned()
    };
    let first = |file: &&&String| !file.contains("-of-") || file.contains("-00001-of-");
    let several = ggufs.iter().filter(first).count() > 1;
    let model = |file: &&String| CachedModel {
        name: if several { format!("{name}:{}", tag(file)) } else { name.to_owned() },
        path: snapshot.join(file),
        is_partial: interrupted,
    };
    ggufs.iter().filter(first).map(model).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn repositories_are_listed_by_what_commands_take() {
        let cache = std::env::temp_dir().join(format!("kvasir-cached-{}", std::process::id()));
        let repository = |name: &str, files: &[&str]| {
            let folder = cache.join(format!("models--acme--{name}"));
            fs::create_dir_all(folder.join("refs")).unwrap();
            fs::create_dir_all(folder.join("snapshots/c0")).unwrap();
            fs::write(folder.join("refs/main"), "c0\n").unwrap();
            files.iter().for_each(|file| fs::write(folder.join("snapshots/c0").join(file), "").unwrap());
        };
        repository("one", &["m-Q8_0.gguf"]);
        repository("two", &["m-Q4_0.gguf", "m-Q8_0.gguf"]);
        repository("whole", &["config.json", "model.safetensors"]);
        repository("shards", &["m-Q2_K-00001-of-00002.gguf", "m-Q2_K-00002-of-00002.gguf"]);
        repository("none", &["README.md"]);
        let mut names: Vec<String> = of_cache(&cache).into_iter().map(|model| model.name).collect();
        names.sort();
        assert_eq!(names, ["acme/one", "acme/shards", "acme/two:Q4_0", "acme/two:Q8_0", "acme/whole"]);
        fs::remove_dir_all(&cache).unwrap();
    }
}

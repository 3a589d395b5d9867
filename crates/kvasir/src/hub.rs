//! Models by their name on a hub: `OWNER/NAME[@REVISION][:TAG]`, where a tag picks one GGUF file out of several.
//!
//! What lies in the hub's cache is used without asking anybody. Only a program built with the feature `hub` fetches
//! what is not there, with the hub's own client.

#[cfg(feature = "hub")]
mod fetch;

use crate::Error;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A model's name on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    owner: String,
    name: String,
    revision: Option<String>,
    tag: Option<String>,
}

impl HubName {
    /// The name that a text is; none if it can only be a path.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, tag) = cut(text, ':');
        let (text, revision) = cut(text, '@');
        let (owner, name) = text.split_once('/')?;
        let plain = |part: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
        };
        let whole = plain(owner)
            && plain(name)
            && tag.is_none_or(plain)
            && revision.is_none_or(|r| r.split('/').all(plain));
        whole.then(|| Self {
            owner: owner.into(),
            name: name.into(),
            revision: revision.map(Into::into),
            tag: tag.map(Into::into),
        })
    }

    /// The hub's cache, where its own tools look for it.
    pub fn cache() -> Result<PathBuf, Error> {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("HF_HUB_CACHE")
            .or_else(|| Some(set("HF_HOME")?.join("hub")))
            .or_else(|| Some(set("XDG_CACHE_HOME")?.join("huggingface/hub")))
            .or_else(|| Some(set("HOME")?.join(".cache/huggingface/hub")))
            .ok_or_else(|| {
                Error::Asked("HF_HUB_CACHE, HF_HOME or HOME must say where the hub's cache is".into())
            })
    }

    /// Where the model is, from the cache or, if this program can, from the hub.
    pub fn find(&self) -> Result<PathBuf, Error> {
        let asked = self.revision.as_deref().unwrap_or("main");
        let folder = Self::cache()?.join(format!("models--{}--{}", self.owner, self.name));
        let commit = fs::read_to_string(folder.join("refs").join(asked));
        let commit = commit.map_or_else(|_| asked.to_owned(), |text| text.trim().to_owned());
        let snapshot = folder.join("snapshots").join(commit);
        let there = files_of(&snapshot);
        if there.is_empty() {
            return self.fetch();
        }
        let interrupted = interrupted(&folder);
        match self.choose(&there) {
            Ok(chosen) if complete(&snapshot, &chosen, &there) => {
                let path = model_path(&snapshot, &chosen);
                // It may have been another model's fetch: then what is there will do.
                if interrupted { self.fetch().or(Ok(path)) } else { Ok(path) }
            }
            Ok(_) => self.fetch(),
            Err(_) if interrupted || self.tag.is_some() => self.fetch(),
            Err(error) => Err(error),
        }
    }

    /// Which of a repository's files make the model.
    fn choose(&self, files: &[String]) -> Result<Vec<String>, Error> {
        let ends = |file: &str, end: &str| file.to_ascii_lowercase().ends_with(end);
        let weights = |file: &&String| ends(file, ".safetensors") && !file.contains('/');
        if self.tag.is_none() && files.iter().any(|f| f == "config.json") && files.iter().any(|f| weights(&f))
        {
            let text =
                |file: &&String| !file.contains('/') && [".json", ".jinja"].iter().any(|e| ends(file, e));
            return Ok(files.iter().filter(|f| weights(f) || text(f)).cloned().collect());
        }
        let tag = self.tag.as_deref().unwrap_or_default().to_ascii_lowercase();
        let gguf = files.iter().filter(|f| ends(f, ".gguf") && f.to_ascii_lowercase().contains(&tag));
        let mut found: Vec<String> = gguf.cloned().collect();
        found.sort();
        // The shards of one model are one choice.
        let shards = found.first().and_then(|f| Some(f.split_once("-00001-of-")?.0.to_owned()));
        let one = found.len() == 1
            || shards.is_some_and(|stem| found.iter().all(|f| f.starts_with(&format!("{stem}-0"))));
        if one {
            return Ok(found);
        }
        let why = match (found.is_empty(), self.tag.is_some()) {
            (true, true) => format!("has no GGUF file with {tag:?} in its name"),
            (true, false) => "has neither safetensors with a config.json nor a GGUF file".into(),
            (false, _) => format!("has several GGUF files; add one's tag, as in :Q8_0: {}", found.join(", ")),
        };
        Err(Error::Asked(format!("{}/{}: {why}", self.owner, self.name)))
    }

    #[cfg(not(feature = "hub"))]
    fn fetch(&self) -> Result<PathBuf, Error> {
        Err(Error::Asked(format!(
            "{0}/{1}: no such path, and not in the hub's cache ({2}); fetch it with `hf download {0}/{1}`, or build with `--features hub`",
            self.owner,
            self.name,
            Self::cache()?.display(),
        )))
    }
}

fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// The names of a snapshot's files, one folder deep at most.
fn files_of(snapshot: &Path) -> Vec<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut files = Vec::new();
    for name in names(snapshot) {
        let path = snapshot.join(&name);
        match path.is_dir() {
            true => files.extend(names(&path).into_iter().map(|inner| format!("{name}/{inner}"))),
            // A link to a blob that is not there yet is no file.
            false if path.is_file() => files.push(name),
            false => {}
        }
    }
    files.sort();
    files
}

/// Did a fetch of this model end before its time? Its files then lie beside the whole ones, and others may not have been begun.
fn interrupted(folder: &Path) -> bool {
    let blobs = fs::read_dir(folder.join("blobs")).into_iter().flatten().flatten();
    blobs.into_iter().any(|blob| blob.path().extension().is_some_and(|end| end == "incomplete"))
}

/// Are all shards there that the files themselves speak of?
fn complete(snapshot: &Path, chosen: &[String], there: &[String]) -> bool {
    let has = |name: &str| there.iter().any(|f| f == name);
    if let Some(shards) =
        chosen.first().and_then(|f| f.split_once("-00001-of-")?.1.get(..5)?.parse::<usize>().ok())
    {
        return chosen.len() == shards;
    }
    let Ok(index) = fs::read(snapshot.join("model.safetensors.index.json")) else { return true };
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap_or_default();
    let map = index.get("weight_map").and_then(|m| m.as_object());
    map.is_some_and(|map| map.values().all(|file| file.as_str().is_some_and(has)))
}

fn model_path(snapshot: &Path, chosen: &[String]) -> PathBuf {
    match chosen.first() {
        Some(file) if file.to_ascii_lowercase().ends_with(".gguf") => snapshot.join(file),
        _ => snapshot.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_and_paths_are_told_apart() {
        let name = HubName::parse("acme/tiny-1.5@refs/pr/1:Q8_0").unwrap();
        assert_eq!((name.owner.as_str(), name.name.as_str()), ("acme", "tiny-1.5"));
        assert_eq!((name.revision.as_deref(), name.tag.as_deref()), (Some("refs/pr/1"), Some("Q8_0")));
        for path in [
            "tiny",
            "./acme/tiny",
            "/acme/tiny",
            "acme/tiny/file",
            "../tiny",
            "a/..",
            "a/b@../c",
            "a/b:",
            "a b/c",
        ] {
            assert_eq!(HubName::parse(path), None, "{path}");
        }
    }

    #[test]
    fn a_repository_yields_one_model() {
        let chosen = |tag: &str, files: &[&str]| {
            let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
            HubName::parse(&format!("a/b{tag}")).unwrap().choose(&files).map_err(|e| e.to_string())
        };
        let directory =
            ["README.md", "config.json", "model.safetensors", "onnx/config.json", "tokenizer.json"];
        assert_eq!(chosen("", &directory).unwrap(), ["config.json", "model.safetensors", "tokenizer.json"]);
        let files = ["m-Q4_0.gguf", "m-Q8_0.gguf", "config.json"];
        assert_eq!(chosen(":q8_0", &files).unwrap(), ["m-Q8_0.gguf"]);
        assert!(chosen("", &files).unwrap_err().contains("m-Q4_0.gguf, m-Q8_0.gguf"));
        assert!(chosen(":Q5", &files).unwrap_err().contains("q5"));
        let shards = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(chosen("", &shards).unwrap(), shards);
        assert!(chosen("", &["README.md"]).is_err());
    }
}

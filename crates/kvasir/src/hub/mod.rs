//! Hugging Face Hub models by name: `OWNER/NAME[@REVISION][:TAG]`, where a tag selects one of
//! several GGUF files. Prefixes such as `hf.co/` are accepted, and so are the [short names](ShortNames) of well-known
//! models.
//!
//! A complete model in the hub cache is used without network access; anything missing is fetched by
//! the hub's own client, with the feature `hub`.

pub(crate) mod cached;
#[cfg(feature = "hub")]
pub(crate) mod fetch;
pub(crate) mod short_names;

use crate::error::Error;
use crate::hub::short_names::ShortNames;
use std::{
    collections::BTreeSet,
    env,
    fmt::{self, Display},
    fs,
    path::{Path, PathBuf},
};

/// A model's name on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    owner: String,
    name: String,
    revision: Option<String>,
    tag: Option<String>,
    /// The short name that stands for it.
    short: Option<String>,
}

/// Progress of the fetch of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchProgress<'a> {
    /// The file's name in its repository.
    pub file: &'a str,
    /// SHA-256 of its content in hexadecimal, if the hub lists one.
    pub sha256: Option<&'a str>,
    /// Its size in bytes.
    pub total: u64,
    /// Bytes fetched so far.
    pub completed: u64,
}

/// Receives the progress of a fetch.
type OnProgress<'a> = &'a mut dyn FnMut(FetchProgress<'_>);

/// What other tools write before a name of the hub.
const PREFIXES: [&str; 5] = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/", "hf:"];

impl HubName {
    /// Parses a hub name; `None` if the text can only be a path.
    pub fn parse(text: &str) -> Option<Self> {
        let text = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
        let (text, tag) = cut(text, ':');
        let (text, revision) = cut(text, '@');
        let (owner, name) = text.split_once('/')?;
        let whole = plain(owner)
            && plain(name)
            && tag.is_none_or(plain)
            && revision.is_none_or(|r| r.split('/').all(plain));
        whole.then(|| Self {
            owner: owner.into(),
            name: name.into(),
            revision: revision.map(Into::into),
            tag: tag.map(Into::into),
            short: None,
        })
    }

    /// Resolves a path or hub name to a local path. An existing path is never treated as a name.
    pub fn locate(told: &Path) -> Result<PathBuf, Error> {
        match told.to_str().and_then(Self::parse) {
            Some(name) if !told.exists() => name.find(),
            _ => Ok(told.to_owned()),
        }
    }

    /// Parses a hub name or one of the [short names](ShortNames).
    pub fn named(text: &str) -> Option<Self> {
        let of_short =
            || Some(Self { short: Some(text.to_owned()), ..Self::parse(ShortNames::hub_name(text)?)? });
        Self::parse(text).or_else(of_short)
    }

    /// Folder of the hub cache, located as the hub's own tools do.
    pub fn cache() -> Result<PathBuf, Error> {
        cache_of(&set).ok_or_else(|| {
            Error::invalid("model", "HF_HUB_CACHE, HF_HOME or HOME must say where the hub's cache is")
        })
    }

    /// Refuses: this build cannot fetch.
    #[cfg(not(feature = "hub"))]
    fn fetch(&self, missing: &str, _: Option<OnProgress<'_>>) -> Result<PathBuf, Error> {
        Err(self.invalid(format!("{missing}, and this build cannot fetch models (feature `hub`)")))
    }

    /// The model's folder in a cache.
    fn folder(&self, cache: &Path) -> PathBuf {
        cache.join(format!("models--{}--{}", self.owner, self.name))
    }

    fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// Local path of the model. Fetches it if it is not in the cache, with the progress on stderr.
    pub fn find(&self) -> Result<PathBuf, Error> {
        self.find_or_fetch(None)
    }

    /// [`HubName::find`] that passes the progress to `report` instead of writing it to stderr.
    pub fn find_with_progress(&self, report: &mut dyn FnMut(FetchProgress<'_>)) -> Result<PathBuf, Error> {
        self.find_or_fetch(Some(report))
    }

    fn find_or_fetch(&self, report: Option<OnProgress<'_>>) -> Result<PathBuf, Error> {
        let revision = self.revision();
        let folder = self.folder(&Self::cache()?);
        let reference = folder.join("refs").join(revision);
        let commit = fs::read_to_string(&reference);
        let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
        // The requested revision was validated by `parse`; the file's content is validated here.
        if commit != revision && !plain(&commit) {
            return Err(Error::Failed(format!("{}: holds no commit's name", reference.display())));
        }
        let snapshot = folder.join("snapshots").join(commit);
        let there = files_of(&snapshot);
        if there.is_empty() {
            let missing = match folder.exists() {
                true => format!("revision {revision} is not in the hub's cache"),
                false if self.short.is_some() => "not in the hub's cache".into(),
                false => "no such path, and not in the hub's cache".into(),
            };
            return self.fetch(&missing, report);
        }
        let interrupted = interrupted(&folder);
        match self.choose(&there) {
            Ok(chosen) => {
                let missing = missing(&snapshot, &chosen, &there);
                if !missing.is_empty() {
                    let missing = Vec::from_iter(missing).join(", ");
                    return self.fetch(&format!("in the hub's cache without {missing}"), report);
                }
                let path = model_path(&snapshot, &chosen);
                // The interrupted fetch may concern other files: fall back to what is complete.
                if interrupted {
                    self.fetch("in the hub's cache, but a fetch was interrupted", report).or(Ok(path))
                } else {
                    Ok(path)
                }
            }
            Err(why) if interrupted || self.tag.is_some() => {
                self.fetch(&format!("in the hub's cache, it {why}"), report)
            }
            Err(why) => Err(self.invalid(why)),
        }
    }

    fn invalid(&self, why: impl Display) -> Error {
        Error::invalid("model", format!("{}: {why}", self.name_in_errors()))
    }

    /// The name in error messages: the repository, or the short name with its hub name.
    fn name_in_errors(&self) -> String {
        match &self.short {
            Some(short) => format!("{short} is {self}"),
            None => format!("{}/{}", self.owner, self.name),
        }
    }

    /// Names that its GGUF file may have outside of the cache.
    pub(crate) fn file_names(&self) -> Vec<String> {
        let stem = self.name.strip_suffix("-GGUF").or_else(|| self.name.strip_suffix("-gguf"));
        let stem = stem.unwrap_or(&self.name);
        let tagged = self.tag.iter().map(|tag| format!("{stem}-{tag}.gguf"));
        tagged.chain([format!("{stem}.gguf"), stem.to_owned()]).collect()
    }

    /// Selects the files of a repository that form the model.
    fn choose(&self, files: &[String]) -> Result<Vec<String>, String> {
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
        // Shards of one model count as one choice.
        let shards = found.first().and_then(|file| shards(file));
        if found.len() == 1 || shards.is_some() && found.iter().all(|file| self::shards(file) == shards) {
            return Ok(found);
        }
        Err(match (found.is_empty(), self.tag.is_some()) {
            (true, true) => format!("has no GGUF file with {tag:?} in its name"),
            (true, false) if files.iter().any(|f| ends(f, ".bin")) => {
                "has its weights as `.bin` files only, which are not read; name a repository with safetensors"
                    .into()
            }
            (true, false) => "has neither safetensors with a config.json nor a GGUF file".into(),
            (false, _) => format!("has several GGUF files; add one's tag, as in :Q8_0: {}", found.join(", ")),
        })
    }
}

impl Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.tag.iter().try_for_each(|tag| write!(f, ":{tag}"))
    }
}

/// Whether a name component is safe as a path component.
fn plain(part: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !part.is_empty() && !part.starts_with('.') && part.chars().all(known)
}

/// A non-empty environment variable as a path.
fn set(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Expands a leading `~`.
fn from_home(path: PathBuf, set: &impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    match path.strip_prefix("~") {
        Ok(rest) => set("HOME").map_or(path.clone(), |home| home.join(rest)),
        Err(_) => path,
    }
}

/// Home folder of the hub's tools, by their precedence of environment variables.
fn home_of(set: &impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let folder = set("HF_HOME")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("huggingface")))
        .or_else(|| Some(set("HOME")?.join(".cache/huggingface")))?;
    Some(from_home(folder, set))
}

/// Folder of the hub cache, by the tools' precedence of environment variables.
fn cache_of(set: &impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let told = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
    told.map(|folder| from_home(folder, set)).or_else(|| Some(home_of(set)?.join("hub")))
}

fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(before, after)| (before, Some(after)))
}

/// File names of a snapshot, at most one folder deep.
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
            // A dangling link to a blob is not a file.
            false if path.is_file() => files.push(name),
            false => {}
        }
    }
    files.sort();
    files
}

/// Whether an interrupted fetch left partial blobs; other files may be missing entirely.
fn interrupted(folder: &Path) -> bool {
    let blobs = fs::read_dir(folder.join("blobs")).into_iter().flatten().flatten();
    blobs
        .into_iter()
        .any(|blob| blob.path().extension().is_some_and(|end| end == "part" || end == "incomplete"))
}

/// Common stem and count of the shards of a GGUF model.
fn shards(file: &str) -> Option<(&str, u32)> {
    let (numbered, of) = file.rsplit_once("-of-")?;
    let (stem, number) = numbered.rsplit_once('-')?;
    let five = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    let of = of.get(..5).filter(|of| five(of) && five(number))?;
    Some((stem, of.parse().ok()?))
}

/// Shards that the present files refer to but that are missing.
fn missing(snapshot: &Path, chosen: &[String], there: &[String]) -> BTreeSet<String> {
    if let Some((stem, of)) = chosen.first().and_then(|file| shards(file)) {
        let all = (1..=of).map(|n| format!("{stem}-{n:05}-of-{of:05}.gguf"));
        return all.filter(|file| !chosen.iter().any(|f| f.eq_ignore_ascii_case(file))).collect();
    }
    const INDEX: &str = "model.safetensors.index.json";
    let Ok(index) = fs::read(snapshot.join(INDEX)) else { return BTreeSet::new() };
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap_or_default();
    let Some(map) = index.get("weight_map").and_then(|m| m.as_object()) else {
        return BTreeSet::from([format!("a whole {INDEX}")]);
    };
    let files = map.values().filter_map(|file| file.as_str());
    files.filter(|file| !there.iter().any(|f| f == file)).map(str::to_owned).collect()
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
    fn hub_names_are_distinguished_from_paths() {
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
            HubName::parse(&format!("a/b{tag}")).unwrap().choose(&files)
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
        assert!(chosen("", &["README.md"]).unwrap_err().contains("neither"));
        let pickled = ["config.json", "pytorch_model.bin"];
        assert!(chosen("", &pickled).unwrap_err().contains("`.bin` files only"));
    }
    #[test]
    fn the_cache_is_where_its_own_tools_look() {
        let cache = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            cache_of(&find).map(|folder: PathBuf| folder.display().to_string())
        };
        assert_eq!(cache(&[]), None);
        let home = ("HOME", "/h");
        for (set, found) in [
            (vec![home], "/h/.cache/huggingface/hub"),
            (vec![home, ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (vec![home, ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/f")], "/h/f/hub"),
            (vec![home, ("HF_HOME", "/f"), ("HUGGINGFACE_HUB_CACHE", "~/old")], "/h/old"),
            (vec![home, ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "~")], "/h"),
            (vec![("HF_HUB_CACHE", "/a/~/b")], "/a/~/b"),
        ] {
            assert_eq!(cache(&set).as_deref().map(|f| f.trim_end_matches('/')), Some(found));
        }
    }

    #[test]
    fn missing_shards_are_named() {
        let files = |names: &[&str]| names.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>();
        let of = |names: &[&str]| {
            let names = files(names);
            missing(Path::new("/none"), &names, &names).into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&["m-00002-of-00003.gguf"]), "m-00001-of-00003.gguf m-00003-of-00003.gguf");
        assert_eq!(of(&["m-00001-of-00001.gguf"]), "");
        assert_eq!(of(&["m-of-all.gguf"]), "");
    }
}

//! Downloads missing files of a hub model through the hub's own client (`hf-hub`).
//!
//! Untrusted input: listed names must stay inside the snapshot, and sizes must match the listing.
//! The revision's ref is written last, so it only ever names a complete snapshot.

use crate::error::Error;
use crate::hub::{FetchProgress, HubName, OnProgress, home_of, model_path, plain, set};
use hf_hub::{
    Cache, Repo, RepoType,
    api::{
        Progress,
        sync::{ApiBuilder, ApiError, ApiRepo},
    },
};
use serde::Deserialize;
use std::{
    fs,
    path::{Component, Path, PathBuf},
};

/// Retries of an interrupted transfer, each resuming where it broke off.
const RETRIES: usize = 3;

/// The hub's listing of a revision.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

/// The hub's listing of a file in Git LFS.
#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

/// Adapts the hub client's progress of one file to [`FetchProgress`].
struct FileProgress<'a> {
    report: OnProgress<'a>,
    listed: &'a Listed,
    total: u64,
    completed: u64,
}

impl FileProgress<'_> {
    fn report(&mut self) {
        let sha256 = self.listed.lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref());
        let (file, total, completed) = (self.listed.rfilename.as_str(), self.total, self.completed);
        (self.report)(FetchProgress { file, sha256, total, completed });
    }
}

impl Progress for FileProgress<'_> {
    fn init(&mut self, size: usize, _: &str) {
        (self.total, self.completed) = (size as u64, 0);
        self.report();
    }

    fn update(&mut self, size: usize) {
        self.completed += size as u64;
        self.report();
    }

    fn finish(&mut self) {}
}

impl HubName {
    /// Fetches the model; `missing` says what the cache lacks, for errors. Without `report`, the
    /// progress goes to stderr.
    pub(super) fn fetch(&self, missing: &str, mut report: Option<OnProgress<'_>>) -> Result<PathBuf, Error> {
        if variable("HF_HUB_OFFLINE").is_some_and(|value| value != "0") {
            return Err(self.invalid(format!("{missing}, and HF_HUB_OFFLINE forbids to fetch it")));
        }
        if let (Some(short), None) = (&self.short, &report) {
            eprintln!("kvasir: {short} is {self}; fetching it from the hub");
        }
        let cache = Self::cache()?;
        let failed = |e: ApiError| {
            let why = why(&e);
            Error::Failed(format!("{}: {missing}; {why}: {e}", self.name_in_errors()))
        };
        let mut builder = ApiBuilder::from_cache(Cache::new(cache.clone())).with_retries(RETRIES);
        if let Some(endpoint) = variable("HF_ENDPOINT") {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').into());
        }
        let api = builder.with_token(token()).build().map_err(failed)?;
        let repository = |revision: &str| {
            Repo::with_revision(format!("{}/{}", self.owner, self.name), RepoType::Model, revision.into())
        };
        let repo = repository(self.revision());
        let Listing { sha, siblings } = listing(&api.repo(repo.clone())).map_err(failed)?;
        let stays_inside =
            |file: &str| Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
        let names = siblings.iter().map(|file| file.rfilename.clone()).filter(|file| stays_inside(file));
        let chosen = self.choose(&names.collect::<Vec<_>>()).map_err(|why| self.invalid(why))?;
        if !plain(&sha) {
            return Err(Error::Failed(format!("{}/{}: the hub names no commit", self.owner, self.name)));
        }

        // All files come from one commit, and the ref is created only for a complete snapshot.
        let snapshot = self.folder(&cache).join("snapshots").join(&sha);
        let files = api.repo(repository(&sha));
        for (n, file) in chosen.iter().enumerate() {
            let path = snapshot.join(file);
            if path.is_file() {
                continue;
            }
            let listed = siblings.iter().find(|listed| listed.rfilename == *file);
            let size = listed.and_then(|listed| listed.size);
            let (owner, name, of) = (&self.owner, &self.name, chosen.len());
            let there = match (&mut report, listed) {
                (Some(report), Some(listed)) => {
                    let progress = FileProgress { report: &mut **report, listed, total: 0, completed: 0 };
                    files.download_with_progress(file, progress)
                }
                _ => {
                    let size_text =
                        size.map_or_else(String::new, |size| format!(", {:.1} MB", size as f64 / 1e6));
                    eprintln!("kvasir: fetching {file} of {owner}/{name}, file {} of {of}{size_text}", n + 1);
                    files.download(file)
                }
            };
            let there = there.map_err(failed)?;
            let came = fs::metadata(&path).map(|data| data.len()).unwrap_or_default();
            if there != path || size.is_some_and(|size| size != came) {
                // Removes the link as well: a dangling link would block later fetches.
                let _ = there.canonicalize().and_then(fs::remove_file).and_then(|()| fs::remove_file(&there));
                return Err(Error::Failed(format!(
                    "{owner}/{name}: the hub did not send the {file} that it lists; it is not kept, ask again"
                )));
            }
        }
        let reference = Cache::new(cache).repo(repo).create_ref(&sha);
        reference.map_err(|e| failed(e.into()))?;
        Ok(model_path(&snapshot, &chosen))
    }
}

fn listing(repository: &ApiRepo) -> Result<Listing, ApiError> {
    let mut reply = repository.info_request().query("blobs", "true").call().map_err(Box::new)?;
    Ok(reply.body_mut().read_json().map_err(Box::new)?)
}

fn variable(name: &str) -> Option<String> {
    set(name)?.into_os_string().into_string().ok()
}

/// The access token, as the hub's own tools find it.
fn token() -> Option<String> {
    let stored = || {
        let path = set("HF_TOKEN_PATH").or_else(|| Some(home_of(&set)?.join("token")))?;
        fs::read_to_string(path).ok()
    };
    let token = variable("HF_TOKEN").or_else(stored)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

/// Explains a failure to the user.
fn why(error: &ApiError) -> &'static str {
    let status = match error {
        ApiError::RequestError(error) => match **error {
            ureq::Error::StatusCode(status) => status,
            _ => 0,
        },
        ApiError::InvalidResume => 416,
        _ => 0,
    };
    match status {
        401 | 403 => "the hub wants a token that may read it (HF_TOKEN)",
        404 => "the hub has no such model or revision, or wants a token (HF_TOKEN)",
        416 => {
            "what is there of it cannot be continued; delete the cache's *.part of this model and ask again"
        }
        _ => {
            "could not be fetched (`hf download` puts it in the same cache); what has come is kept, and asking again fetches the rest"
        }
    }
}

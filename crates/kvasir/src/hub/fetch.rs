//! What is not in the cache comes from the hub, through its own client.

use super::{HubName, model_path};
use crate::Error;
use hf_hub::{
    HFClient, HFError,
    progress::{DownloadEvent, ProgressEvent, ProgressHandler},
    repository::RepoTreeEntry,
};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};

impl HubName {
    /// Fetches the model, of which so much is `missing`.
    pub(super) fn fetch(&self, missing: &str) -> Result<PathBuf, Error> {
        let failed = |e: HFError| {
            let why = why(&e);
            Error::Failed(format!("{}/{}: {missing}; {why}: {e}", self.owner, self.name))
        };
        let client = HFClient::builder().cache_dir(Self::cache()?).build_sync().map_err(failed)?;
        let repository = client.model(self.owner.clone(), self.name.clone());
        let listed = repository.list_tree().maybe_revision(self.revision.clone()).recursive(true);
        let names = listed.send().map_err(failed)?.into_iter().filter_map(|entry| match entry {
            RepoTreeEntry::File { path, .. } => Some(path),
            RepoTreeEntry::Directory { .. } => None,
        });
        let chosen = self.choose(&names.collect::<Vec<_>>()).map_err(|why| self.asked(why))?;
        eprintln!("kvasir: fetching {} files of {}/{}", chosen.len(), self.owner, self.name);
        let download = repository.snapshot_download().maybe_revision(self.revision.clone());
        let snapshot = download.allow_patterns(chosen.clone()).progress(Bar::default()).send();
        Ok(model_path(&snapshot.map_err(failed)?, &chosen))
    }
}

/// What a failure means to whoever asked.
fn why(error: &HFError) -> &'static str {
    let status = match error {
        HFError::Http { context } => context.status.as_u16(),
        HFError::AuthRequired { .. } | HFError::Forbidden { .. } => 401,
        HFError::RepoNotFound { .. } | HFError::RevisionNotFound { .. } => 404,
        _ => 0,
    };
    match status {
        401 | 403 => "the hub wants a token that may read it (HF_TOKEN)",
        404 => "the hub has no such model or revision, or wants a token (HF_TOKEN)",
        _ => "could not be fetched; whole files are kept, and asking again fetches the others",
    }
}

/// Shows how far a download has come.
#[derive(Default)]
struct Bar(Mutex<Shown>);

#[derive(Default)]
struct Shown {
    total: u64,
    of_file: BTreeMap<String, u64>,
    last: Option<Instant>,
}

impl ProgressHandler for Bar {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        let Ok(mut shown) = self.0.lock() else { return };
        let done = match event {
            DownloadEvent::Start { total_bytes, .. } => {
                shown.total = *total_bytes;
                return;
            }
            DownloadEvent::Progress { files } => {
                let news = files.iter().map(|file| (file.filename.clone(), file.bytes_completed));
                shown.of_file.extend(news);
                shown.of_file.values().sum()
            }
            DownloadEvent::AggregateProgress { bytes_completed, .. } => *bytes_completed,
            DownloadEvent::Complete => shown.total,
        };
        let now = Instant::now();
        let often = shown.last.is_some_and(|last| now - last < Duration::from_secs(1));
        if !often || done == shown.total {
            shown.last = Some(now);
            eprintln!("kvasir: {} of {} MB", done / 1_000_000, shown.total / 1_000_000);
        }
    }
}

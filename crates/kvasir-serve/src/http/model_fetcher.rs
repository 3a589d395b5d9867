//! Fetches models from the hub for clients: one at a time, on a separate thread.
//!
//! The application supplies the function that fetches. A fetch continues when its client
//! disconnects: the client is likely to request the model again.

use crate::error::ApiError;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};

/// Minimum time between two progress reports on one file.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of reports that wait for a slow client; further ones are dropped.
const MAX_PENDING_REPORTS: usize = 256;

/// Progress report on one file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFile {
    /// The file's name.
    pub name: String,
    /// SHA-256 of its content, if it is known.
    pub sha256: Option<String>,
    /// Size of the file in bytes.
    pub total: u64,
    /// Bytes of the file on disk so far.
    pub completed: u64,
}

/// Fetches a model by its name, reports the progress, and returns the name under which it can be
/// served.
pub type FetchModel = fn(&str, &mut dyn FnMut(FetchedFile)) -> Result<String, ApiError>;

/// Fetches models, if the application allows clients to request it.
#[derive(Debug, Default)]
pub(crate) struct ModelFetcher {
    fetch: Option<FetchModel>,
    is_busy: Arc<AtomicBool>,
}

/// A running fetch.
pub(crate) struct Fetch {
    files: mpsc::Receiver<FetchedFile>,
    result: oneshot::Receiver<Result<String, ApiError>>,
}

/// Allows the next fetch when it is dropped, also after a panic.
struct BusyGuard(Arc<AtomicBool>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl ModelFetcher {
    pub(crate) fn new(fetch: Option<FetchModel>) -> Self {
        Self { fetch, is_busy: Arc::default() }
    }

    /// Whether clients may request fetches.
    pub(crate) fn is_allowed(&self) -> bool {
        self.fetch.is_some()
    }

    /// Starts to fetch `name`; `on_end` receives the result even if the client disconnects. `None`
    /// if clients may not request fetches.
    pub(crate) fn start(
        &self,
        name: String,
        on_end: impl FnOnce(&Result<String, ApiError>) + Send + 'static,
    ) -> Option<Result<Fetch, ApiError>> {
        let fetch = self.fetch?;
        if self.is_busy.swap(true, Ordering::Acquire) {
            let why = "another model is being fetched; try again when that is done";
            return Some(Err(ApiError::conflict("model", why)));
        }
        let busy = BusyGuard(self.is_busy.clone());
        let (send_file, files) = mpsc::channel(MAX_PENDING_REPORTS);
        let (send_result, result) = oneshot::channel();
        let run = move || {
            let busy = busy;
            let mut last: Option<(String, Instant)> = None;
            let result = fetch(&name, &mut |file| {
                let is_recent =
                    |(name, at): &(String, Instant)| *name == file.name && at.elapsed() < REPORT_INTERVAL;
                if file.completed < file.total && last.as_ref().is_some_and(is_recent) {
                    return;
                }
                last = Some((file.name.clone(), Instant::now()));
                // Fails if the client is slow or has disconnected.
                let _ = send_file.try_send(file);
            });
            on_end(&result);
            drop((busy, send_file));
            let _ = send_result.send(result);
        };
        let spawned = thread::Builder::new().name("fetch".into()).spawn(run);
        Some(match spawned {
            Ok(_) => Ok(Fetch { files, result }),
            Err(_) => Err(ApiError::unavailable("no thread can be started; try again")),
        })
    }
}

impl Fetch {
    /// The next report; `None` when the fetch has ended.
    pub(crate) async fn next_file(&mut self) -> Option<FetchedFile> {
        self.files.recv().await
    }

    /// The name under which the fetched model can be served.
    pub(crate) async fn result(self) -> Result<String, ApiError> {
        self.result.await.unwrap_or_else(|_| Err(ApiError::failed("fetching the model failed")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, mpsc as sync};
    use tokio::runtime::Builder;

    /// Blocks every fetch while it is locked.
    static GATE: Mutex<()> = Mutex::new(());

    fn fetch(name: &str, report: &mut dyn FnMut(FetchedFile)) -> Result<String, ApiError> {
        let file = |completed| FetchedFile { name: "f".into(), sha256: None, total: 9, completed };
        (0..=9).for_each(|completed| report(file(completed)));
        drop(GATE.lock());
        if name == "panic" { panic!("a fetch that fails") } else { Ok(name.to_owned()) }
    }

    #[test]
    fn one_fetch_runs_at_a_time_and_outlives_its_client() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let fetcher = ModelFetcher::new(Some(fetch));
        let start = |name: &str| {
            let (send, ended) = sync::channel();
            let fetch = fetcher.start(name.into(), move |result| drop(send.send(result.clone())));
            (fetch.unwrap(), ended)
        };
        let held = GATE.lock().unwrap();
        let (first, ended) = start("one");
        assert_eq!(start("two").0.err().unwrap().status, 409);
        // The client disconnects, and the fetch continues.
        drop(first);
        assert_eq!(start("two").0.err().unwrap().status, 409);
        drop(held);
        assert_eq!(ended.recv(), Ok(Ok("one".to_owned())));
        let until_free = |name: &str| loop {
            match start(name).0 {
                Ok(fetch) => return fetch,
                Err(_) => thread::yield_now(),
            }
        };
        let mut third = until_free("three");
        let files = runtime.block_on(async {
            let mut files = Vec::new();
            while let Some(file) = third.next_file().await {
                files.push(file.completed);
            }
            files
        });
        // The first report, and that of the complete file.
        assert_eq!(files, [0, 9]);
        assert_eq!(runtime.block_on(third.result()), Ok("three".to_owned()));
        assert_eq!(runtime.block_on(until_free("panic").result()).unwrap_err().status, 500);
        assert!(runtime.block_on(until_free("four").result()).is_ok());
        assert!(ModelFetcher::default().start("one".into(), |_| {}).is_none());
    }
}

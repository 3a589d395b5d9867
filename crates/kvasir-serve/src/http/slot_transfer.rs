//! Saves and restores llama.cpp's slots: the tokens of a slot with their K/V.
//!
//! - *Save*: submits one request per chunk, whose prompt are the slot's tokens up to the end of the
//!   chunk. It recomputes evicted K/V and exports the blocks of its chunk, so at most one chunk is
//!   in memory.
//! - *Restore*: verifies the whole file, then imports its chunks into the prefix cache under the
//!   salt of the caller's key. The cache hit of a request after each import confirms that it is
//!   stored.
//!
//! One slot is saved or restored at a time.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::host::engine_thread::Submission;
use crate::host::errors::{failure, stopped};
use crate::host::request_output::RequestOutput;
use crate::http::access::rate_limits::Charge;
use crate::http::app::App;
use crate::http::slot_files::{SlotFileWriter, SlotFiles, open_verified, restore_error};
use crate::request::body::Body;
use crate::request::sampling::SamplingFields;
use crate::session::slots::{SlotContent, SlotRecorder};
use kvasir_engine::{KvFileError, KvFileHeader, KvImport, Request};
use kvasir_kv::Token;
use std::{ops::Range, path::PathBuf, sync::Arc, time::Duration};
use tokio::{task::spawn_blocking, time::sleep};

/// Minimum output tokens of an exporting request: it must still run when its last block is
/// exported.
const MIN_OUTPUT_TOKENS: u32 = 2;
/// Maximum time between the end of a request and the arrival of its exports.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Size of a file that was saved or restored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferSize {
    /// Tokens with K/V.
    pub(crate) tokens: u32,
    /// Length of the file in bytes.
    pub(crate) bytes: u64,
}

/// Saves and restores slots of one API key.
pub(super) struct SlotTransfer<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) files: &'a SlotFiles,
    pub(super) key: u64,
}

impl SlotTransfer<'_> {
    /// Saves the content of a slot to a file.
    pub(super) async fn save(&self, content: SlotContent, path: PathBuf) -> Result<TransferSize, ApiError> {
        let Self { app, files, .. } = *self;
        let _guard = files.transfer_lock.lock().await;
        let SlotContent { ref tokens, final_len } = content;
        let exportable = (tokens.len() as u32).min(final_len.saturating_sub(MIN_OUTPUT_TOKENS));
        let block_size = files.exports.block_size;
        let header = KvFileHeader {
            kv_fingerprint: files.kv_fingerprint,
            layout: files.exports.layout.clone(),
            block_size,
            final_len,
            prefix_salt: (app.model.facts.prefix_salt)(final_len),
            tokens: tokens.to_vec(),
            row_count: exportable / block_size * block_size,
        };
        self.charge_tokens(header.row_count)?;
        let (saved_tokens, chunks) = (header.row_count, header.chunks());
        let mut output = run_blocking(move || SlotFileWriter::create(&path, &header)).await?;
        for chunk in chunks {
            output = self.export_chunk(&content, chunk, output).await?;
        }
        let bytes = run_blocking(move || output.finish()).await?;
        Ok(TransferSize { tokens: saved_tokens, bytes })
    }

    /// Exports the rows of a chunk to the file. Recomputes K/V that is no longer cached.
    async fn export_chunk(
        &self,
        content: &SlotContent,
        chunk: Range<u32>,
        mut output: SlotFileWriter,
    ) -> Result<SlotFileWriter, ApiError> {
        let prompt = content.tokens[..chunk.end as usize].to_vec();
        let mut submission = self.slot_request(prompt, content.final_len)?;
        submission.request.params.hand_off = Some(chunk.start);
        let mut exports = self.files.exports.subscribe();
        let mut stream = self.app.host.submit(vec![submission], 1)?.pop().ok_or_else(stopped)?;
        let (mut received, mut written, mut ended) = (RequestOutput::default(), chunk.start, false);
        while written < chunk.end {
            let export = tokio::select! {
                biased;
                export = exports.recv() => export,
                result = stream.next(&mut received), if !ended => {
                    result?;
                    if let Some(summary) = received.ended.take() {
                        failure(summary.finish).map_or(Ok(()), Err)?;
                        ended = true;
                    }
                    continue;
                }
                () = sleep(EXPORT_TIMEOUT), if ended => None,
            };
            let export = export.ok_or_else(|| ApiError::failed("the engine exported no K and V"))?;
            if export.tag != stream.tag() || export.tokens == 0 {
                continue;
            }
            if export.start != written {
                return Err(ApiError::failed("the engine exported K and V out of order"));
            }
            written += export.tokens;
            output = run_blocking(move || output.write(&export.rows)).await?;
        }
        Ok(output)
    }

    /// Restores the content of a slot from a file. Changes nothing if the file is refused.
    pub(super) async fn restore(&self, path: PathBuf) -> Result<(SlotContent, TransferSize), ApiError> {
        let Self { app, files, key } = *self;
        let _guard = files.transfer_lock.lock().await;
        let (kv_fingerprint, exports) = (files.kv_fingerprint, files.exports.clone());
        let mut file = run_blocking(move || open_verified(&path, kv_fingerprint, &exports)).await?;
        let header = file.header().clone();
        check_fits_model(app, &header)?;
        self.charge_tokens(header.row_count)?;
        let salt = app.prefix_salt(key, None, header.final_len);
        for chunk in header.chunks() {
            let rows;
            let part = chunk.clone();
            (file, rows) = run_blocking(move || {
                let mut rows = Vec::new();
                file.read_chunk(&part, &mut rows).map_err(restore_error)?;
                Ok((file, rows))
            })
            .await?;
            let tokens = header.tokens[..chunk.end as usize].to_vec();
            // A prefix lookup excludes the last token of the prompt.
            let mut prompt = tokens.clone();
            prompt.push(header.tokens.get(chunk.end as usize).copied().unwrap_or_default());
            app.host.import_kv(KvImport { salt, tokens, start: chunk.start, rows })?;
            if self.cached_tokens(prompt, header.final_len).await? < chunk.end {
                return Err(ApiError::unavailable(format!(
                    "the KV cache has no room for the {} tokens of the file at the moment",
                    header.row_count
                )));
            }
        }
        let size = TransferSize { tokens: header.row_count, bytes: file.bytes() };
        Ok((SlotContent { tokens: header.tokens.into(), final_len: header.final_len }, size))
    }

    /// Charges the tokens of a file to the key's rate limit, like those of a prompt.
    fn charge_tokens(&self, tokens: u32) -> Result<(), ApiError> {
        let charge = Charge { requests: 0, tokens: tokens.into() };
        self.app.access.charge(self.key, charge, self.app.host.metrics())
    }

    /// A request for `prompt` whose K/V has the salt and the RoPE of a sequence of `final_len`
    /// tokens.
    fn slot_request(&self, prompt: Vec<Token>, final_len: u32) -> Result<Submission, ApiError> {
        let Self { app, key, .. } = *self;
        let facts = &app.model.facts;
        let mut fields = SamplingFields::read(&Body::default().reader(), &facts.sampling, facts.vocab)?;
        fields.length.max_tokens = Some(1);
        fields.ignore_eos = true;
        let used = prompt.len() as u32;
        let mut submission = app.submission("id_slot", prompt, &fields, key)?;
        submission.request.params.max_tokens = final_len.saturating_sub(used).max(1);
        submission.request.params.salt = app.prefix_salt(key, None, final_len);
        Ok(submission)
    }

    /// Number of cached tokens of a prompt, from the admission of a request that is then aborted.
    async fn cached_tokens(&self, prompt: Vec<Token>, final_len: u32) -> Result<u32, ApiError> {
        let submission = self.slot_request(prompt, final_len)?;
        let mut stream = self.app.host.submit(vec![submission], 1)?.pop().ok_or_else(stopped)?;
        let mut output = RequestOutput::default();
        loop {
            stream.next(&mut output).await?;
            if let Some(cached) = output.cached {
                return Ok(cached);
            }
            if let Some(summary) = output.ended.take() {
                return failure(summary.finish).map_or(Ok(summary.cached), Err);
            }
        }
    }
}

impl App {
    /// Number of slots of a key: the maximum of its concurrent requests.
    pub(super) fn slot_count(&self, key: u64) -> u32 {
        let engines = self.host.replicas().map_or(1, |replicas| replicas.status().len());
        let running = (self.live.ranks.max_num_seqs as usize).saturating_mul(engines);
        u32::try_from(self.host.at_once(key, 1).min(running)).unwrap_or(u32::MAX)
    }

    /// Assigns a request to a slot, which records its tokens. `None` if slots cannot be saved, if
    /// none is idle, or for a request with a `cache_salt`, because a file has no salt.
    pub(super) fn assign_slot(
        &self,
        fields: &SamplingFields,
        request: &Request,
    ) -> Result<Option<SlotRecorder>, ApiError> {
        if self.rules.slot_files.is_none() {
            if fields.slot.is_some() {
                RequestContext::current().ignored.record("id_slot");
            }
            return Ok(None);
        }
        let (key, count) = (request.params.key, self.slot_count(request.params.key));
        if fields.slot.is_some_and(|slot| slot >= count) {
            return Err(no_such_slot("id_slot", count));
        }
        if fields.cache_salt.is_some() {
            return Ok(None);
        }
        let final_len = (request.prompt.len() as u32).saturating_add(request.params.max_tokens);
        let final_len = final_len.min(self.model.facts.max_len);
        Ok(self.slots.assign(key, fields.slot, count, &request.prompt, final_len))
    }
}

/// The error for a slot number that is not below `count`.
pub(super) fn no_such_slot(param: &str, count: u32) -> ApiError {
    ApiError::param(param, format!("`{param}` must be a slot from 0 to {}", count.saturating_sub(1)))
}

/// Runs blocking file operations outside of the async runtime.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work).await.map_err(|_| ApiError::failed("the file operation failed"))?
}

/// Checks that this server can continue the tokens of a file: context length, number of rows,
/// vocabulary, prefix salt.
fn check_fits_model(app: &App, header: &KvFileHeader) -> Result<(), ApiError> {
    let facts = &app.model.facts;
    let len = header.tokens.len();
    if len > facts.max_len as usize || header.final_len > facts.max_len {
        let why = format!(
            "the file needs a context of {} tokens, and this server's has {}",
            header.final_len, facts.max_len
        );
        return Err(ApiError::param("filename", why));
    }
    let corrupt = |why: String| {
        let message = format!("the file cannot be restored: its header is corrupt: {why}");
        Err(ApiError::param("filename", message))
    };
    let row_count = header.row_count;
    if row_count > 0 && row_count.saturating_add(MIN_OUTPUT_TOKENS) > header.final_len {
        return corrupt(format!("`{row_count}` rows do not fit the final length `{}`", header.final_len));
    }
    if let Some(token) = header.tokens.iter().find(|token| **token >= facts.vocab) {
        return corrupt(format!("token `{token}` is not in the vocabulary of `{}` tokens", facts.vocab));
    }
    if header.prefix_salt == (facts.prefix_salt)(header.final_len) {
        Ok(())
    } else {
        Err(restore_error(KvFileError::ModelMismatch))
    }
}

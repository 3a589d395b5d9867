//! Saves and restores llama.cpp's slots: the tokens of a slot with their K/V.
//!
//! - *Save*: requests with the slot's tokens as prompt, which compute what is no longer cached,
//!   export the blocks of a chunk each. So a chunk at most is in memory.
//! - *Restore*: the whole file is verified first. Its chunks are then imported into the prefix
//!   cache under the salt of the caller's key, and a request behind each confirms that it is cached.
//!
//! One slot is saved or restored at a time.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::host::engine_thread::Submission;
use crate::host::errors::{failure, stopped};
use crate::host::request_output::RequestOutput;
use crate::http::access::rate_limits::Charge;
use crate::http::app::App;
use crate::http::slot_files::{Output, SlotFiles, open, unusable};
use crate::request::body::Body;
use crate::request::sampling::SamplingFields;
use crate::session::slots::{SlotContent, SlotRecorder};
use kvasir_engine::{KvFileError, KvFileHeader, KvImport, Request};
use kvasir_kv::Token;
use std::{ops::Range, path::PathBuf, sync::Arc, time::Duration};
use tokio::{task::spawn_blocking, time::sleep};

/// Tokens that a request needs behind its prompt, so that it runs when its last block is exported.
const BEHIND: u32 = 2;
/// Time for exports of a request that has ended.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Tokens with K/V, and bytes, of a file that was saved or restored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transferred {
    pub(crate) tokens: u32,
    pub(crate) bytes: u64,
}

/// Saves the content of a slot.
pub(super) async fn save(
    files: &SlotFiles,
    app: &Arc<App>,
    key: u64,
    content: SlotContent,
    path: PathBuf,
) -> Result<Transferred, ApiError> {
    let _turn = files.turn.lock().await;
    let SlotContent { tokens, final_len } = content;
    let with_rows = (tokens.len() as u32).min(final_len.saturating_sub(BEHIND));
    let block_size = files.exports.block_size;
    let header = KvFileHeader {
        model: files.model,
        layout: files.exports.layout.clone(),
        block_size,
        final_len,
        prefix_salt: (app.model.facts.prefix_salt)(final_len),
        tokens: tokens.to_vec(),
        rows: with_rows / block_size * block_size,
    };
    charge(app, key, header.rows)?;
    let (rows, chunks) = (header.rows, header.chunks());
    let mut output = blocking(move || Output::create(&path, &header)).await?;
    for chunk in chunks {
        output = export(files, app, key, &tokens, final_len, chunk, output).await?;
    }
    let bytes = blocking(move || output.finish()).await?;
    Ok(Transferred { tokens: rows, bytes })
}

/// Computes what is not cached of the tokens up to the end of a chunk, and writes its rows.
async fn export(
    files: &SlotFiles,
    app: &Arc<App>,
    key: u64,
    tokens: &[Token],
    final_len: u32,
    chunk: Range<u32>,
    mut output: Output,
) -> Result<Output, ApiError> {
    let mut submission = slot_request(app, key, tokens[..chunk.end as usize].to_vec(), final_len)?;
    submission.request.params.hand_off = Some(chunk.start);
    let mut exports = files.exports.receive();
    let mut stream = app.host.submit(vec![submission], 1)?.pop().ok_or_else(stopped)?;
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
        let export = export.ok_or_else(|| ApiError::failed("the engine has exported no K and V"))?;
        if export.tag != stream.tag() || export.tokens == 0 {
            continue;
        }
        if export.start != written {
            return Err(ApiError::failed("the engine has exported K and V in another order"));
        }
        written += export.tokens;
        output = blocking(move || output.write(&export.rows)).await?;
    }
    Ok(output)
}

/// Restores the content of a slot. A file that does not fit changes nothing.
pub(super) async fn restore(
    files: &SlotFiles,
    app: &Arc<App>,
    key: u64,
    path: PathBuf,
) -> Result<(SlotContent, Transferred), ApiError> {
    let _turn = files.turn.lock().await;
    let (model, exports) = (files.model, files.exports.clone());
    let mut file = blocking(move || open(&path, model, &exports)).await?;
    let header = file.header().clone();
    check_content(app, &header)?;
    charge(app, key, header.rows)?;
    let salt = app.prefix_salt(key, None, header.final_len);
    for chunk in header.chunks() {
        let rows;
        let part = chunk.clone();
        (file, rows) = blocking(move || {
            let mut rows = Vec::new();
            file.read(&part, &mut rows).map_err(unusable)?;
            Ok((file, rows))
        })
        .await?;
        let tokens = header.tokens[..chunk.end as usize].to_vec();
        app.host.import_kv(KvImport { salt, tokens, start: chunk.start, rows })?;
        // A lookup excludes the last token.
        let mut prompt = header.tokens[..chunk.end as usize].to_vec();
        prompt.push(header.tokens.get(chunk.end as usize).copied().unwrap_or_default());
        if cached(app, key, prompt, header.final_len).await? < chunk.end {
            return Err(ApiError::unavailable(format!(
                "the KV cache has no room for the {} tokens of the file now",
                header.rows
            )));
        }
    }
    let transferred = Transferred { tokens: header.rows, bytes: file.bytes() };
    Ok((SlotContent { tokens: header.tokens.into(), final_len: header.final_len }, transferred))
}

impl App {
    /// Number of slots of a key: how many requests of it may run at once.
    pub(super) fn slot_count(&self, key: u64) -> u32 {
        let engines = self.host.replicas().map_or(1, |replicas| replicas.status().len());
        let running = (self.live.ranks.max_num_seqs as usize).saturating_mul(engines);
        u32::try_from(self.host.at_once(key, 1).min(running)).unwrap_or(u32::MAX)
    }

    /// The slot that records a request, where slots can be saved. Requests with a `cache_salt` are
    /// recorded in none: a file has no salt.
    pub(super) fn begin_in_slot(
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
            let why = format!("`id_slot` must be a slot from 0 to {}", count.saturating_sub(1));
            return Err(ApiError::param("id_slot", why));
        }
        if fields.cache_salt.is_some() {
            return Ok(None);
        }
        let final_len = (request.prompt.len() as u32).saturating_add(request.params.max_tokens);
        let final_len = final_len.min(self.model.facts.max_len);
        Ok(self.slots.begin(key, fields.slot, count, &request.prompt, final_len))
    }
}

/// Runs file operations outside of the async runtime.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(work).await.map_err(|_| ApiError::failed("the operation on the file has failed"))?
}

/// Charges the tokens of a file like those of a prompt.
fn charge(app: &App, key: u64, tokens: u32) -> Result<(), ApiError> {
    app.access.charge(key, Charge { requests: 0, tokens: tokens.into() }, app.host.metrics())
}

/// A request whose K/V has the salt and the RoPE of a sequence with this final length.
fn slot_request(app: &App, key: u64, prompt: Vec<Token>, final_len: u32) -> Result<Submission, ApiError> {
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

/// How many tokens of a prompt are cached when its request is admitted. Computes nothing more.
async fn cached(app: &Arc<App>, key: u64, prompt: Vec<Token>, final_len: u32) -> Result<u32, ApiError> {
    let submission = slot_request(app, key, prompt, final_len)?;
    let mut stream = app.host.submit(vec![submission], 1)?.pop().ok_or_else(stopped)?;
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

/// Refuses tokens that this server cannot continue.
fn check_content(app: &App, header: &KvFileHeader) -> Result<(), ApiError> {
    let facts = &app.model.facts;
    let len = header.tokens.len();
    if len > facts.max_len as usize || header.final_len > facts.max_len {
        let why = format!(
            "the file is of a context of {} tokens, and that of this server has {}",
            header.final_len, facts.max_len
        );
        return Err(ApiError::param("filename", why));
    }
    let fits = header.rows.saturating_add(BEHIND) <= header.final_len || header.rows == 0;
    let is_known = header.tokens.iter().all(|token| *token < facts.vocab);
    if fits && is_known && header.prefix_salt == (facts.prefix_salt)(header.final_len) {
        Ok(())
    } else {
        Err(unusable(KvFileError::OtherModel))
    }
}

//! Starts the tokenizer processes of a server.

use crate::io::failure::Failure;
use crate::options::reports::process_logger;
use kvasir_chat::ChatModel;
use kvasir_fleet::{Identity, TokenizerArguments, TokenizerConfig, TokenizerPool};
use kvasir_serve::{model::Model, report::Reports};
use std::{path::PathBuf, sync::Arc};

/// Number of tokenizer processes, and the command that starts one.
pub(crate) struct TokenizerCommand {
    pub(crate) processes: usize,
    pub(crate) program: PathBuf,
    pub(crate) arguments: TokenizerArguments,
}

/// Identity of a tokenizer process, which the server process compares with its own: version,
/// fingerprint of the checkpoint, and the options that tokenization depends on.
pub(crate) fn tokenizer_identity(fingerprint: u64, chat: &ChatModel) -> Identity {
    Identity { version: env!("CARGO_PKG_VERSION").into(), model: fingerprint, options: chat.fingerprint() }
}

/// Starts the tokenizer processes, if `command` is given, and returns a model that tokenizes in
/// them. `fingerprint` computes the checkpoint's fingerprint; without `command` it is not called.
pub(super) fn start_tokenizers(
    command: Option<TokenizerCommand>,
    fingerprint: impl FnOnce() -> u64,
    served: Model,
    reports: &Arc<Reports>,
) -> Result<(Model, Option<TokenizerPool>), Failure> {
    let Some(TokenizerCommand { processes, program, arguments }) = command else { return Ok((served, None)) };
    let identity = tokenizer_identity(fingerprint(), &served.chat);
    let on_log = process_logger(reports);
    let config = TokenizerConfig { processes, program, arguments, identity, on_log };
    let pool = TokenizerPool::start(config).map_err(Failure::failed)?;
    Ok((served.with_remote_tokenizer(Arc::new(pool.client())), Some(pool)))
}

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

/// Identity that the server process compares with that of a tokenizer process: version, model (the
/// fingerprint of its checkpoint), and the options that its results depend on.
pub(crate) fn tokenizer_identity(model: u64, chat: &ChatModel) -> Identity {
    Identity { version: env!("CARGO_PKG_VERSION").into(), model, options: chat.fingerprint() }
}

/// Starts the tokenizer processes, if any. The model that is returned tokenizes in them.
/// `fingerprint` returns that of the checkpoint; it is called only if there are processes.
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

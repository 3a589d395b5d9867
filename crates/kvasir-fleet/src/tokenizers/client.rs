//! [`TokenizerClient`]: submits jobs to the tokenizer processes and waits for their results.

use crate::tokenizers::job::{Outcome, Work};
use crate::tokenizers::jobs::Reply;
use crate::tokenizers::pool_command::PoolCommand;
use kvasir_chat::{
    DetokenizedTokens, DetokenizerState, PendingTexts, RemoteTokenizer, RemoteTokenizerError, TokenizerStatus,
};
use kvasir_kv::Token;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};
use tokio::sync::{mpsc::UnboundedSender, oneshot};

/// Interval at which a blocked caller checks its cancel flag.
const CANCEL_INTERVAL: Duration = Duration::from_millis(20);

/// Handle of a [`TokenizerPool`](crate::TokenizerPool). Calls fail once the pool is dropped.
#[derive(Clone, Debug)]
pub struct TokenizerClient {
    commands: UnboundedSender<PoolCommand>,
    status: Arc<Mutex<Vec<TokenizerStatus>>>,
    next_job: Arc<AtomicU64>,
}

impl TokenizerClient {
    pub(super) fn new(
        commands: UnboundedSender<PoolCommand>,
        status: Arc<Mutex<Vec<TokenizerStatus>>>,
    ) -> Self {
        Self { commands, status, next_job: Arc::default() }
    }

    fn submit(&self, work: Work, reply: Reply) -> u64 {
        let id = self.next_job.fetch_add(1, Ordering::Relaxed);
        // If the pool has ended, this drops the reply, which disconnects the result channel.
        let _ = self.commands.send(PoolCommand::Submit { id, work, reply });
        id
    }

    fn run(&self, work: Work, canceled: &AtomicBool) -> Result<Outcome, RemoteTokenizerError> {
        let (result_to, result) = mpsc::sync_channel(1);
        let id = self.submit(work, Box::new(move |result| drop(result_to.send(result))));
        loop {
            match result.recv_timeout(CANCEL_INTERVAL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
                Err(RecvTimeoutError::Timeout) if canceled.load(Ordering::Relaxed) => {
                    let _ = self.commands.send(PoolCommand::Cancel { id });
                    return Err(RemoteTokenizerError::Refused("was canceled".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

fn stopped() -> RemoteTokenizerError {
    RemoteTokenizerError::Unavailable("the tokenizer processes have been stopped".into())
}

/// The error for an outcome that is not the expected variant.
fn failure(outcome: Outcome) -> RemoteTokenizerError {
    match outcome {
        Outcome::Failed(why) => RemoteTokenizerError::Refused(why),
        _ => RemoteTokenizerError::Unavailable("a process has returned the result of another job".into()),
    }
}

impl RemoteTokenizer for TokenizerClient {
    fn encode(
        &self,
        text: &str,
        add_special: bool,
        canceled: &Arc<AtomicBool>,
    ) -> Result<Vec<Token>, RemoteTokenizerError> {
        match self.run(Work::Encode { text: text.into(), add_special }, canceled)? {
            Outcome::Tokens(tokens) => Ok(tokens),
            other => Err(failure(other)),
        }
    }

    fn decode(&self, ids: &[Token], canceled: &Arc<AtomicBool>) -> Result<String, RemoteTokenizerError> {
        match self.run(Work::Decode { ids: ids.into() }, canceled)? {
            Outcome::Text(text) => Ok(text),
            other => Err(failure(other)),
        }
    }

    fn detokenize(&self, state: DetokenizerState, tokens: Vec<Token>) -> PendingTexts {
        let (result_to, result) = oneshot::channel();
        // `send` fails if the caller has dropped the future.
        self.submit(Work::Detokenize { state, tokens }, Box::new(move |result| drop(result_to.send(result))));
        Box::pin(async move {
            match result.await.unwrap_or_else(|_| Err(stopped()))? {
                Outcome::Texts { texts, state } => Ok(DetokenizedTokens { texts, state }),
                other => Err(failure(other)),
            }
        })
    }

    fn status(&self) -> Vec<TokenizerStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

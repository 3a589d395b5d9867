//! Requests of at most one token, whose point is what comes with it: the hidden state behind the prompt
//! (embeddings), the probabilities of the tokens that may follow (judgments), or K/V (sessions).

use crate::error::ApiError;
use crate::host::engine_thread::Submission;
use crate::host::errors::{failure, stopped};
use crate::host::request_output::RequestOutput;
use crate::http::app::App;
use crate::request::length::Length;
use crate::request::sampling::SamplingFields;
use kvasir_exec::TokenLogprobs;
use std::sync::Arc;

/// Maximum number of prompts of one request in the engine at once.
const AT_ONCE: usize = 64;

/// What comes with the token.
#[derive(Debug, Default)]
pub(crate) struct SingleToken {
    /// Hidden state of the prompt's last token, if requested.
    pub hidden: Vec<f32>,
    /// Log-probabilities of the token, if requested.
    pub logprobs: Option<TokenLogprobs>,
    /// Prompt tokens.
    pub prompt_tokens: u32,
}

/// The fields of such a request: one token, whatever it is.
pub(crate) fn single_token(fields: SamplingFields) -> SamplingFields {
    let length = Length { max_tokens: Some(1), ..Length::default() };
    SamplingFields { length, ignore_eos: true, ..fields }
}

/// How many of these may be in the engine at once: more than the admission limits allow would fail
/// forever.
pub(crate) fn at_once(app: &App, submissions: &[Submission]) -> usize {
    let longest = submissions.iter().map(|submission| submission.tokens).max().unwrap_or(0);
    let key = submissions.first().map_or(0, |submission| submission.request.params.key);
    app.host.at_once(key, longest).clamp(1, AT_ONCE)
}

/// Runs one to its end.
pub(crate) async fn run(app: &Arc<App>, submission: Submission) -> Result<SingleToken, ApiError> {
    let mut answer = app.submit(vec![submission], 1)?.pop().ok_or_else(stopped)?;
    let (mut output, mut received) = (RequestOutput::default(), SingleToken::default());
    let ended = loop {
        answer.next(&mut output).await?;
        received.hidden.append(&mut output.hidden);
        received.logprobs = received.logprobs.or_else(|| output.logprobs.pop());
        if let Some(ended) = output.ended {
            break ended;
        }
    };
    received.prompt_tokens = ended.prompt;
    failure(ended.finish).map_or(Ok(received), Err)
}

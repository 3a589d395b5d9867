//! Converts the events of a request to Dynamo's stream of chunks: any number of chunks without a
//! finish reason, then one chunk with it or an error.

use crate::engine_thread::{Delta, RunningRequest};
use crate::failure::{failed, invalid, stopped};
use async_stream::stream;
use dynamo_backend_common::{
    CompletionUsage, DynamoError, FinishReason, GenerateContext, LLMEngineOutput, PromptTokensDetails,
    StopReason, TopLogprob, usage,
};
use futures::stream::BoxStream;
use kvasir::Model;
use kvasir_engine::Finish;
use kvasir_exec::TokenLogprobs;
use std::sync::Arc;
use tokio::select;

/// The stream of a request's chunks. Cancellation by `context` aborts the request, and ends the
/// stream with the reason `Cancelled`.
pub(crate) fn chunks(
    mut running: RunningRequest,
    prompt: u32,
    model: Arc<Model>,
    context: GenerateContext,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(stream! {
        let mut generated = 0;
        loop {
            let delta = select! {
                biased;
                () = context.stopped() => None,
                () = context.killed() => None,
                delta = running.next() => Some(delta),
            };
            match delta {
                None => {
                    let mut last = LLMEngineOutput::cancelled();
                    last.completion_usage = Some(usage(prompt, generated));
                    // Dropping it aborts the request.
                    drop(running);
                    yield Ok(last);
                    return;
                }
                Some(None) => {
                    yield Err(stopped());
                    return;
                }
                Some(Some(delta)) => {
                    generated += delta.tokens.len() as u32;
                    let finish = delta.finish;
                    let cached = delta.cached;
                    match chunk(delta, &model) {
                        Ok(mut output) => {
                            if finish.is_some() {
                                output.completion_usage = Some(final_usage(prompt, generated, cached));
                            }
                            yield Ok(output);
                        }
                        Err(error) => {
                            yield Err(error);
                            return;
                        }
                    }
                    if finish.is_some() {
                        return;
                    }
                }
            }
        }
    })
}

fn final_usage(prompt: u32, generated: u32, cached: u32) -> CompletionUsage {
    let details = PromptTokensDetails { cached_tokens: Some(cached), ..PromptTokensDetails::default() };
    CompletionUsage { prompt_tokens_details: Some(details), ..usage(prompt, generated) }
}

fn chunk(delta: Delta, model: &Model) -> Result<LLMEngineOutput, DynamoError> {
    let Delta { tokens, logprobs, finish, .. } = delta;
    let mut output = match finish {
        None => LLMEngineOutput::default(),
        Some(Finish::Eos | Finish::StopSequence { .. } | Finish::StopText) => LLMEngineOutput::stop(),
        Some(Finish::StopId(id)) => {
            LLMEngineOutput { stop_reason: Some(StopReason::Int(id.into())), ..LLMEngineOutput::stop() }
        }
        Some(Finish::MaxTokens | Finish::ModelLength | Finish::Capacity) => LLMEngineOutput::length(),
        Some(Finish::Aborted) => {
            LLMEngineOutput { finish_reason: Some(FinishReason::Cancelled), ..LLMEngineOutput::default() }
        }
        Some(Finish::Refused(refusal)) => return Err(invalid(refusal)),
        Some(Finish::Failed(fault)) => return Err(failed(fault)),
        Some(finish) => return Err(failed(finish)),
    };
    if !logprobs.is_empty() {
        output.log_probs = Some(logprobs.iter().map(|logprobs| logprobs.chosen.into()).collect());
        output.top_logprobs = Some(logprobs.iter().map(|logprobs| top_logprobs(logprobs, model)).collect());
    }
    output.token_ids = tokens;
    Ok(output)
}

fn top_logprobs(logprobs: &TokenLogprobs, model: &Model) -> Vec<TopLogprob> {
    let entry = |(rank, (id, logprob)): (u32, &(u32, f32))| {
        let text = model.text(&[*id]);
        let bytes = text.as_ref().map(|text| text.clone().into_bytes());
        TopLogprob { rank, token_id: *id, token: text, logprob: (*logprob).into(), bytes }
    };
    (1..).zip(&logprobs.top).map(entry).collect()
}

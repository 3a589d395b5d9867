//! One answer's pipeline: tokens → detokenizer → output parsing → deltas, log-probabilities and
//! usage.
//!
//! `AnswerStream::next` detokenizes and consumes up to [`MAX_INCREMENT_TOKENS`] tokens of a backlog
//! as one increment, so a slow client gets larger increments, not more. After a stop sequence,
//! further tokens are ignored and the engine is told to stop. Log-probabilities are released with
//! the text they belong to.

use crate::error::ApiError;
use crate::host::engine_thread::TokenStream;
use crate::host::errors::failure;
use crate::host::request_output::RequestOutput;
use crate::http::answers::progress::{Progress, PromptProgress};
use crate::model::Model;
use crate::model::tokenization::AnswerDetokenizer;
use crate::request::body::heap_bytes;
use crate::request::output_fields::OutputFields;
use crate::session::recorder::TurnRecorder;
use crate::session::slots::SlotRecorder;
use kvasir_chat::Delta;
use kvasir_chat::{Choice, ParseOptions};
use kvasir_engine::{Finish, Summary};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::{CacheEnd, Token};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum number of tokens of one increment: each takes kilobytes if it has log-probabilities.
const MAX_INCREMENT_TOKENS: usize = 256;

/// One answer, from tokens to deltas. Dropping it before its end aborts the request.
pub struct AnswerStream {
    model: Arc<Model>,
    answers: TokenStream,
    /// The output received last.
    output: RequestOutput,
    /// Number of tokens of `output` that increments have consumed.
    consumed: usize,
    detokenizer: AnswerDetokenizer,
    /// Text of each token of an increment; empty between increments, to reuse its memory.
    texts: Vec<String>,
    choice: Choice,
    /// When the request was submitted, and when its first token came.
    submitted: Instant,
    first_token: Option<Instant>,
    progress: Progress,
    /// Answer tokens so far, up to a stop sequence.
    tokens: u32,
    /// Of those, the tokens up to the last reasoning delta.
    reasoning: u32,
    /// Log-probabilities not released yet, with the byte offset of their token's text.
    logprobs: Vec<(usize, Value)>,
    /// Bytes of detokenized text so far.
    text: usize,
    /// The prompt, until its requested log-probabilities are released.
    prompt: Option<Vec<Token>>,
    /// Log-probabilities received of the prompt's tokens, from the second on.
    scores: Vec<TokenLogprobs>,
    /// How the answer is written.
    written: OutputFields,
    /// Ids of tokens since the last increment.
    ids: Vec<Token>,
    /// Prompt length in tokens, if prefill progress is requested.
    prompt_tokens: Option<u32>,
    /// When the request was admitted; prefill progress is timed from it.
    admitted: Instant,
    /// Session update to commit at the end.
    recorder: Option<TurnRecorder>,
    /// Records prompt and answer for the request's slot.
    slot: Option<SlotRecorder>,
    has_ended: bool,
}

/// Outcome of an answer.
#[derive(Clone, Debug)]
pub struct AnswerOutcome {
    /// `stop`, `length` or `tool_calls`.
    pub reason: &'static str,
    /// The stop sequence that ended it.
    pub stop: Option<String>,
    /// Answer tokens.
    pub tokens: u32,
    /// Reasoning tokens among them.
    pub reasoning: u32,
    /// Prompt tokens.
    pub prompt: u32,
    /// Prompt tokens found in the prefix cache.
    pub cached: u32,
    /// Prompt tokens that matched cached K/V.
    pub matched: u32,
    /// Why the prefix hit was short; does not reveal prompts of other API keys.
    pub cache_end: Option<CacheEnd>,
    /// Tokens that context shifts have dropped from the context.
    pub dropped: u32,
    /// Drafts that were verified.
    pub drafted: u32,
    /// Drafts that were accepted.
    pub accepted: u32,
    /// Steps that verified drafts.
    pub verified: u32,
    /// Time to first token (TTFT), queueing included.
    pub ttft: Duration,
    /// Time from first to last token, as generated.
    pub decode_time: Duration,
}

impl AnswerOutcome {
    /// `timings` as llama.cpp has them, with those of drafts.
    pub(crate) fn timings(&self) -> Value {
        let progress = Progress { cached: self.cached, ttft: self.ttft, decode_time: self.decode_time };
        let mut timings = progress.timings(self.prompt, self.tokens);
        if self.drafted > 0 {
            timings["draft_n"] = self.drafted.into();
            timings["draft_n_accepted"] = self.accepted.into();
            timings["draft_n_steps"] = self.verified.into();
        }
        timings
    }
}

/// Increment of an answer.
#[derive(Debug, Default)]
pub struct AnswerIncrement {
    /// New text and tool call fragments.
    pub deltas: Vec<Delta>,
    /// Log-probabilities that belong to `deltas`.
    pub logprobs: Vec<Value>,
    /// Ids of the tokens since the last increment, if requested.
    pub ids: Vec<Token>,
    /// Answer tokens so far.
    pub tokens: u32,
    /// Prompt tokens served from the KV cache, in the increment that tells of the admission.
    pub cached: Option<u32>,
    /// Cache hit and times so far.
    pub progress: Progress,
    /// Prefill progress, if requested: once at admission, then after each prefill step.
    pub prompt_progress: Vec<PromptProgress>,
    /// Prompt log-probabilities, in the first increment if requested.
    pub prompt: Option<PromptLogprobs>,
    /// The outcome, in the last increment.
    pub ended: Option<AnswerOutcome>,
}

/// Log-probabilities of a prompt's tokens; the first token has none.
#[derive(Debug)]
pub struct PromptLogprobs {
    /// In the format of an answer's log-probabilities.
    pub listed: Vec<Value>,
    /// By token id, in vLLM's `prompt_logprobs` format.
    pub by_id: Value,
}

impl AnswerIncrement {
    /// Whether there is something of the answer in it, or its end.
    pub(crate) fn has_answer(&self) -> bool {
        !self.deltas.is_empty() || self.ended.is_some()
    }

    /// Heap bytes that collecting it takes, by an estimate that errs on the high side.
    pub(crate) fn heap_bytes(&self) -> usize {
        let text = |delta: &Delta| match delta {
            Delta::Content(text) | Delta::Reasoning(text) | Delta::CallArguments { text, .. } => text.len(),
            Delta::CallBegin { name, .. } => name.len(),
        };
        let list = |values: &[Value]| values.iter().map(heap_bytes).sum::<usize>();
        let prompt = |prompt: &PromptLogprobs| list(&prompt.listed) + heap_bytes(&prompt.by_id);
        self.deltas.iter().map(text).sum::<usize>()
            + list(&self.logprobs)
            + self.ids.len() * size_of::<Value>()
            + self.prompt.as_ref().map_or(0, prompt)
    }

    /// Appends a delta; merges adjacent text, so a client that is behind gets larger increments,
    /// not more.
    fn add(&mut self, delta: Delta) {
        match (self.deltas.last_mut(), delta) {
            (Some(Delta::Content(text)), Delta::Content(more))
            | (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) => text.push_str(&more),
            (_, delta) => self.deltas.push(delta),
        }
    }
}

impl AnswerStream {
    pub(crate) fn new(
        model: Arc<Model>,
        answers: TokenStream,
        options: ParseOptions,
        written: OutputFields,
    ) -> Self {
        let marked = options.calls.is_some() || options.reasoning.is_some() || !written.separate_reasoning;
        let detokenizer = model.detokenizer(marked, options.continues, written.skip_special_tokens);
        Self {
            model,
            answers,
            output: RequestOutput::default(),
            consumed: 0,
            detokenizer,
            texts: Vec::new(),
            choice: Choice::new(options),
            submitted: Instant::now(),
            first_token: None,
            progress: Progress::default(),
            tokens: 0,
            reasoning: 0,
            logprobs: Vec::new(),
            text: 0,
            prompt: None,
            scores: Vec::new(),
            written,
            ids: Vec::new(),
            prompt_tokens: None,
            admitted: Instant::now(),
            recorder: None,
            slot: None,
            has_ended: false,
        }
    }

    /// Commits the answer to a session, if there is one.
    pub(crate) fn recording(self, recorder: Option<TurnRecorder>) -> Self {
        Self { recorder, ..self }
    }

    /// Records prompt and answer in a slot, if one is given.
    pub(crate) fn with_slot(self, slot: Option<SlotRecorder>) -> Self {
        Self { slot, ..self }
    }

    /// The number of the answer's slot, if slots are recorded.
    pub(crate) fn slot(&self) -> Option<u32> {
        self.slot.as_ref().map(SlotRecorder::number)
    }

    /// The next increment; `None` after the end. It has text, tells of the admission, or is the
    /// last.
    pub async fn next(&mut self) -> Result<Option<AnswerIncrement>, ApiError> {
        if self.has_ended {
            return Ok(None);
        }
        loop {
            let mut output = std::mem::take(&mut self.output);
            let mut increment = AnswerIncrement::default();
            if self.consumed == output.tokens.len() {
                self.answers.next(&mut output).await?;
                self.consumed = 0;
                self.note_progress(&output);
                self.note_prefill(&output, &mut increment);
            }
            increment.cached = output.cached.take();
            self.scores.append(&mut output.scores);
            self.detokenize(&output, &mut increment).await?;
            let ended = output.ended.filter(|_| self.consumed == output.tokens.len());
            self.output = output;
            if let Some(summary) = ended {
                if let Some(error) = failure(summary.finish) {
                    return Err(error);
                }
                return Ok(Some(self.end(increment, summary)));
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.push_deltas(&increment.deltas);
            }
            self.drop_reasoning(&mut increment);
            if !increment.deltas.is_empty() {
                increment.ids = std::mem::take(&mut self.ids);
                increment.tokens = self.tokens;
                increment.progress = self.progress;
                increment.logprobs = self.released_logprobs();
                increment.prompt = self.prompt_logprobs();
            }
            let reports_progress = increment.cached.is_some() || !increment.prompt_progress.is_empty();
            if reports_progress || !increment.deltas.is_empty() {
                return Ok(Some(increment));
            }
        }
    }

    /// Detokenizes and parses up to [`MAX_INCREMENT_TOKENS`] tokens of `output` that no increment
    /// has consumed, and adds their deltas to the increment.
    async fn detokenize(
        &mut self,
        output: &RequestOutput,
        increment: &mut AnswerIncrement,
    ) -> Result<(), ApiError> {
        let by_token = |summary: &Summary| matches!(summary.finish, Finish::Eos | Finish::StopId(_));
        let ends_by_token = output.ended.as_ref().is_some_and(by_token);
        let count = output.tokens.len();
        let range = self.consumed..count.min(self.consumed + MAX_INCREMENT_TOKENS);
        self.consumed = range.end;
        // An end token is not part of the answer's text.
        let omits_end_token = ends_by_token && range.end == count && !self.written.include_stop;
        let text_end = if omits_end_token { range.end.saturating_sub(1) } else { range.end };
        let mut texts = std::mem::take(&mut self.texts);
        // Tokens after a stop sequence are ignored.
        if self.choice.stopped().is_none() {
            let tokens = output.tokens.get(range.start..text_end).unwrap_or_default();
            self.detokenizer.push(tokens, &mut texts).await?;
        }
        let mut remaining_texts = texts.drain(..);
        for i in range {
            let token = output.tokens[i];
            // Tokens after a stop sequence were in flight when it was found.
            if self.choice.stopped().is_some() {
                break;
            }
            self.record_token(token);
            let text = remaining_texts.next().unwrap_or_default();
            let logprobs = output.logprobs.get(i);
            self.logprobs.extend(logprobs.map(|l| (self.text, self.logprob(token, l))));
            self.text += text.len();
            let deltas = self.choice.push(&text);
            if deltas.iter().any(|delta| matches!(delta, Delta::Reasoning(_))) {
                self.reasoning = self.tokens;
            }
            deltas.into_iter().for_each(|delta| increment.add(delta));
            if self.choice.stopped().is_some() {
                self.answers.stop_at(self.tokens);
            }
        }
        drop(remaining_texts);
        self.texts = texts;
        Ok(())
    }

    /// Counts a token of the answer, and adds it to the session's turn, the slot and the requested
    /// ids.
    fn record_token(&mut self, token: Token) {
        self.tokens += 1;
        if let Some(recorder) = &mut self.recorder {
            recorder.push_token(token);
        }
        if let Some(slot) = &mut self.slot {
            slot.push_token(token);
        }
        if self.written.token_ids {
            self.ids.push(token);
        }
    }

    /// Adds the prefill progress of `output` to the increment, if requested.
    fn note_prefill(&mut self, output: &RequestOutput, increment: &mut AnswerIncrement) {
        let Some(total) = self.prompt_tokens else { return };
        self.admitted = output.admitted.unwrap_or(self.admitted);
        let at_admission = output.cached.map(|cached| (cached, self.admitted));
        for (processed, at) in at_admission.into_iter().chain(output.processed) {
            let (cached, elapsed) = (self.progress.cached, at.saturating_duration_since(self.admitted));
            increment.prompt_progress.push(PromptProgress { total, cached, processed, elapsed });
        }
    }

    fn note_progress(&mut self, output: &RequestOutput) {
        self.progress.cached = output.cached.unwrap_or(self.progress.cached);
        if output.tokens.is_empty() {
            return;
        }
        let now = Instant::now();
        let first = *self.first_token.get_or_insert(now);
        self.progress.ttft = first.duration_since(self.submitted);
        self.progress.decode_time = now.duration_since(first);
    }

    fn end(&mut self, mut increment: AnswerIncrement, summary: Summary) -> AnswerIncrement {
        let stop = self.choice.stopped().map(|(_, text)| text.to_owned());
        let cut = stop.is_some();
        if !cut {
            let rest = self.detokenizer.finish();
            increment.deltas.extend(self.choice.push(&rest));
        }
        increment.deltas.extend(self.choice.finish());
        if let Some(stop) = stop.as_ref().filter(|_| self.written.include_stop) {
            increment.add(Delta::Content(stop.clone()));
        }
        increment.ids = std::mem::take(&mut self.ids);
        increment.logprobs = self.released_logprobs();
        // Ids and log-probabilities are as many.
        if !cut || self.written.token_ids {
            increment.logprobs.extend(self.logprobs.drain(..).map(|(_, logprob)| logprob));
        }
        increment.prompt = self.prompt_logprobs();
        let is_stopped = cut || matches!(summary.finish, Finish::StopId(_));
        let reason = match summary.finish {
            Finish::MaxTokens | Finish::ModelLength | Finish::Capacity if !cut => "length",
            // Arguments that are cut cannot be used.
            _ if is_stopped && self.choice.ends_in_call() => "stop",
            _ if self.choice.has_calls() => "tool_calls",
            _ => "stop",
        };
        increment.tokens = self.tokens;
        increment.ended = Some(AnswerOutcome {
            reason,
            stop,
            tokens: self.tokens,
            reasoning: self.reasoning,
            prompt: summary.prompt,
            cached: summary.cached,
            matched: summary.prefix.matched,
            cache_end: summary.prefix.public_cache_end,
            dropped: summary.dropped,
            drafted: summary.drafted,
            // The engine also counts drafts behind a stop sequence.
            accepted: summary.accepted.min(self.tokens),
            verified: summary.verified,
            ttft: Duration::from_nanos(summary.ttft().unwrap_or(0)),
            decode_time: Duration::from_nanos(summary.decode_time().unwrap_or(0)),
        });
        // The slot must be idle before the client learns of the end, because it may then save the
        // slot.
        self.slot = None;
        if let Some(mut recorder) = self.recorder.take() {
            recorder.push_deltas(&increment.deltas);
            // Text after a stop sequence was not recorded.
            recorder.commit(!cut && matches!(summary.finish, Finish::Eos | Finish::StopId(_)));
        }
        self.drop_reasoning(&mut increment);
        self.has_ended = true;
        increment
    }

    /// Drops reasoning that the client does not want to see.
    fn drop_reasoning(&self, increment: &mut AnswerIncrement) {
        if !self.written.include_reasoning {
            increment.deltas.retain(|delta| !matches!(delta, Delta::Reasoning(_)));
        }
    }

    /// Releases log-probabilities of tokens whose text is (partly) certain, never of a stop
    /// sequence.
    fn released_logprobs(&mut self) -> Vec<Value> {
        let released = self.choice.released();
        let n = self.logprobs.partition_point(|(start, _)| *start < released);
        self.logprobs.drain(..n).map(|(_, logprob)| logprob).collect()
    }

    /// Reports prefill progress; `prompt_tokens` is the prompt's length.
    pub(crate) fn with_prompt_progress(self, prompt_tokens: u32) -> Self {
        Self { prompt_tokens: Some(prompt_tokens), ..self }
    }

    /// Requests prompt log-probabilities in the first increment.
    pub(crate) fn with_prompt_logprobs(mut self, prompt: Vec<Token>) -> Self {
        self.prompt = Some(prompt);
        self
    }

    /// The prompt's log-probabilities, once.
    fn prompt_logprobs(&mut self) -> Option<PromptLogprobs> {
        let (prompt, scores) = (self.prompt.take()?, std::mem::take(&mut self.scores));
        let first = prompt.first().map(|token| {
            let bytes = self.model.token_bytes(*token);
            json!({"token": String::from_utf8_lossy(&bytes), "logprob": null, "bytes": bytes, "top_logprobs": null})
        });
        let rest = || prompt.iter().skip(1).zip(&scores);
        let listed =
            first.into_iter().chain(rest().map(|(token, logprobs)| self.logprob(*token, logprobs))).collect();
        let by_id =
            [Value::Null].into_iter().chain(rest().map(|(token, logprobs)| self.by_id(*token, logprobs)));
        let by_id = by_id.collect();
        Some(PromptLogprobs { listed, by_id })
    }

    /// One position's log-probabilities by token id: the chosen token and the top ones.
    fn by_id(&self, token: Token, logprobs: &TokenLogprobs) -> Value {
        let ranked = logprobs.top.iter().zip(1..).map(|(one, rank)| (*one, Some(rank)));
        let all = [((token, logprobs.chosen), None)].into_iter().chain(ranked);
        let one = |((token, logprob), rank): ((Token, f32), Option<u32>)| {
            let text = String::from_utf8_lossy(&self.model.token_bytes(token)).into_owned();
            (token.to_string(), json!({"logprob": logprob, "rank": rank, "decoded_token": text}))
        };
        Value::Object(all.map(one).collect())
    }

    fn logprob(&self, token: Token, logprobs: &TokenLogprobs) -> Value {
        let one = |token: Token, logprob: f32| {
            let bytes = self.model.token_bytes(token);
            let text = if self.written.tokens_as_ids {
                format!("token_id:{token}").into()
            } else {
                String::from_utf8_lossy(&bytes)
            };
            let mut entry = json!({"token": text, "bytes": bytes});
            if self.written.probabilities {
                entry["prob"] = logprob.exp().into();
            } else {
                entry["logprob"] = logprob.into();
            }
            if self.written.token_ids || self.written.probabilities {
                entry["id"] = token.into();
            }
            entry
        };
        let top = if self.written.probabilities { "top_probs" } else { "top_logprobs" };
        let mut entry = one(token, logprobs.chosen);
        entry[top] = logprobs.top.iter().map(|(token, logprob)| one(*token, *logprob)).collect();
        entry
    }
}

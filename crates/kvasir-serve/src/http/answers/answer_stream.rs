//! One answer's pipeline: tokens → detokenizer → output parsing → deltas, log-probabilities and
//! usage.
//!
//! `Speaker::next` consumes a backlog of tokens as one increment, so a slow client gets larger
//! pieces, not more. After a stop sequence, further tokens are ignored and the engine is told to
//! stop. Log-probabilities are released with the text they belong to.

use crate::{
    answer::{
        choice::{Choice, Reading},
        events::Delta,
    },
    error::ApiError,
    host::{engine_thread::Answers, errors::failure, token_buffer::Piece},
    model::{Detokenizer, Model},
    session::recorder::Note,
};
use kvasir_engine::{Finish, Summary};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// One answer, from tokens to deltas. Dropping it before its end aborts the request.
pub struct Speaker {
    model: Arc<Model>,
    answers: Answers,
    /// Reused buffer for the next piece.
    piece: Piece,
    detokenizer: Detokenizer,
    choice: Choice,
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
    /// Session update to commit at the end.
    note: Option<Note>,
    over: bool,
}

/// Outcome of an answer.
#[derive(Clone, Debug)]
pub struct Ended {
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
    /// Time to first token (TTFT), queueing included.
    pub ttft: Duration,
    /// Time from first to last token, as generated.
    pub spoke: Duration,
}

/// Increment of an answer.
#[derive(Debug, Default)]
pub struct Gain {
    /// New text and tool call fragments.
    pub deltas: Vec<Delta>,
    /// Log-probabilities that belong to `deltas`.
    pub logprobs: Vec<Value>,
    /// Answer tokens so far.
    pub tokens: u32,
    /// Prompt log-probabilities, in the first increment if requested.
    pub prompt: Option<PromptScores>,
    /// The outcome, in the last increment.
    pub ended: Option<Ended>,
}

/// Log-probabilities of a prompt's tokens; the first token has none.
#[derive(Debug)]
pub struct PromptScores {
    /// In the format of an answer's log-probabilities.
    pub listed: Vec<Value>,
    /// By token id, in vLLM's `prompt_logprobs` format.
    pub by_id: Value,
}

impl Gain {
    /// Appends a delta; merges adjacent text, so a client that is behind gets larger pieces, not
    /// more.
    fn add(&mut self, delta: Delta) {
        match (self.deltas.last_mut(), delta) {
            (Some(Delta::Content(text)), Delta::Content(more))
            | (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) => text.push_str(&more),
            (_, delta) => self.deltas.push(delta),
        }
    }
}

impl Speaker {
    pub(crate) fn new(model: Arc<Model>, answers: Answers, reading: Reading) -> Self {
        let marked = reading.calls.is_some() || reading.reasoning.is_some();
        let detokenizer = model.detokenizer(marked, reading.goes_on);
        Self {
            model,
            answers,
            piece: Piece::default(),
            detokenizer,
            choice: Choice::new(reading),
            tokens: 0,
            reasoning: 0,
            logprobs: Vec::new(),
            text: 0,
            prompt: None,
            scores: Vec::new(),
            note: None,
            over: false,
        }
    }

    /// Commits the answer to a session, if there is one.
    pub(crate) fn noting(self, note: Option<Note>) -> Self {
        Self { note, ..self }
    }

    /// The next increment; `None` after the end.
    pub async fn next(&mut self) -> Result<Option<Gain>, ApiError> {
        if self.over {
            return Ok(None);
        }
        loop {
            let mut piece = std::mem::take(&mut self.piece);
            self.answers.next(&mut piece).await?;
            let mut gain = Gain::default();
            self.scores.append(&mut piece.scores);
            let mut logprobs = piece.logprobs.drain(..);
            for token in piece.tokens.iter().copied() {
                // Tokens after a stop sequence were in flight when it was found.
                if self.choice.stopped().is_some() {
                    break;
                }
                self.tokens += 1;
                if let Some(note) = &mut self.note {
                    note.token(token);
                }
                let text = self.detokenizer.push(token);
                self.logprobs.extend(logprobs.next().map(|l| (self.text, self.logprob(token, &l))));
                self.text += text.len();
                let deltas = self.choice.push(&text);
                if deltas.iter().any(|delta| matches!(delta, Delta::Reasoning(_))) {
                    self.reasoning = self.tokens;
                }
                deltas.into_iter().for_each(|delta| gain.add(delta));
                if self.choice.stopped().is_some() {
                    self.answers.stop_at(self.tokens);
                }
            }
            drop(logprobs);
            let ended = piece.ended;
            self.piece = piece;
            if let Some(summary) = ended {
                if let Some(error) = failure(summary.finish) {
                    return Err(error);
                }
                return Ok(Some(self.end(gain, summary)));
            }
            if !gain.deltas.is_empty() {
                if let Some(note) = &mut self.note {
                    note.deltas(&gain.deltas);
                }
                gain.tokens = self.tokens;
                gain.logprobs = self.sure_logprobs();
                gain.prompt = self.prompt_scores();
                return Ok(Some(gain));
            }
        }
    }

    fn end(&mut self, mut gain: Gain, summary: Summary) -> Gain {
        let stop = self.choice.stopped().map(|(_, text)| text.to_owned());
        let cut = stop.is_some();
        if !cut {
            let rest = self.detokenizer.finish();
            gain.deltas.extend(self.choice.push(&rest));
        }
        gain.deltas.extend(self.choice.finish());
        gain.logprobs = self.sure_logprobs();
        if !cut {
            gain.logprobs.extend(self.logprobs.drain(..).map(|(_, logprob)| logprob));
        }
        gain.prompt = self.prompt_scores();
        let reason = match summary.finish {
            Finish::MaxTokens | Finish::ModelLength | Finish::Capacity if !cut => "length",
            _ if self.choice.has_calls() => "tool_calls",
            _ => "stop",
        };
        gain.tokens = self.tokens;
        gain.ended = Some(Ended {
            reason,
            stop,
            tokens: self.tokens,
            reasoning: self.reasoning,
            prompt: summary.prompt,
            cached: summary.cached,
            ttft: Duration::from_nanos(summary.ttft().unwrap_or(0)),
            spoke: Duration::from_nanos(summary.spoke().unwrap_or(0)),
        });
        if let Some(mut note) = self.note.take() {
            note.deltas(&gain.deltas);
            // Text after a stop sequence was not recorded.
            note.end(!cut && matches!(summary.finish, Finish::Eos | Finish::StopId(_)));
        }
        self.over = true;
        gain
    }

    /// Releases log-probabilities of tokens whose text is (partly) certain, never of a stop
    /// sequence.
    fn sure_logprobs(&mut self) -> Vec<Value> {
        let sure = self.choice.sure();
        let n = self.logprobs.partition_point(|(start, _)| *start < sure);
        self.logprobs.drain(..n).map(|(_, logprob)| logprob).collect()
    }

    /// Requests prompt log-probabilities in the first increment.
    pub(crate) fn scoring(mut self, prompt: Vec<Token>) -> Self {
        self.prompt = Some(prompt);
        self
    }

    /// The prompt's log-probabilities, once.
    fn prompt_scores(&mut self) -> Option<PromptScores> {
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
        Some(PromptScores { listed, by_id })
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
            json!({"token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes})
        };
        let mut entry = one(token, logprobs.chosen);
        entry["top_logprobs"] = logprobs.top.iter().map(|(token, logprob)| one(*token, *logprob)).collect();
        entry
    }
}

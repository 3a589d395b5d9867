use super::sessions::Note;
use crate::{
    ApiError,
    answer::{Choice, Delta, Reading},
    host::{Answers, Piece, failure},
    model::{Detokenizer, Model},
};
use kvasir_engine::{Finish, Summary};
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// One answer on its way from tokens to what its client reads. Dropping it before its end aborts the request.
pub struct Speaker {
    model: Arc<Model>,
    answers: Answers,
    /// What came last.
    piece: Piece,
    detokenizer: Detokenizer,
    choice: Choice,
    /// Tokens that count as the answer's.
    tokens: u32,
    /// Of those, how many had come when the last bit of reasoning did.
    reasoning: u32,
    /// Log-probabilities whose text is not out yet, and where that begins.
    logprobs: Vec<(usize, Value)>,
    /// Bytes of the text of all tokens.
    text: usize,
    /// The prompt, if log-probabilities of it are wanted and not out yet.
    prompt: Option<Vec<Token>>,
    /// Log-probabilities of the prompt's tokens from the second on, as far as they have come.
    scores: Vec<TokenLogprobs>,
    /// What its session is told at the end.
    note: Option<Note>,
    over: bool,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// `stop`, `length` or `tool_calls`.
    pub reason: &'static str,
    /// The stop text that ended it.
    pub stop: Option<String>,
    /// Tokens of the answer.
    pub tokens: u32,
    /// Those of them that were reasoning.
    pub reasoning: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Those of them that were in the cache already.
    pub cached: u32,
    /// Time to its first token, waiting included.
    pub ttft: Duration,
    /// From its first token to its last, whenever they were read.
    pub spoke: Duration,
}

/// What an answer gained since the last time.
#[derive(Debug, Default)]
pub struct Gain {
    /// New text, and pieces of calls.
    pub deltas: Vec<Delta>,
    /// Log-probabilities that go with `deltas`.
    pub logprobs: Vec<Value>,
    /// Tokens of the answer so far.
    pub tokens: u32,
    /// Set once, with the first gain, if it was asked for.
    pub prompt: Option<PromptScores>,
    /// Set once, with the last gain.
    pub ended: Option<Ended>,
}

/// What the model said of a prompt's tokens; nothing of the first, which follows nothing.
#[derive(Debug)]
pub struct PromptScores {
    /// As log-probabilities of an answer are written.
    pub listed: Vec<Value>,
    /// By token ids, as `prompt_logprobs` has them.
    pub by_id: Value,
}

impl Gain {
    /// Text that follows text is one delta with it: a client that is behind gets larger pieces, not more of them.
    fn add(&mut self, delta: Delta) {
        match (self.deltas.last_mut(), delta) {
            (Some(Delta::Content(text)), Delta::Content(more))
            | (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) => text.push_str(&more),
            (_, delta) => self.deltas.push(delta),
        }
    }
}

impl Speaker {
    pub(super) fn new(model: Arc<Model>, answers: Answers, reading: Reading) -> Self {
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

    /// Appends what it says to a session, if there is one.
    pub(super) fn noting(self, note: Option<Note>) -> Self {
        Self { note, ..self }
    }

    /// The next gain; none after the end.
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
                // After a stop text nothing counts any more; what still comes was under way when it was found.
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
            // What came behind a stop text was not noted.
            note.end(!cut && matches!(summary.finish, Finish::Eos | Finish::StopId(_)));
        }
        self.over = true;
        gain
    }

    /// Those of tokens of which some text is certainly part of the answer: nothing of a stop text.
    fn sure_logprobs(&mut self) -> Vec<Value> {
        let sure = self.choice.sure();
        let n = self.logprobs.partition_point(|(start, _)| *start < sure);
        self.logprobs.drain(..n).map(|(_, logprob)| logprob).collect()
    }

    /// The same answer, which has log-probabilities of its prompt in front.
    pub(super) fn scoring(mut self, prompt: Vec<Token>) -> Self {
        self.prompt = Some(prompt);
        self
    }

    /// What the model said of the prompt's tokens, once.
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

    /// A token's log-probability and the likeliest, by their ids.
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

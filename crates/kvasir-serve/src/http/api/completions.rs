//! OpenAI `/v1/completions`: raw text completion with `n`, `echo` and log-probabilities.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome, AnswerStream};
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::progress::PromptProgress;
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::sse::{self, ChunkTemplate, event_stream};
use crate::http::answers::usage::Usage;
use crate::http::app::{App, FINGERPRINT, unix_seconds};
use crate::http::body::read_body;
use crate::model::Model;
use crate::request::chat::StreamOptions;
use crate::request::completions::{CompletionRequest, Prompt};
use crate::request::fields::COMPLETIONS;
use crate::request::reader::Reader;
use crate::session::recorder::TurnRecorder;
use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use futures_util::Stream;
use kvasir_chat::Delta;
use kvasir_chat::ParseOptions;
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::sync::Arc;

/// A completion that has been submitted to the engine: `n` choices per prompt, indexed prompt by
/// prompt.
pub(crate) struct Completion {
    head: Value,
    reply: Reply,
    /// Text in front of each choice: its prompt with `echo`, else empty.
    echoes: Vec<String>,
    /// Whether the echoed prompt gets log-probabilities.
    scores_echo: bool,
    timings: bool,
    pub(crate) stream: Option<StreamOptions>,
}

impl Completion {
    /// Validates and submits the request.
    pub(crate) fn begin(app: &Arc<App>, key: u64, body: &Reader) -> Result<Self, ApiError> {
        let facts = &app.model.facts;
        let mut request = CompletionRequest::read(body, &facts.sampling, facts.vocab)?;
        // The response format of this endpoint has no probabilities; it returns log-probabilities
        // of the processed distribution instead.
        request.sampling.output.probabilities = false;
        Self::submit(app, key, body, request)
    }

    /// Submits a validated request; `body` names its session, if any.
    pub(crate) fn submit(
        app: &Arc<App>,
        key: u64,
        body: &Reader,
        request: CompletionRequest,
    ) -> Result<Self, ApiError> {
        let model = app.model.clone();
        app.model_names().check(request.model.as_deref())?;
        if let Some(response_format) = &request.response_format {
            response_format.check_lengths(request.sampling.ignore_eos, request.sampling.length.min_tokens)?;
        }
        let constraint = model.completion_constraint(request.response_format.as_ref(), &request.sampling)?;
        let (mut recorder, earlier) = match app.begin_text_turn(key, body)? {
            Some(_) if request.prompts.len() != 1 => {
                return Err(ApiError::param("prompt", "`prompt` must be one prompt in a session"));
            }
            Some((turn, tokens)) => (Some(TurnRecorder::of_text(turn)), tokens),
            None => (None, Vec::new()),
        };
        let mut prompt_tokens = 0;
        let mut submissions = Vec::with_capacity(request.prompts.len());
        for prompt in &request.prompts {
            app.check_bytes("prompt", prompt, request.sampling.truncate_prompt.is_some())?;
            let mut ids = earlier.clone();
            ids.extend(match (&request.suffix, prompt) {
                (Some(suffix), Prompt::Text(text)) => model.fill_in_middle(text, suffix)?,
                (Some(_), _) => {
                    return Err(ApiError::param("suffix", "`suffix` needs a prompt of text"));
                }
                (None, prompt) => app.ids(prompt, earlier.is_empty() && request.add_special_tokens)?,
            });
            let mut submission = app.submission("prompt", ids, &request.sampling, key)?;
            submission.request.params.constraint = constraint.clone();
            prompt_tokens += submission.request.prompt.len() as u64;
            if let Some(recorder) = &mut recorder {
                recorder.bind(&mut submission.request);
            }
            submissions.push(submission);
        }
        let options = ParseOptions {
            stop: request.sampling.stop.clone(),
            stop_regex: request.sampling.stop_regex.clone(),
            min_tokens: request.sampling.length.min_tokens,
            continues: true,
            ..ParseOptions::default()
        };
        let scored_prompt = request.sampling.prompt_logprobs.is_some();
        let output = &request.sampling.output;
        let ids: Vec<Vec<Token>> = if scored_prompt || output.token_ids {
            submissions.iter().map(|submission| submission.request.prompt.clone()).collect()
        } else {
            Vec::new()
        };
        let echo = |prompt| if request.echo { prompt_text(&model, prompt) } else { Ok(String::new()) };
        let echoed = request.prompts.iter().map(echo).collect::<Result<Vec<String>, ApiError>>()?;
        let lengths: Vec<u32> =
            submissions.iter().map(|submission| submission.request.prompt.len() as u32).collect();
        let n = request.sampling.n as usize;
        // Only the first of several prompts runs in the requested slot.
        let mut fields = request.sampling.clone();
        let mut slots = Vec::with_capacity(submissions.len());
        for submission in &submissions {
            slots.push(app.assign_slot(&fields, &submission.request)?);
            fields.slot = None;
        }
        let (mut streams, mut echoes) = (Vec::new(), Vec::new());
        for (index, answers) in app.submit(submissions, request.sampling.n)?.into_iter().enumerate() {
            let stream = AnswerStream::new(model.clone(), answers, options.clone(), output.clone())
                .recording(recorder.take())
                .with_slot(slots.get_mut(index / n).and_then(Option::take));
            let stream = match lengths.get(index / n).filter(|_| request.sampling.prompt_progress) {
                Some(length) => stream.with_prompt_progress(*length),
                None => stream,
            };
            streams.push(match ids.get(index / n).filter(|_| scored_prompt) {
                Some(ids) => stream.with_prompt_logprobs(ids.clone()),
                None => stream,
            });
            echoes.push(echoed[index / n].clone());
        }
        let (id, created) = (format!("cmpl-{}", app.new_id()), unix_seconds());
        let head = json!({"id": id, "object": "text_completion", "created": created, "model": model.name, "system_fingerprint": FINGERPRINT});
        let ids = if output.token_ids { ids } else { Vec::new() };
        let reply = Reply::new(streams, n, prompt_tokens).with_prompt_ids(ids);
        let scores_echo = request.echo && request.sampling.sampling.logprobs.is_some();
        Ok(Self { head, reply, echoes, scores_echo, timings: request.timings, stream: request.stream })
    }

    /// Its answers, for an endpoint with another response format.
    pub(crate) fn into_reply(self) -> Reply {
        self.reply
    }

    /// The non-streaming response.
    pub(crate) async fn whole(self, app: &Arc<App>) -> Result<JsonAnswer, ApiError> {
        let reply = &self.reply;
        let whole = |(index, text)| Whole {
            text,
            scores_echo: self.scores_echo,
            ids: reply.prompt_ids(index).map(|prompt| (prompt, Vec::new())),
            ..Whole::default()
        };
        let mut choices: Vec<_> = self.echoes.into_iter().enumerate().map(whole).collect();
        let mut timings = None;
        let take = |index: usize, increment: AnswerIncrement| {
            timings = increment.ended.as_ref().map(AnswerOutcome::timings).or(timings.take());
            choices[index].take(increment);
        };
        let (usage, memory) = self.reply.whole(take).await?;
        let mut object = self.head;
        if let Some(timings) = timings.filter(|_| self.timings) {
            object["timings"] = timings;
        }
        object["choices"] =
            choices.into_iter().enumerate().map(|(index, choice)| choice.into_json(index)).collect();
        object["usage"] = usage.to_json();
        JsonAnswer::collected(app, memory, object).await
    }

    /// The response as server-sent events.
    pub(crate) fn events(self, options: StreamOptions) -> impl Stream<Item = String> + Send {
        let mut template = ChunkTemplate::new(&self.head, options, self.reply.prompt_tokens());
        template.timings = self.timings;
        let logprobs = self.echoes.iter().map(|_| Logprobs::default()).collect();
        let prompt_ids = (0..self.echoes.len()).map(|index| self.reply.prompt_ids(index)).collect();
        self.reply.events(Chunks { template, echoes: self.echoes, prompt_ids, logprobs })
    }
}

/// Writes `text_completion` events.
struct Chunks {
    template: ChunkTemplate,
    echoes: Vec<String>,
    /// Ids of each choice's prompt, if requested, until its first chunk.
    prompt_ids: Vec<Option<Vec<Token>>>,
    logprobs: Vec<Logprobs>,
}

impl Chunks {
    /// The ids of a prompt as further JSON text of its choice, once.
    fn prompt_ids_part(&mut self, index: usize) -> String {
        let ids = self.prompt_ids.get_mut(index).and_then(Option::take);
        ids.map_or_else(String::new, |ids| format!(",\"prompt_token_ids\":{}", Value::from(ids)))
    }
}

impl EventWriter for Chunks {
    fn open(&mut self, out: &mut String) {
        for (index, echo) in std::mem::take(&mut self.echoes).into_iter().enumerate() {
            if !echo.is_empty() {
                let part = text_part(&echo) + &self.prompt_ids_part(index);
                self.template.chunk(out, index, &part, None, None);
            }
        }
    }

    fn prompt_progress(&mut self, out: &mut String, index: usize, progress: PromptProgress) {
        self.template.progress_chunk(out, index, &text_part(""), progress);
    }

    fn increment(&mut self, out: &mut String, index: usize, increment: AnswerIncrement) {
        self.template.set_usage(increment.tokens);
        self.logprobs[index].take(increment.logprobs);
        let text = text_part(&visible_text(&increment.deltas))
            + &self.prompt_ids_part(index)
            + &sse::ids_part(&increment.ids);
        let logprobs = self.logprobs[index].drain();
        match &increment.ended {
            Some(ended) => self.template.last_chunk(out, index, &text, logprobs.as_ref(), ended),
            None => self.template.chunk(out, index, &text, logprobs.as_ref(), None),
        }
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        out.push_str(&sse::error(error));
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        self.template.close(out, usage);
    }
}

/// Accumulates one choice of a non-streaming response.
#[derive(Default)]
struct Whole {
    text: String,
    scores_echo: bool,
    logprobs: Logprobs,
    prompt_logprobs: Value,
    /// Ids of prompt and answer, if requested.
    ids: Option<(Vec<Token>, Vec<Token>)>,
    reason: &'static str,
}

impl Whole {
    fn take(&mut self, increment: AnswerIncrement) {
        if let Some((_, answer)) = &mut self.ids {
            answer.extend(&increment.ids);
        }
        if let Some(prompt) = increment.prompt {
            if self.scores_echo {
                self.logprobs.take(prompt.listed);
            }
            self.prompt_logprobs = prompt.by_id;
        }
        self.text.push_str(&visible_text(&increment.deltas));
        self.logprobs.take(increment.logprobs);
        if let Some(ended) = increment.ended {
            self.reason = ended.reason;
        }
    }

    fn into_json(self, index: usize) -> Value {
        let logprobs = self.logprobs.into_json();
        let mut choice = json!({
            "index": index, "text": self.text, "logprobs": logprobs, "finish_reason": self.reason,
            "prompt_logprobs": self.prompt_logprobs,
        });
        if let Some((prompt, answer)) = self.ids {
            choice["prompt_token_ids"] = prompt.into();
            choice["token_ids"] = answer.into();
        }
        choice
    }
}

fn prompt_text(model: &Model, prompt: &Prompt) -> Result<String, ApiError> {
    match prompt {
        Prompt::Text(text) => Ok(text.clone()),
        Prompt::Ids(ids) => model.decode(ids),
        Prompt::Sequence(parts) => parts.iter().map(|part| prompt_text(model, part)).collect(),
    }
}

pub(crate) fn visible_text(deltas: &[Delta]) -> String {
    let text = |delta: &Delta| match delta {
        Delta::Content(text) => text.clone(),
        _ => String::new(),
    };
    deltas.iter().map(text).collect()
}

fn text_part(text: &str) -> String {
    format!("\"text\":{}", Value::from(text))
}

/// Log-probabilities in this endpoint's layout: four parallel lists.
#[derive(Default)]
struct Logprobs {
    tokens: Vec<Value>,
    chosen: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
    offset: usize,
}

impl Logprobs {
    fn take(&mut self, entries: Vec<Value>) {
        for entry in entries {
            self.offsets.push(self.offset.into());
            self.offset += entry["token"].as_str().map_or(0, |text| text.chars().count());
            let top = entry["top_logprobs"].as_array().map(|list| {
                let one = |one: &Value| Some((one["token"].as_str()?.to_owned(), one["logprob"].clone()));
                // The token itself is among them, however unlikely it was.
                Value::Object(list.iter().chain([&entry]).filter_map(one).collect())
            });
            self.top.push(top.unwrap_or_default());
            self.chosen.push(entry["logprob"].clone());
            self.tokens.push(entry["token"].clone());
        }
    }

    fn drain(&mut self) -> Option<Value> {
        let offset = self.offset;
        let lists = std::mem::replace(self, Self { offset, ..Self::default() });
        Some(lists.into_json()).filter(|value| !value.is_null())
    }

    fn into_json(self) -> Value {
        if self.tokens.is_empty() {
            Value::Null
        } else {
            json!({
                "tokens": self.tokens, "token_logprobs": self.chosen,
                "top_logprobs": self.top, "text_offset": self.offsets,
            })
        }
    }
}

pub(crate) async fn text_completions(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, COMPLETIONS).await?;
    let cost = body.cost();
    let begin = move |app: &Arc<App>| Completion::begin(app, key, &body.reader());
    let completion = app.run_work(cost, begin).await?;
    match completion.stream {
        Some(options) => Ok(event_stream(completion.events(options))),
        None => Ok(completion.whole(&app).await?.into_response()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_logprobs_include_the_sampled_token() {
        let one = |token: &str, logprob: f64| json!({"token": token, "logprob": logprob});
        let entry = |token: &str, logprob: f64, top: Value| {
            let mut entry = one(token, logprob);
            entry["top_logprobs"] = top;
            entry
        };
        let mut logprobs = Logprobs::default();
        logprobs.take(vec![
            // The first token of an echoed prompt has no probability.
            json!({"token": "a", "logprob": null, "top_logprobs": null}),
            entry("b", -3.0, json!([])),
            entry("c", -3.0, json!([one("x", -0.5), one("y", -1.0)])),
            entry("x", -0.5, json!([one("x", -0.5), one("y", -1.0)])),
        ]);
        let expected = json!([null, {"b": -3.0}, {"x": -0.5, "y": -1.0, "c": -3.0}, {"x": -0.5, "y": -1.0}]);
        assert_eq!(logprobs.into_json()["top_logprobs"], expected);
    }
}

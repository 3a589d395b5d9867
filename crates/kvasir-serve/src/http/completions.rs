use super::{
    App,
    speaker::Speaker,
    sse::{self, Frames},
    usage::Usage,
};
use crate::{
    ApiError,
    answer::{Delta, Reading},
    request::{CompletionRequest, Prompt, ResponseFormat, StreamOptions},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A completion that has been handed to the engine: `n` answers to each prompt, indexed prompt by prompt.
pub(super) struct Completion {
    head: Value,
    speakers: Vec<Speaker>,
    /// What stands in front of each answer: its prompt, if that was asked for.
    echoes: Vec<String>,
    n: usize,
    pub(super) stream: Option<StreamOptions>,
}

impl Completion {
    /// Checks the request and hands it over.
    pub(super) fn begin(app: &Arc<App>, key: u64, body: &Map<String, Value>) -> Result<Self, ApiError> {
        let model = app.model.clone();
        let request = CompletionRequest::read(body, &model.facts.sampling, model.facts.vocab)?;
        app.known_model(request.model.as_deref())?;
        if request.response_format != ResponseFormat::Text {
            return Err(ApiError::unsupported("response_format", "answers cannot be constrained to a form"));
        }
        if request.echo && request.sampling.sampling.logprobs.is_some() {
            return Err(ApiError::unsupported("echo", "log-probabilities of prompts are not kept"));
        }
        let mut prompts = Vec::with_capacity(request.prompts.len());
        for prompt in &request.prompts {
            let ids = match prompt {
                Prompt::Text(text) => model.encode(text, true)?,
                Prompt::Ids(ids) => ids.clone(),
            };
            prompts.push(app.engine_request("prompt", ids, &request.sampling, key)?);
        }
        let reading = Reading { stop: request.sampling.stop.clone(), ..Reading::default() };
        let (mut speakers, mut echoes) = (Vec::new(), Vec::new());
        for (prompt, source) in prompts.into_iter().zip(&request.prompts) {
            let echo = match (request.echo, source) {
                (false, _) => String::new(),
                (true, Prompt::Text(text)) => text.clone(),
                (true, Prompt::Ids(ids)) => model.decode(ids),
            };
            for answers in app.host.submit(prompt, request.sampling.n)? {
                speakers.push(Speaker::new(model.clone(), answers, reading.clone()));
                echoes.push(echo.clone());
            }
        }
        let (id, created) = (format!("cmpl-{}", app.new_id()), app.seconds());
        let head = json!({"id": id, "object": "text_completion", "created": created, "model": model.name});
        Ok(Self { head, speakers, echoes, n: request.sampling.n as usize, stream: request.stream })
    }

    /// All answers as one object.
    pub(super) async fn whole(mut self) -> Result<Value, ApiError> {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        for (index, (speaker, mut text)) in self.speakers.iter_mut().zip(self.echoes).enumerate() {
            let (mut logprobs, mut reason) = (Logprobs::default(), "stop");
            while let Some(gain) = speaker.next().await? {
                if let Some(ended) = gain.ended {
                    usage = usage.add(index % self.n == 0, ended);
                    reason = ended.reason;
                }
                logprobs.take(gain.logprobs);
                text.push_str(&said(&gain.deltas));
            }
            let logprobs = logprobs.into_json();
            choices
                .push(json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}));
        }
        let mut object = self.head;
        object["choices"] = choices.into();
        object["usage"] = usage.to_json();
        Ok(object)
    }

    /// The answers as server-sent events.
    pub(super) fn events(self, options: StreamOptions) -> impl Stream<Item = String> + Send {
        let frames = Frames::new(&self.head, options.include_usage);
        let mut first = String::new();
        for (index, echo) in self.echoes.iter().enumerate().filter(|(_, echo)| !echo.is_empty()) {
            frames.chunk(&mut first, index, &text_part(echo), None, None);
        }
        let gains = self.speakers.into_iter().enumerate().map(|(index, speaker)| {
            stream::unfold(Some((speaker, Logprobs::default())), move |state| async move {
                let (mut speaker, mut logprobs) = state?;
                match speaker.next().await {
                    Ok(Some(mut gain)) => {
                        logprobs.take(std::mem::take(&mut gain.logprobs));
                        let chunk = logprobs.drain();
                        Some(((index, Ok((gain, chunk))), Some((speaker, logprobs))))
                    }
                    Ok(None) => None,
                    Err(error) => Some(((index, Err(error)), None)),
                }
            })
            .boxed()
        });
        let (n, mut usage) = (self.n, Usage::default());
        let body = stream::select_all(gains).map(Some).chain(stream::iter([None])).map(move |item| {
            let mut out = String::new();
            match item {
                Some((index, Ok((gain, logprobs)))) => {
                    let text = text_part(&said(&gain.deltas));
                    let reason = gain.ended.map(|ended| ended.reason);
                    if let Some(ended) = gain.ended {
                        usage = usage.add(index % n == 0, ended);
                    }
                    frames.chunk(&mut out, index, &text, logprobs.as_ref(), reason);
                }
                Some((_, Err(error))) => out = sse::error(&error),
                None => {
                    if options.include_usage {
                        frames.usage(&mut out, &usage.to_json());
                    }
                    out.push_str(sse::DONE);
                }
            }
            out
        });
        stream::iter((!first.is_empty()).then_some(first)).chain(body)
    }
}

fn said(deltas: &[Delta]) -> String {
    let text = |delta: &Delta| match delta {
        Delta::Content(text) => text.clone(),
        _ => String::new(),
    };
    deltas.iter().map(text).collect()
}

fn text_part(text: &str) -> String {
    format!("\"text\":{}", Value::from(text))
}

/// Log-probabilities in this endpoint's own form: four lists side by side.
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
            let top = entry["top_logprobs"].as_array().into_iter().flatten();
            let top = top.filter_map(|one| Some((one["token"].as_str()?.to_owned(), one["logprob"].clone())));
            self.top.push(Value::Object(top.collect()));
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
        match self.tokens.is_empty() {
            true => Value::Null,
            false => json!({
                "tokens": self.tokens, "token_logprobs": self.chosen,
                "top_logprobs": self.top, "text_offset": self.offsets,
            }),
        }
    }
}

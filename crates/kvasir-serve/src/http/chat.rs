use super::{
    App,
    speaker::{Gain, Speaker},
    sse::{self, Frames},
    usage::Usage,
};
use crate::{
    ApiError,
    answer::{Delta, Reading},
    request::{ChatRequest, ResponseFormat, StreamOptions, ToolChoice},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A chat that has been handed to the engine.
pub(super) struct Chat {
    head: Value,
    speakers: Vec<Speaker>,
    call_ids: String,
    pub(super) stream: Option<StreamOptions>,
}

impl Chat {
    /// Checks the request and hands it over.
    pub(super) fn begin(app: &Arc<App>, key: u64, body: &Map<String, Value>) -> Result<Self, ApiError> {
        let model = app.model.clone();
        let request = ChatRequest::read(body, &model.facts.sampling, model.facts.vocab)?;
        app.known_model(request.model.as_deref())?;
        unsupported(&request)?;
        let prompt = model.chat_prompt(&request)?;
        let sampling = &request.sampling;
        let engine_request = app.engine_request("messages", prompt, sampling, key)?;
        let answers = app.host.submit(engine_request, sampling.n)?;
        let offers_tools = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        let reading = Reading {
            stop: sampling.stop.clone(),
            calls: offers_tools,
            reasoning: model.reasoning,
            one_call: !request.parallel_tool_calls,
        };
        let speaker = |answers| Speaker::new(model.clone(), answers, reading.clone());
        let id = app.new_id();
        Ok(Self {
            head: json!({"id": format!("chatcmpl-{id}"), "created": app.seconds(), "model": model.name}),
            speakers: answers.into_iter().map(speaker).collect(),
            call_ids: format!("call_{id}"),
            stream: request.stream,
        })
    }

    fn call_id(&self, answer: usize, call: usize) -> String {
        format!("{}_{answer}_{call}", self.call_ids)
    }

    /// The whole answer as one object.
    pub(super) async fn whole(mut self) -> Result<Value, ApiError> {
        let mut usage = Usage::default();
        let mut choices = Vec::new();
        for index in 0..self.speakers.len() {
            let mut message = Whole::default();
            let mut reason = "stop";
            while let Some(gain) = self.speakers[index].next().await? {
                if let Some(ended) = gain.ended {
                    usage = usage.add(index == 0, ended);
                    reason = ended.reason;
                }
                message.take(gain);
            }
            choices.push(message.into_json(index, reason, |call| self.call_id(index, call)));
        }
        let mut object = self.head;
        object["object"] = "chat.completion".into();
        object["choices"] = choices.into();
        object["usage"] = usage.to_json();
        Ok(object)
    }

    /// The answer as server-sent events. Answers to one prompt come interleaved, each under its index.
    pub(super) fn events(mut self, options: StreamOptions) -> impl Stream<Item = String> + Send {
        self.head["object"] = "chat.completion.chunk".into();
        let frames = Frames::new(&self.head, options.include_usage);
        let mut first = String::new();
        for index in 0..self.speakers.len() {
            frames.chunk(&mut first, index, r#""delta":{"role":"assistant","content":""}"#, None, None);
        }
        let ids: Vec<_> =
            (0..self.speakers.len()).map(|answer| format!("{}_{answer}", self.call_ids)).collect();
        let gains = self.speakers.into_iter().enumerate().map(|(index, speaker)| {
            stream::unfold(Some(speaker), move |speaker| async move {
                let mut speaker = speaker?;
                match speaker.next().await {
                    Ok(Some(gain)) => Some(((index, Ok(gain)), Some(speaker))),
                    Ok(None) => None,
                    Err(error) => Some(((index, Err(error)), None)),
                }
            })
            .boxed()
        });
        let mut usage = Usage::default();
        let body = stream::select_all(gains).map(Some).chain(stream::iter([None])).map(move |item| {
            let mut out = String::new();
            match item {
                Some((index, Ok(gain))) => {
                    if let Some(ended) = gain.ended {
                        usage = usage.add(index == 0, ended);
                    }
                    write_gain(&frames, &mut out, index, &ids[index], &gain);
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
        stream::iter([first]).chain(body)
    }
}

/// What needs a grammar is refused until grammars are there.
fn unsupported(request: &ChatRequest) -> Result<(), ApiError> {
    if request.response_format != ResponseFormat::Text {
        return Err(ApiError::unsupported("response_format", "answers cannot be constrained to a form"));
    }
    match request.tool_choice {
        ToolChoice::Required | ToolChoice::Named(_) => {
            Err(ApiError::unsupported("tool_choice", "a call cannot be enforced; use auto or none"))
        }
        ToolChoice::Auto | ToolChoice::None => Ok(()),
    }
}

fn write_gain(frames: &Frames, out: &mut String, index: usize, call_ids: &str, gain: &Gain) {
    let logprobs = (!gain.logprobs.is_empty()).then(|| json!({"content": gain.logprobs}));
    let mut logprobs = logprobs.as_ref();
    for delta in &gain.deltas {
        frames.chunk(out, index, &delta_json(delta, call_ids), logprobs.take(), None);
    }
    if let Some(ended) = gain.ended {
        frames.chunk(out, index, r#""delta":{}"#, logprobs.take(), Some(ended.reason));
    }
}

fn delta_json(delta: &Delta, call_ids: &str) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    match delta {
        Delta::Content(text) => format!(r#""delta":{{"content":{}}}"#, quoted(text)),
        Delta::Reasoning(text) => format!(r#""delta":{{"reasoning_content":{}}}"#, quoted(text)),
        Delta::CallBegin { index, name } => format!(
            r#""delta":{{"tool_calls":[{{"index":{index},"id":"{call_ids}_{index}","type":"function","function":{{"name":{},"arguments":""}}}}]}}"#,
            quoted(name)
        ),
        Delta::CallArguments { index, text } => format!(
            r#""delta":{{"tool_calls":[{{"index":{index},"function":{{"arguments":{}}}}}]}}"#,
            quoted(text)
        ),
    }
}

/// An answer put together.
#[derive(Default)]
struct Whole {
    content: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    logprobs: Vec<Value>,
}

impl Whole {
    fn take(&mut self, gain: Gain) {
        self.logprobs.extend(gain.logprobs);
        for delta in gain.deltas {
            match delta {
                Delta::Content(text) => self.content += &text,
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::CallBegin { name, .. } => self.calls.push((name, String::new())),
                Delta::CallArguments { text, .. } => {
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        *arguments += &text;
                    }
                }
            }
        }
    }

    fn into_json(self, index: usize, reason: &str, call_id: impl Fn(usize) -> String) -> Value {
        let content = match self.content.is_empty() && !self.calls.is_empty() {
            true => Value::Null,
            false => self.content.into(),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            let call = |(i, (name, arguments)): (usize, (String, String))| json!({"id": call_id(i), "type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = self.calls.into_iter().enumerate().map(call).collect();
        }
        let logprobs = if self.logprobs.is_empty() { Value::Null } else { json!({"content": self.logprobs}) };
        json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
    }
}

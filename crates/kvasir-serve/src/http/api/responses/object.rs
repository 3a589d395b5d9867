//! The response object of `/v1/responses`: echoed parameters, output items, usage.

use crate::http::answers::answer_stream::AnswerOutcome;
use crate::http::answers::usage::Usage;
use crate::http::app::{App, unix_seconds};
use crate::memory_budget::HeldMemory;
use crate::request::reader::Reader;
use crate::request::responses::ResponsesRequest;
use crate::request::tools::custom_input;
use kvasir_chat::Delta;
use kvasir_chat::ToolKind;
use kvasir_chat::answer::{Item, ItemEvent, ItemKind, Items};
use serde_json::{Value, json};
use std::collections::HashMap;

/// The initial response object, which echoes the request's parameters.
pub(super) fn initial_response(app: &App, request: &ResponsesRequest, body: &Reader) -> Value {
    let requested = |name: &str, default: Value| body.get(name).cloned().unwrap_or(default);
    let ResponsesRequest { chat, store, truncate, background, conversation, session } = request;
    let sampling = &chat.sampling.sampling;
    let mut tools = requested("tools", json!([]));
    for tool in tools.as_array_mut().into_iter().flatten() {
        if tool["type"] != "function" {
            continue;
        }
        if tool.get("strict").is_none_or(Value::is_null) {
            tool["strict"] = false.into();
        }
        with_fields(tool, json!({"description": null, "parameters": null}));
    }
    let mut reasoning = requested("reasoning", json!({}));
    with_fields(&mut reasoning, json!({"effort": null, "summary": null}));
    let mut text = requested("text", json!({}));
    with_fields(&mut text, json!({"format": {"type": "text"}}));
    if text["format"]["type"] == "json_schema" {
        with_fields(&mut text["format"], json!({"description": null, "strict": false}));
    }
    let mut response = json!({
        "object": "response",
        "created_at": unix_seconds(),
        "completed_at": null,
        "status": "in_progress",
        "background": background,
        "error": null,
        "incomplete_details": null,
        "instructions": requested("instructions", Value::Null),
        "max_output_tokens": requested("max_output_tokens", Value::Null),
        "max_tool_calls": null,
        "metadata": requested("metadata", json!({})),
        "model": app.model.name,
        "output": [],
        "parallel_tool_calls": chat.parallel_tool_calls,
        "presence_penalty": requested("presence_penalty", sampling.presence_penalty.into()),
        "frequency_penalty": requested("frequency_penalty", sampling.frequency_penalty.into()),
        "previous_response_id": requested("previous_response_id", Value::Null),
        "prompt_cache_key": requested("prompt_cache_key", Value::Null),
        "safety_identifier": requested("safety_identifier", Value::Null),
        "reasoning": reasoning,
        "service_tier": "default",
        "store": store,
        "temperature": requested("temperature", sampling.temperature.into()),
        "text": text,
        "tool_choice": requested("tool_choice", "auto".into()),
        "tools": tools,
        "top_logprobs": requested("top_logprobs", 0.into()),
        "top_p": requested("top_p", sampling.top_p.into()),
        "truncation": if *truncate { "auto" } else { "disabled" },
        "usage": null,
        "user": requested("user", Value::Null),
    });
    if let Some(id) = conversation {
        response["conversation"] = json!({"id": id});
    }
    if let Some(name) = session {
        response["session"] = name.as_str().into();
    }
    response
}

/// Prefix of the ids of a response's tool calls.
pub(super) fn call_prefix(id: &str) -> String {
    format!("call_{id}")
}

/// The `usage` object of a response.
pub(super) fn usage_object(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": usage.prompt_details(),
        "output_tokens": usage.completion,
        "output_tokens_details": usage.details(),
        "total_tokens": usage.prompt + usage.completion,
    })
}

/// Adds fields that an object lacks: responses hold all of them.
fn with_fields(object: &mut Value, fields: Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        fields.into_iter().for_each(|(name, value)| {
            object.entry(name).or_insert(value);
        });
    }
}

/// Serializes the response object and its items.
pub(super) struct ResponseObject {
    pub(super) id: String,
    pub(super) response: Value,
    /// Whether the response and streamed deltas contain `timings`.
    pub(super) timings: bool,
    /// Item indices of tool calls, in order. The id of a call contains its position in this list.
    pub(super) calls: Vec<usize>,
    /// Client-side kind of tools that are not plain functions, by name.
    pub(super) kinds: HashMap<String, ToolKind>,
    /// Log-probabilities of text items, by item index.
    pub(super) logprobs: HashMap<usize, Vec<Value>>,
    /// A warm-up only prefills the prompt, so an empty response is complete.
    pub(super) is_warm_up: bool,
    /// Charge of what is kept of the request's body: echoed parameters, and input to be stored.
    pub(super) _memory: HeldMemory,
}

/// Item index, event, and the log-probabilities that belong to it.
pub(super) type IndexedEvent = (usize, ItemEvent, Vec<Value>);

impl ResponseObject {
    /// Feeds deltas into the items. Log-probabilities that arrive together attach to the first text
    /// among their deltas.
    pub(super) fn take(
        &mut self,
        items: &mut Items,
        deltas: Vec<Delta>,
        mut logprobs: Vec<Value>,
    ) -> Vec<IndexedEvent> {
        let mut events = Vec::new();
        for delta in deltas {
            for (index, event) in items.push(delta) {
                let kind = items.all().get(index).map(|item| &item.kind);
                let is_text = kind == Some(&ItemKind::Text);
                if matches!((&event, kind), (ItemEvent::Begin, Some(ItemKind::Call(_)))) {
                    self.calls.push(index);
                }
                let own = match event {
                    ItemEvent::More(_) if is_text => std::mem::take(&mut logprobs),
                    _ => Vec::new(),
                };
                self.logprobs.entry(index).or_default().extend(own.iter().cloned());
                events.push((index, event, own));
            }
        }
        events
    }

    pub(super) fn response(&self) -> Value {
        let mut response = self.response.clone();
        response["id"] = format!("resp_{}", self.id).into();
        response
    }

    pub(super) fn finished(&self, items: &Items, ended: Option<&AnswerOutcome>, usage: &Usage) -> Value {
        let cut = !self.is_warm_up && ended.is_some_and(|ended| ended.reason == "length");
        let status = if cut { "incomplete" } else { "completed" };
        let mut response = self.response();
        response["status"] = status.into();
        response["completed_at"] = if cut { Value::Null } else { unix_seconds().into() };
        if cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        let last = items.all().len().saturating_sub(1);
        let output = items.all().iter().enumerate().map(|(index, item)| {
            let status = if index == last { last_status(item, ended) } else { "completed" };
            self.item(index, item, status)
        });
        response["output"] = output.collect();
        response["usage"] = usage_object(usage);
        if let Some(ended) = ended.filter(|_| self.timings) {
            response["timings"] = ended.timings();
        }
        response
    }

    pub(super) fn item_id(&self, index: usize, item: &Item) -> String {
        let kind = match item.kind {
            ItemKind::Reasoning => "rs",
            ItemKind::Text => "msg",
            ItemKind::Call(_) if self.is_custom(item) => "ctc",
            ItemKind::Call(_) => "fc",
        };
        format!("{kind}_{}_{index}", self.id)
    }

    /// An output item; its content is empty while `in_progress`.
    pub(super) fn item(&self, index: usize, item: &Item, status: &str) -> Value {
        let begun = status == "in_progress";
        let content = if begun { json!([]) } else { json!([self.part(index, item, &item.text)]) };
        let id = self.item_id(index, item);
        match &item.kind {
            ItemKind::Reasoning => {
                json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": content})
            }
            ItemKind::Text => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            ItemKind::Call(name) => {
                let number = self.calls.partition_point(|call| *call < index);
                let call = format!("{}_{number}", call_prefix(&self.id));
                let arguments = if begun { "" } else { item.text.as_str() };
                let (name, namespace) = self.client_name(name);
                let mut object = json!({
                    "id": id, "type": "function_call", "status": status, "call_id": call, "name": name,
                });
                if let Some(namespace) = namespace {
                    object["namespace"] = namespace.into();
                }
                if self.is_custom(item) {
                    object["type"] = "custom_tool_call".into();
                    object["input"] = custom_input(arguments).into();
                } else {
                    object["arguments"] = arguments.into();
                }
                object
            }
        }
    }

    /// The name and namespace of a called function, as the client offered them.
    pub(super) fn client_name<'a>(&'a self, function: &'a str) -> (&'a str, Option<&'a str>) {
        match self.kinds.get(function) {
            Some(ToolKind::Namespaced { namespace, name, .. }) => (name, Some(namespace)),
            _ => (function, None),
        }
    }

    pub(super) fn is_custom(&self, item: &Item) -> bool {
        matches!(&item.kind, ItemKind::Call(name) if self.kinds.get(name).is_some_and(ToolKind::is_custom))
    }

    pub(super) fn logprobs_of(&self, index: usize) -> &[Value] {
        self.logprobs.get(&index).map_or(&[], Vec::as_slice)
    }

    pub(super) fn part(&self, index: usize, item: &Item, text: &str) -> Value {
        match item.kind {
            ItemKind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            _ => {
                let logprobs = if text.is_empty() { &[] } else { self.logprobs_of(index) };
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
        }
    }
}

/// Status of an answer's last item: a length limit cuts any item, a stop text only calls.
pub(super) fn last_status(item: &Item, ended: Option<&AnswerOutcome>) -> &'static str {
    match ended.map(|ended| ended.reason) {
        Some("length") => "incomplete",
        Some("stop") if matches!(item.kind, ItemKind::Call(_)) => "incomplete",
        _ => "completed",
    }
}

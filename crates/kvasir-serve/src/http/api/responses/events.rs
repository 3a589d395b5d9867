//! The numbered SSE events of a streamed `/v1/responses` answer.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::reply::EventWriter;
use crate::http::answers::sse;
use crate::http::answers::usage::Usage;
use crate::http::api::responses::object::{ResponseObject, last_status};
use crate::http::api::responses::storing::Storing;
use crate::request::tools::custom_input;
use kvasir_chat::answer::{ItemEvent, ItemKind, Items};
use serde_json::{Value, json};

/// Writes the SSE events of a response, numbered from 0.
pub(super) struct Events {
    pub(super) object: ResponseObject,
    pub(super) storing: Option<Storing>,
    pub(super) items: Items,
    pub(super) ended: Option<AnswerOutcome>,
    /// Prompt length, for `timings`.
    pub(super) prompt_tokens: u32,
    pub(super) sequence: u64,
}

/// Fields of a delta event beside its text.
#[derive(Default)]
struct DeltaFields {
    logprobs: Vec<Value>,
    timings: Option<Value>,
}

/// Writes one event with the next number of `sequence`.
fn write_event(sequence: &mut u64, out: &mut String, name: &str, mut event: Value) {
    event["type"] = name.into();
    event["sequence_number"] = (*sequence).into();
    *sequence += 1;
    sse::typed(out, &event);
}

impl Events {
    /// Writes the events of one item event, including those of its single content part. The cost of
    /// a delta does not depend on the length of its item.
    fn item(&mut self, out: &mut String, index: usize, event: ItemEvent, fields: DeltaFields) {
        let Self { object, items, ended, sequence, .. } = self;
        let Some(item) = items.all().get(index) else { return };
        let place = |mut event: Value| {
            event["item_id"] = object.item_id(index, item).into();
            event["output_index"] = index.into();
            if !matches!(item.kind, ItemKind::Call(_)) {
                event["content_index"] = 0.into();
            }
            event
        };
        let stem = match item.kind {
            ItemKind::Reasoning => "response.reasoning_text",
            ItemKind::Text => "response.output_text",
            ItemKind::Call(_) if object.is_custom(item) => "response.custom_tool_call_input",
            ItemKind::Call(_) => "response.function_call_arguments",
        };
        let is_custom = object.is_custom(item);
        let is_call = matches!(item.kind, ItemKind::Call(_));
        let mut events = Vec::new();
        match event {
            ItemEvent::Begin => {
                let begun = object.item(index, item, "in_progress");
                events.push((
                    "response.output_item.added".into(),
                    json!({"output_index": index, "item": begun}),
                ));
                if !is_call {
                    let part = place(json!({"part": object.part(index, item, "")}));
                    events.push(("response.content_part.added".into(), part));
                }
            }
            // A custom tool's input is nested in the JSON arguments, so it is sent once they are
            // complete.
            ItemEvent::More(_) if is_custom => {}
            ItemEvent::More(text) => {
                let mut delta = place(json!({"delta": text}));
                if item.kind == ItemKind::Text {
                    delta["logprobs"] = fields.logprobs.into();
                }
                if let Some(timings) = fields.timings {
                    delta["timings"] = timings;
                }
                events.push((format!("{stem}.delta"), delta));
            }
            ItemEvent::End => {
                if is_custom {
                    let input = place(json!({"delta": custom_input(&item.text)}));
                    events.push((format!("{stem}.delta"), input));
                }
                let done = match &item.kind {
                    ItemKind::Call(_) if is_custom => json!({"input": custom_input(&item.text)}),
                    ItemKind::Call(name) => {
                        json!({"name": object.client_name(name).0, "arguments": item.text})
                    }
                    ItemKind::Text => json!({"text": item.text, "logprobs": object.logprobs_of(index)}),
                    ItemKind::Reasoning => json!({"text": item.text}),
                };
                events.push((format!("{stem}.done"), place(done)));
                if !is_call {
                    let part = place(json!({"part": object.part(index, item, &item.text)}));
                    events.push(("response.content_part.done".into(), part));
                }
                let whole = object.item(index, item, last_status(item, ended.as_ref()));
                events.push((
                    "response.output_item.done".into(),
                    json!({"output_index": index, "item": whole}),
                ));
            }
        }
        for (name, event) in events {
            write_event(sequence, out, &name, event);
        }
    }
}

impl EventWriter for Events {
    fn open(&mut self, out: &mut String) {
        for name in ["response.created", "response.in_progress"] {
            let response = self.object.response();
            write_event(&mut self.sequence, out, name, json!({"response": response}));
        }
    }

    fn increment(&mut self, out: &mut String, _: usize, increment: AnswerIncrement) {
        let progress = increment.progress;
        let timings = || progress.timings(self.prompt_tokens, increment.tokens);
        let timings = (self.object.timings && increment.ended.is_none()).then(timings);
        for (index, event, logprobs) in
            self.object.take(&mut self.items, increment.deltas, increment.logprobs)
        {
            self.item(out, index, event, DeltaFields { logprobs, timings: timings.clone() });
        }
        self.ended = increment.ended;
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        let mut response = self.object.response();
        response["status"] = "failed".into();
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.storing.take().into_iter().for_each(|storing| storing.store_failed(&response));
        write_event(&mut self.sequence, out, "response.failed", json!({"response": response}));
    }

    fn close(&mut self, out: &mut String, usage: &Usage) {
        if let Some((index, event)) = self.items.finish() {
            self.item(out, index, event, DeltaFields::default());
        }
        let response = self.object.finished(&self.items, self.ended.as_ref(), usage);
        let name =
            if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.storing.take().into_iter().for_each(|storing| storing.store(&response));
        write_event(&mut self.sequence, out, name, json!({"response": response}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory_budget::BODIES;
    use kvasir_chat::Delta;
    use std::{
        collections::HashMap,
        time::{Duration, Instant},
    };

    fn events() -> Events {
        let object = ResponseObject {
            id: "1".into(),
            response: json!({}),
            timings: false,
            calls: Vec::new(),
            kinds: HashMap::new(),
            logprobs: HashMap::new(),
            is_warm_up: false,
            _memory: BODIES.hold(),
        };
        Events { object, storing: None, items: Items::default(), ended: None, prompt_tokens: 1, sequence: 0 }
    }

    fn push(events: &mut Events, text: &str) {
        let deltas = vec![Delta::Content(text.into())];
        events.increment(&mut String::new(), 0, AnswerIncrement { deltas, ..AnswerIncrement::default() });
    }

    #[test]
    fn call_ids_count_calls_only() {
        let mut events = events();
        let call = |index| Delta::CallBegin { index, name: "f".into() };
        let deltas = vec![Delta::Reasoning("hm".into()), Delta::Content("so".into()), call(0), call(1)];
        let mut out = String::new();
        events.increment(&mut out, 0, AnswerIncrement { deltas, ..AnswerIncrement::default() });
        let begun = out.lines().filter_map(|line| line.strip_prefix("data: "));
        let items = begun.map(|line| serde_json::from_str::<Value>(line).unwrap()["item"].clone());
        let ids: Vec<_> = items.filter_map(|item| item["call_id"].as_str().map(str::to_owned)).collect();
        // Both calls begin, and the first ends. A session assigns the same numbers.
        assert_eq!(ids, ["call_1_0", "call_1_0", "call_1_1"]);
    }

    #[test]
    fn the_cost_of_a_delta_does_not_depend_on_its_item() {
        let mut events = events();
        push(&mut events, &"x".repeat(64 << 20));
        let began = Instant::now();
        for _ in 0..400 {
            push(&mut events, "y");
        }
        // Copies of the item would take 25 GiB.
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert_eq!(events.sequence, 403, "two events begin the item");
    }
}

//! Tool calls of a chat completion as OpenAI's objects: calls of functions and of custom
//! (free-form) tools.
//!
//! The model sees a custom tool as a function with one argument, `input`. A stream sends the input
//! as one chunk, when the JSON arguments that it is nested in are complete.

use crate::request::tools::custom_input;
use kvasir_chat::Delta;
use kvasir_chat::Tool;
use serde_json::{Value, json};
use std::collections::HashSet;

/// Writes the tool calls of all answers to one request.
pub(super) struct CallWriter {
    /// Prefix of the call ids of all answers.
    prefix: String,
    /// Names of the custom tools.
    custom: HashSet<String>,
}

impl CallWriter {
    pub(super) fn new(prefix: String, tools: &[Tool]) -> Self {
        let custom = tools.iter().filter(|tool| tool.kind.is_custom());
        Self { prefix, custom: custom.map(|tool| tool.name.clone()).collect() }
    }

    /// Prefix of the call ids of one answer.
    pub(super) fn id_prefix(&self, answer: usize) -> String {
        format!("{}_{answer}", self.prefix)
    }

    fn id(&self, answer: usize, call: usize) -> String {
        format!("{}_{call}", self.id_prefix(answer))
    }

    /// A complete call, for a non-streaming response.
    pub(super) fn whole(&self, answer: usize, call: usize, name: &str, arguments: &str) -> Value {
        let id = self.id(answer, call);
        if self.custom.contains(name) {
            let custom = json!({"name": name, "input": custom_input(arguments)});
            return json!({"id": id, "type": "custom", "custom": custom});
        }
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    /// The first chunk of a streamed call.
    fn begin(&self, answer: usize, call: usize, name: &str) -> Value {
        let (id, is_custom) = (self.id(answer, call), self.custom.contains(name));
        if is_custom {
            let custom = json!({"name": name, "input": ""});
            return json!({"index": call, "id": id, "type": "custom", "custom": custom});
        }
        let function = json!({"name": name, "arguments": ""});
        json!({"index": call, "id": id, "type": "function", "function": function})
    }
}

/// Writes the deltas of one streamed answer as `"delta":{…}`.
#[derive(Default)]
pub(super) struct DeltaWriter {
    answer: usize,
    /// Index and arguments so far of the open call of a custom tool.
    open_custom: Option<(usize, String)>,
}

impl DeltaWriter {
    pub(super) fn new(answer: usize) -> Self {
        Self { answer, open_custom: None }
    }

    /// The chunks of one delta; none while the arguments of a custom tool are incomplete.
    pub(super) fn write(&mut self, calls: &CallWriter, delta: Delta) -> Vec<String> {
        if let (Some((open, arguments)), Delta::CallArguments { index, text }) =
            (&mut self.open_custom, &delta)
            && open == index
        {
            arguments.push_str(text);
            return Vec::new();
        }
        let mut parts: Vec<String> = self.finish().into_iter().collect();
        parts.push(match delta {
            Delta::Content(text) => format!(r#""delta":{{"content":{}}}"#, Value::from(text)),
            Delta::Reasoning(text) => format!(r#""delta":{{"reasoning_content":{}}}"#, Value::from(text)),
            Delta::CallBegin { index, name } => {
                if calls.custom.contains(&name) {
                    self.open_custom = Some((index, String::new()));
                }
                call_part(&calls.begin(self.answer, index, &name))
            }
            Delta::CallArguments { index, text } => {
                call_part(&json!({"index": index, "function": {"arguments": text}}))
            }
        });
        parts
    }

    /// Closes the open call of a custom tool; returns the chunk with its input.
    pub(super) fn finish(&mut self) -> Option<String> {
        let (index, arguments) = self.open_custom.take()?;
        Some(call_part(&json!({"index": index, "custom": {"input": custom_input(&arguments)}})))
    }
}

fn call_part(call: &Value) -> String {
    format!(r#""delta":{{"tool_calls":[{call}]}}"#)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_chat::{Tool, ToolKind};

    fn writer() -> CallWriter {
        let tool = |name: &str, kind| Tool {
            name: name.into(),
            parameters: None,
            schema: String::new(),
            source: Value::Null,
            strict: false,
            kind,
        };
        CallWriter::new("call_1".into(), &[tool("f", ToolKind::Function), tool("patch", ToolKind::Custom)])
    }

    #[test]
    fn custom_tool_input_is_sent_when_its_arguments_are_complete() {
        let calls = writer();
        let mut deltas = DeltaWriter::new(0);
        let begin = |index, name: &str| Delta::CallBegin { index, name: name.into() };
        let arguments = |index, text: &str| Delta::CallArguments { index, text: text.into() };
        let mut written = Vec::new();
        for delta in [
            Delta::Content("so".into()),
            begin(0, "patch"),
            arguments(0, r#"{"input": "a"#),
            arguments(0, r#"\nb"}"#),
            begin(1, "f"),
            arguments(1, "{}"),
            begin(2, "patch"),
            arguments(2, r#"{"input": "c"}"#),
        ] {
            written.extend(deltas.write(&calls, delta));
        }
        written.extend(deltas.finish());
        let written: Vec<Value> =
            written.iter().map(|part| serde_json::from_str(&format!("{{{part}}}")).unwrap()).collect();
        let calls: Vec<&Value> = written[1..].iter().map(|chunk| &chunk["delta"]["tool_calls"][0]).collect();
        assert_eq!(written[0], json!({"delta": {"content": "so"}}));
        let id = |n: usize| format!("call_1_0_{n}");
        assert_eq!(
            calls,
            [
                &json!({"index": 0, "id": id(0), "type": "custom", "custom": {"name": "patch", "input": ""}}),
                &json!({"index": 0, "custom": {"input": "a\nb"}}),
                &json!({"index": 1, "id": id(1), "type": "function", "function": {"name": "f", "arguments": ""}}),
                &json!({"index": 1, "function": {"arguments": "{}"}}),
                &json!({"index": 2, "id": id(2), "type": "custom", "custom": {"name": "patch", "input": ""}}),
                &json!({"index": 2, "custom": {"input": "c"}}),
            ]
        );
    }

    #[test]
    fn complete_calls_have_the_type_of_their_tool() {
        let calls = writer();
        let custom = calls.whole(1, 0, "patch", r#"{"input": "x"}"#);
        let expected =
            json!({"id": "call_1_1_0", "type": "custom", "custom": {"name": "patch", "input": "x"}});
        assert_eq!(custom, expected);
        assert_eq!(calls.whole(0, 1, "f", "{}")["function"], json!({"name": "f", "arguments": "{}"}));
    }
}

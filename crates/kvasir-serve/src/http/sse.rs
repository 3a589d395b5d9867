use crate::ApiError;
use serde_json::Value;

/// One server-sent event with this JSON text.
pub(super) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// The event that ends a stream of OpenAI's kind.
pub(super) const DONE: &str = "data: [DONE]\n\n";

/// The event for a failure in mid-stream.
pub(super) fn error(error: &ApiError) -> String {
    event(&error.to_json().to_string())
}

/// Chunks of one answer share all but their delta: the parts around it are made once.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    head: String,
    tail: String,
}

impl Frames {
    /// `head` is the object of a chunk without `choices`; every chunk ends with `tail` fields inside it.
    pub(super) fn new(head: &Value, include_usage: bool) -> Self {
        let text = head.to_string();
        let open = text.strip_suffix('}').unwrap_or(&text);
        Self {
            head: format!("data: {open},\"choices\":["),
            tail: if include_usage { ",\"usage\":null}\n\n".into() } else { "}\n\n".into() },
        }
    }

    /// A chunk with one choice: `part` is the `delta` of a chat or the `text` of a completion, as JSON text with its key.
    pub(super) fn chunk(
        &self,
        out: &mut String,
        index: usize,
        part: &str,
        logprobs: Option<&Value>,
        finish: Option<&str>,
    ) {
        use std::fmt::Write;
        let logprobs = logprobs.map_or_else(|| "null".into(), Value::to_string);
        let finish = finish.map_or_else(|| "null".into(), |reason| format!("\"{reason}\""));
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{}{{\"index\":{index},{part},\"logprobs\":{logprobs},\"finish_reason\":{finish}}}]{}",
            self.head, self.tail
        );
    }

    /// A chunk without choices that carries the usage.
    pub(super) fn usage(&self, out: &mut String, usage: &Value) {
        out.push_str(&self.head);
        out.push_str("],\"usage\":");
        out.push_str(&usage.to_string());
        out.push_str("}\n\n");
    }
}

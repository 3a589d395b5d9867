use super::usage::Usage;
use crate::{ApiError, request::StreamOptions};
use serde_json::Value;

/// One server-sent event with this JSON text.
pub(super) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// The event that ends a stream of OpenAI's kind.
const DONE: &str = "data: [DONE]\n\n";

/// The event for a failure in mid-stream.
pub(super) fn error(error: &ApiError) -> String {
    event(&error.to_json().to_string())
}

/// Chunks of one answer share all but their delta: the parts around it are made once.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    head: String,
    tail: &'static str,
    include_usage: bool,
}

impl Frames {
    /// `head` is the object of a chunk without `choices`.
    pub(super) fn new(head: &Value, options: StreamOptions) -> Self {
        let text = head.to_string();
        let open = text.strip_suffix('}').unwrap_or(&text);
        Self {
            head: format!("data: {open},\"choices\":["),
            tail: if options.include_usage { ",\"usage\":null}\n\n" } else { "}\n\n" },
            include_usage: options.include_usage,
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

    /// The end: a chunk without choices that carries the usage, if it was asked for, and [`DONE`].
    pub(super) fn close(&self, out: &mut String, usage: &Usage) {
        if self.include_usage {
            out.push_str(&self.head);
            out.push_str("],\"usage\":");
            out.push_str(&usage.to_json().to_string());
            out.push_str("}\n\n");
        }
        out.push_str(DONE);
    }
}

//! Server-sent events (SSE): event framing and the chunk format of OpenAI's streaming APIs.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::http::answers::answer_stream::AnswerOutcome;
use crate::http::answers::progress::PromptProgress;
use crate::http::answers::usage::Usage;
use crate::memory_budget::{HeldMemory, MAX_UNREAD, STREAMS};
use crate::request::chat::StreamOptions;
use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt};
use kvasir_kv::Token;
use serde_json::Value;
use std::{fmt::Write, io};

/// Size in bytes up to which a text of a stream is not charged to the memory budget.
const UNCHARGED: usize = 16 << 10;

/// An untyped event with this JSON text.
pub(crate) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// Writes a typed event: its `type` is both the event name and a field of the data.
pub(crate) fn typed(out: &mut String, value: &Value) {
    let name = value["type"].as_str().unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = write!(out, "event: {name}\ndata: {value}\n\n");
}

/// A comment that keeps a silent stream open.
pub(crate) const KEEP_ALIVE: &str = ": keep-alive\n\n";
/// Terminator of OpenAI's streams.
const DONE: &str = "data: [DONE]\n\n";

/// Error event in mid-stream.
pub(crate) fn error(error: &ApiError) -> String {
    event(&error.to_json().to_string())
}

/// The ids of an increment as further JSON text of its choice, if they were requested.
pub(crate) fn ids_part(ids: &[Token]) -> String {
    if ids.is_empty() { String::new() } else { format!(",\"token_ids\":{}", Value::from(ids)) }
}

/// Chunk template: the constant JSON around each delta is serialized once per stream.
#[derive(Clone, Debug)]
pub(crate) struct ChunkTemplate {
    head: String,
    tail: String,
    options: StreamOptions,
    prompt: u64,
    /// Whether the last chunk of an answer has timings.
    pub(crate) timings: bool,
}

impl ChunkTemplate {
    /// `head` is the chunk object without `choices`; `prompt` is the number of prompt tokens.
    pub(crate) fn new(head: &Value, options: StreamOptions, prompt: u64) -> Self {
        let text = head.to_string();
        let open = text.strip_suffix('}').unwrap_or(&text);
        let mut template = Self {
            head: format!("data: {open},\"choices\":["),
            tail: if options.include_usage { ",\"usage\":null}\n\n".into() } else { "}\n\n".into() },
            options,
            prompt,
            timings: false,
        };
        // Every chunk has usage, the first one, too.
        template.set_usage(0);
        template
    }

    /// Writes a chunk with one choice. `part` is the `delta` of a chat or the `text` of a
    /// completion, as JSON text with its key.
    pub(crate) fn chunk(
        &self,
        out: &mut String,
        index: usize,
        part: &str,
        logprobs: Option<&Value>,
        finish: Option<&str>,
    ) {
        let logprobs = logprobs.map_or_else(|| "null".into(), Value::to_string);
        let finish = finish.map_or_else(|| "null".into(), |reason| format!("\"{reason}\""));
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "{}{{\"index\":{index},{part},\"logprobs\":{logprobs},\"finish_reason\":{finish}}}]{}",
            self.head, self.tail
        );
    }

    /// Sets the answer's token count for following chunks, with `continuous_usage_stats`.
    pub(crate) fn set_usage(&mut self, tokens: u32) {
        if self.options.continuous_usage {
            let usage = Usage { prompt: self.prompt, completion: tokens.into(), ..Usage::default() };
            self.tail = format!(",\"usage\":{}}}\n\n", usage.to_json());
        }
    }

    /// Writes a chunk with `prompt_progress`; `part` is a choice's part without text.
    pub(crate) fn progress_chunk(
        &mut self,
        out: &mut String,
        index: usize,
        part: &str,
        progress: PromptProgress,
    ) {
        let tail = self.tail.clone();
        self.tail = format!(",\"prompt_progress\":{}{tail}", progress.to_json());
        self.chunk(out, index, part, None, None);
        self.tail = tail;
    }

    /// Writes the last chunk of an answer, with its finish reason and, if requested, its timings.
    pub(crate) fn last_chunk(
        &mut self,
        out: &mut String,
        index: usize,
        part: &str,
        logprobs: Option<&Value>,
        outcome: &AnswerOutcome,
    ) {
        let tail = self.tail.clone();
        if self.timings {
            self.tail = format!(",\"timings\":{}{tail}", outcome.timings());
        }
        self.chunk(out, index, part, logprobs, Some(outcome.reason));
        self.tail = tail;
    }

    /// Writes the end: a chunk without choices that carries usage, if requested, then [`DONE`].
    pub(crate) fn close(&self, out: &mut String, usage: &Usage) {
        if self.options.include_usage {
            out.push_str(&self.head);
            out.push_str("],\"usage\":");
            out.push_str(&usage.to_json().to_string());
            out.push_str("}\n\n");
        }
        out.push_str(DONE);
    }
}

/// Text of a response body, with the memory that it is charged until it is dropped.
struct ChargedText {
    text: String,
    _memory: Option<HeldMemory>,
}

impl AsRef<[u8]> for ChargedText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// A response body of these texts. Those above [`UNCHARGED`] bytes are charged to the budget of
/// streams until the socket has taken them. If one does not fit, the connection is cut.
pub(crate) fn streaming_body(texts: impl Stream<Item = String> + Send + 'static) -> Body {
    let context = RequestContext::current();
    Body::from_stream(texts.map(move |text| {
        let mut memory = (text.len() > UNCHARGED).then(|| STREAMS.hold_for(context.tenant()));
        if memory.as_mut().is_some_and(|memory| memory.grow_within(text.len(), MAX_UNREAD).is_err()) {
            context.connection.cut();
            return Err(io::Error::from(io::ErrorKind::ConnectionAborted));
        }
        Ok(Bytes::from_owner(ChargedText { text, _memory: memory }))
    }))
}

pub(crate) fn event_stream(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let body = streaming_body(events);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream; charset=utf-8"),
        (header::CACHE_CONTROL, "no-cache"),
        // Disables response buffering in proxies such as nginx.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::request_context::Tenant;
    use axum::body::HttpBody;
    use futures_util::stream;
    use std::{
        pin::Pin,
        sync::Arc,
        task::{Context, Poll, Waker},
    };

    #[test]
    fn large_unsent_texts_are_charged_and_cut_the_connection_beyond_the_budget() {
        let context = Arc::new(RequestContext { key: 4712, ..RequestContext::default() });
        let texts = || stream::iter([1, UNCHARGED + 1, MAX_UNREAD + 1].map(|bytes| "x".repeat(bytes)));
        let mut body = context.clone().scope_sync(|| streaming_body(texts()));
        let mut next = || match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(frame)) => frame.map(|frame| frame.into_data().unwrap()),
            _ => panic!("a text is ready"),
        };
        let held = || STREAMS.held_of(Tenant::Key(4712));
        drop(next().unwrap());
        assert_eq!(held(), 0, "small");
        let text = next().unwrap();
        assert_eq!(held(), UNCHARGED + 1);
        drop(text);
        assert_eq!(held(), 0);
        assert!(next().is_err());
        assert!(context.connection.poll(&Context::from_waker(Waker::noop())));
    }
}

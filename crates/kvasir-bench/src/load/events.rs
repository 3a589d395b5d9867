//! Parses the server-sent events (SSE) of OpenAI's streaming API, as far as a benchmark needs them.
//!
//! Invariant: the events are the same wherever the byte stream is cut (unit test over every cut).

use serde::Deserialize;
use std::borrow::Cow;

/// What one streamed chunk contributes to the measurement.
#[derive(Debug, PartialEq)]
pub(crate) enum Event<'a> {
    /// A text, reasoning or tool-call delta.
    Text(Cow<'a, str>),
    /// Final usage: prompt tokens, output tokens, and prompt tokens served from the prefix cache.
    Usage { prompt: u64, output: u64, cached: u64 },
    /// An error object or an unparsable chunk.
    Failed(String),
    /// A chunk without measured content.
    Nothing,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default, alias = "reasoning")]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

/// Calls `see` for every complete event at the front of `text` and removes those bytes.
pub(crate) fn take_events(text: &mut Vec<u8>, mut see: impl FnMut(Event<'_>)) {
    let mut done = 0;
    while let Some(end) = text.get(done..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n')) {
        let line = text.get(done..done + end).unwrap_or_default();
        done += end + 1;
        if let Some(data) = line.strip_prefix(b"data:") {
            see(read(data.trim_ascii()));
        }
    }
    text.drain(..done);
}

fn read(data: &[u8]) -> Event<'_> {
    if data == b"[DONE]" {
        return Event::Nothing;
    }
    let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else {
        return Event::Failed(format!("an event that is not understood: {}", String::from_utf8_lossy(data)));
    };
    if let Some(error) = chunk.error {
        return Event::Failed(error.to_string());
    }
    let choice = chunk.choices.into_iter().next();
    let is_said = |text: &Cow<'_, str>| !text.is_empty();
    if let Some(choice) = choice {
        if let Some(text) = choice.text.filter(is_said) {
            return Event::Text(text);
        }
        if let Some(delta) = choice.delta {
            if let Some(text) = delta.content.filter(is_said).or(delta.reasoning_content.filter(is_said)) {
                return Event::Text(text);
            }
            if delta.tool_calls.is_some() {
                return Event::Text(Cow::Borrowed(""));
            }
        }
    }
    match chunk.usage {
        Some(usage) => Event::Usage {
            prompt: usage.prompt_tokens,
            output: usage.completion_tokens,
            cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
        },
        None => Event::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sse_events_parse_at_every_chunk_boundary() {
        let whole = concat!(
            ": a comment\n\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            "data: {\"id\":\"x\",\"choices\":[{\"delta\":{\"content\":\"a\\nb\"}}],\"usage\":null}\r\n\r\n",
            "data:{\"choices\":[{\"text\":\"plain\"}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n",
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0}]}}]}\n\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n",
            "data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n",
        );
        for cut in 0..whole.len() {
            let mut seen = Vec::new();
            let mut text = Vec::new();
            for part in [&whole[..cut], &whole[cut..]] {
                text.extend_from_slice(part.as_bytes());
                take_events(&mut text, |event| match event {
                    Event::Nothing => {}
                    other => seen.push(format!("{other:?}")),
                });
            }
            assert!(text.is_empty());
            assert_eq!(
                seen,
                [
                    r#"Text("a\nb")"#,
                    r#"Text("plain")"#,
                    r#"Text("hm")"#,
                    r#"Text("")"#,
                    "Usage { prompt: 7, output: 3, cached: 5 }",
                    r#"Failed("{\"message\":\"no\"}")"#,
                ],
                "cut at {cut}"
            );
        }
    }
}

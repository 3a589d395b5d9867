//! Merges the answer streams of one request into a JSON response or one SSE stream, with keep-alive
//! events.
//!
//! An `EventWriter` implements the event format of each API.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerStream};
use crate::http::answers::json_answer::AnswerMemory;
use crate::http::answers::progress::PromptProgress;
use crate::http::answers::sse;
use crate::http::answers::usage::Usage;
use crate::model::marked_prefixes::MarkedPrefix;
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::{future::ready, time::Duration};
use tokio::time::timeout;

/// Time without an event after which a keep-alive is sent: proxies and clients drop silent streams.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Event format of one streaming API. Text put into `out` is sent at once.
pub(crate) trait EventWriter: Send + 'static {
    /// Writes the events before the first token.
    fn open(&mut self, out: &mut String);
    /// One answer was admitted, with this many prompt tokens served from the KV cache.
    fn admitted(&mut self, _out: &mut String, _cached: u32) {}
    /// Writes the prefill progress of one answer's prompt, if the request wants it
    /// (`return_progress`).
    fn prompt_progress(&mut self, _out: &mut String, _answer: usize, _progress: PromptProgress) {}
    /// Writes an increment of one answer.
    fn increment(&mut self, out: &mut String, answer: usize, increment: AnswerIncrement);
    /// Writes a keep-alive.
    fn ping(&mut self, out: &mut String) {
        out.push_str(sse::KEEP_ALIVE);
    }
    /// Writes the failure of one answer, its last event.
    fn fail(&mut self, out: &mut String, error: &ApiError);
    /// Writes the end of the stream, if no answer has failed.
    fn close(&mut self, out: &mut String, usage: &Usage);
}

/// All answers to one request, prompt by prompt.
pub(crate) struct Reply {
    streams: Vec<AnswerStream>,
    per_prompt: usize,
    prompt_tokens: u64,
    /// Ids of each prompt, if requested.
    prompt_ids: Vec<Vec<Token>>,
    /// The rendered prompt, if requested.
    rendered_prompt: Option<String>,
    /// Prefixes of the prompt whose K/V is kept.
    marked: Vec<MarkedPrefix>,
}

impl Reply {
    /// `per_prompt` answers per prompt; `prompt_tokens` is the total over all prompts.
    pub(crate) fn new(streams: Vec<AnswerStream>, per_prompt: usize, prompt_tokens: u64) -> Self {
        Self {
            streams,
            per_prompt: per_prompt.max(1),
            prompt_tokens,
            prompt_ids: Vec::new(),
            rendered_prompt: None,
            marked: Vec::new(),
        }
    }

    /// Sets the prefixes whose K/V is kept.
    pub(crate) fn with_marked(self, marked: Vec<MarkedPrefix>) -> Self {
        Self { marked, ..self }
    }

    /// The prefixes of the prompt whose K/V is kept.
    pub(crate) fn marked(&self) -> &[MarkedPrefix] {
        &self.marked
    }

    /// Sets the rendered prompt, which `verbose` requests.
    pub(crate) fn with_rendered_prompt(self, rendered_prompt: Option<String>) -> Self {
        Self { rendered_prompt, ..self }
    }

    /// llama.cpp's `__verbose` object with the rendered prompt, if requested.
    pub(crate) fn verbose(&self) -> Option<Value> {
        self.rendered_prompt.as_ref().map(|prompt| json!({"prompt": prompt}))
    }

    /// Sets the ids of each prompt, which `return_token_ids` asks for.
    pub(crate) fn with_prompt_ids(self, prompt_ids: Vec<Vec<Token>>) -> Self {
        Self { prompt_ids, ..self }
    }

    /// Ids of the prompt of one answer, if requested.
    pub(crate) fn prompt_ids(&self, answer: usize) -> Option<Vec<Token>> {
        self.prompt_ids.get(answer / self.per_prompt).cloned()
    }

    /// Number of answers.
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Total prompt tokens.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The slot number of each answer; −1 if slots are not recorded.
    pub(crate) fn slots(&self) -> Vec<i64> {
        self.streams.iter().map(|stream| stream.slot().map_or(-1, i64::from)).collect()
    }

    /// The answer streams.
    pub(crate) fn into_streams(self) -> Vec<AnswerStream> {
        self.streams
    }

    /// Collects all answers as they are generated; `take` receives each increment with the answer's
    /// index. Returns the usage, and the memory that the answers are charged.
    pub(crate) async fn whole(
        self,
        mut take: impl FnMut(usize, AnswerIncrement),
    ) -> Result<(Usage, AnswerMemory), ApiError> {
        let (mut usage, mut memory) = (Usage::default(), AnswerMemory::default());
        let mut received = stream::select_all(self.streams.into_iter().enumerate().map(increments));
        while let Some((index, increment)) = received.next().await {
            let increment = increment?;
            if let Some(ended) = &increment.ended {
                usage = usage.add(index % self.per_prompt == 0, ended);
            }
            memory.charge(increment.heap_bytes())?;
            take(index, increment);
        }
        Ok((usage, memory))
    }

    /// Streams all answers interleaved, as they are generated.
    pub(crate) fn events(self, mut writer: impl EventWriter) -> impl Stream<Item = String> + Send {
        let mut first = String::new();
        writer.open(&mut first);
        let increments = stream::select_all(self.streams.into_iter().enumerate().map(increments));
        let (usage, per_prompt) = (Usage::default(), self.per_prompt);
        let running = Running { increments, writer, usage, per_prompt, failed: false };
        let rest = stream::unfold(Some(running), |running| async move {
            let mut out = String::new();
            let running = running?.next(&mut out).await;
            Some((out, running))
        });
        // An empty string would be an empty HTTP chunk, which terminates the body.
        stream::iter([first]).chain(rest).filter(|output| ready(!output.is_empty()))
    }
}

type Received = (usize, Result<AnswerIncrement, ApiError>);

fn increments((index, stream): (usize, AnswerStream)) -> BoxStream<'static, Received> {
    stream::unfold(Some(stream), move |stream| async move {
        let mut stream = stream?;
        match stream.next().await {
            Ok(increment) => Some(((index, Ok(increment?)), Some(stream))),
            Err(error) => Some(((index, Err(error)), None)),
        }
    })
    .boxed()
}

/// State of a streamed reply.
struct Running<W> {
    increments: SelectAll<BoxStream<'static, Received>>,
    writer: W,
    usage: Usage,
    per_prompt: usize,
    failed: bool,
}

impl<W: EventWriter> Running<W> {
    /// Writes the next event; `None` after the end.
    async fn next(mut self, out: &mut String) -> Option<Self> {
        match timeout(KEEP_ALIVE_INTERVAL, self.increments.next()).await {
            Err(_) => self.writer.ping(out),
            Ok(Some((index, Ok(increment)))) => {
                if let Some(ended) = &increment.ended {
                    self.usage = self.usage.add(index % self.per_prompt == 0, ended);
                }
                if let Some(cached) = increment.cached {
                    self.writer.admitted(out, cached);
                }
                for progress in &increment.prompt_progress {
                    self.writer.prompt_progress(out, index, *progress);
                }
                if increment.has_answer() {
                    self.writer.increment(out, index, increment);
                }
            }
            Ok(Some((_, Err(error)))) => {
                self.failed = true;
                self.writer.fail(out, &error);
            }
            Ok(None) => {
                // An error is the last event: a regular end would hide it.
                if !self.failed {
                    self.writer.close(out, &self.usage);
                }
                return None;
            }
        }
        Some(self)
    }
}

//! Merges the answer streams of one request into a JSON response or one SSE stream, with keep-alive
//! events.
//!
//! A `Writer` implements the event format of each API.

use crate::{
    error::ApiError,
    http::answers::{
        answer_stream::{Gain, Speaker},
        usage::Usage,
    },
};
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use std::{future::ready, time::Duration};
use tokio::time::timeout;

/// Keep-alive interval: proxies and clients drop silent streams.
const SILENCE: Duration = Duration::from_secs(15);

/// Event format of one streaming API. Text put into `out` is sent at once.
pub(crate) trait Writer: Send + 'static {
    /// Writes the events before the first token.
    fn open(&mut self, out: &mut String);
    /// Writes an increment of one answer.
    fn gain(&mut self, out: &mut String, answer: usize, gain: Gain);
    /// Writes a keep-alive.
    fn ping(&mut self, out: &mut String) {
        out.push_str(": still here\n\n");
    }
    /// Writes the failure of one answer, its last event.
    fn fail(&mut self, out: &mut String, error: &ApiError);
    /// Writes the end of the stream.
    fn close(&mut self, out: &mut String, usage: &Usage);
}

/// All answers to one request, prompt by prompt.
pub(crate) struct Reply {
    speakers: Vec<Speaker>,
    per_prompt: usize,
    prompt_tokens: u64,
}

impl Reply {
    /// `per_prompt` answers per prompt; `prompt_tokens` is the total over all prompts.
    pub(crate) fn new(speakers: Vec<Speaker>, per_prompt: usize, prompt_tokens: u64) -> Self {
        Self { speakers, per_prompt: per_prompt.max(1), prompt_tokens }
    }

    /// Number of answers.
    pub(crate) fn len(&self) -> usize {
        self.speakers.len()
    }

    /// Total prompt tokens.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The answer streams.
    pub(crate) fn into_speakers(self) -> Vec<Speaker> {
        self.speakers
    }

    /// Collects all answers in order; `take` receives each increment with the answer's index.
    pub(crate) async fn whole(mut self, mut take: impl FnMut(usize, Gain)) -> Result<Usage, ApiError> {
        let mut usage = Usage::default();
        for (index, speaker) in self.speakers.iter_mut().enumerate() {
            while let Some(gain) = speaker.next().await? {
                if let Some(ended) = &gain.ended {
                    usage = usage.add(index % self.per_prompt == 0, ended);
                }
                take(index, gain);
            }
        }
        Ok(usage)
    }

    /// Streams all answers interleaved, as they are generated.
    pub(crate) fn events(self, mut writer: impl Writer) -> impl Stream<Item = String> + Send {
        let mut first = String::new();
        writer.open(&mut first);
        let gains = stream::select_all(self.speakers.into_iter().enumerate().map(gains));
        let running = Running { gains, writer, usage: Usage::default(), per_prompt: self.per_prompt };
        let rest = stream::unfold(Some(running), |running| async move {
            let mut out = String::new();
            let running = running?.next(&mut out).await;
            Some((out, running))
        });
        // An empty piece would be an empty HTTP chunk, which terminates the body.
        stream::iter([first]).chain(rest).filter(|piece| ready(!piece.is_empty()))
    }
}

type Gained = (usize, Result<Gain, ApiError>);

fn gains((index, speaker): (usize, Speaker)) -> BoxStream<'static, Gained> {
    stream::unfold(Some(speaker), move |speaker| async move {
        let mut speaker = speaker?;
        match speaker.next().await {
            Ok(gain) => Some(((index, Ok(gain?)), Some(speaker))),
            Err(error) => Some(((index, Err(error)), None)),
        }
    })
    .boxed()
}

/// State of a streamed reply.
struct Running<W> {
    gains: SelectAll<BoxStream<'static, Gained>>,
    writer: W,
    usage: Usage,
    per_prompt: usize,
}

impl<W: Writer> Running<W> {
    /// Writes the next event; `None` after the end.
    async fn next(mut self, out: &mut String) -> Option<Self> {
        match timeout(SILENCE, self.gains.next()).await {
            Err(_) => self.writer.ping(out),
            Ok(Some((index, Ok(gain)))) => {
                if let Some(ended) = &gain.ended {
                    self.usage = self.usage.add(index % self.per_prompt == 0, ended);
                }
                self.writer.gain(out, index, gain);
            }
            Ok(Some((_, Err(error)))) => self.writer.fail(out, &error),
            Ok(None) => {
                self.writer.close(out, &self.usage);
                return None;
            }
        }
        Some(self)
    }
}

use super::{
    speaker::{Gain, Speaker},
    usage::Usage,
};
use crate::ApiError;
use futures_util::{
    Stream, StreamExt,
    stream::{self, BoxStream, SelectAll},
};
use std::{future::ready, time::Duration};
use tokio::time::timeout;

/// After this long without an event a stream shows that it lives: proxies and clients drop what is silent.
const SILENCE: Duration = Duration::from_secs(15);

/// Writes a streamed reply in the words of one endpoint. What it puts into `out` goes to the client at once.
pub(super) trait Writer: Send + 'static {
    /// Before anything has been generated.
    fn open(&mut self, out: &mut String);
    /// One answer gained something.
    fn gain(&mut self, out: &mut String, answer: usize, gain: Gain);
    /// Nothing happened for a while.
    fn ping(&mut self, out: &mut String) {
        out.push_str(": still here\n\n");
    }
    /// One answer failed; nothing more comes from it.
    fn fail(&mut self, out: &mut String, error: &ApiError);
    /// Every answer has ended.
    fn close(&mut self, out: &mut String, usage: &Usage);
}

/// All answers to one request: those to its first prompt, then those to its second, and so on.
pub(super) struct Reply {
    speakers: Vec<Speaker>,
    per_prompt: usize,
    prompt_tokens: u64,
}

impl Reply {
    /// `per_prompt` answers to each prompt; the prompts have `prompt_tokens` together.
    pub(super) fn new(speakers: Vec<Speaker>, per_prompt: usize, prompt_tokens: u64) -> Self {
        Self { speakers, per_prompt: per_prompt.max(1), prompt_tokens }
    }

    /// Number of answers.
    pub(super) fn len(&self) -> usize {
        self.speakers.len()
    }

    /// Tokens of all prompts.
    pub(super) fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The answers themselves.
    pub(super) fn into_speakers(self) -> Vec<Speaker> {
        self.speakers
    }

    /// Waits for all of it, answer by answer; `take` gets every gain with the answer's index.
    pub(super) async fn whole(mut self, mut take: impl FnMut(usize, Gain)) -> Result<Usage, ApiError> {
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

    /// All of it as it comes, answers interleaved.
    pub(super) fn events(self, mut writer: impl Writer) -> impl Stream<Item = String> + Send {
        let mut first = String::new();
        writer.open(&mut first);
        let gains = stream::select_all(self.speakers.into_iter().enumerate().map(gains));
        let running = Running { gains, writer, usage: Usage::default(), per_prompt: self.per_prompt };
        let rest = stream::unfold(Some(running), |running| async move {
            let mut out = String::new();
            let running = running?.next(&mut out).await;
            Some((out, running))
        });
        // An empty piece would be an empty HTTP chunk, which ends a body.
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

/// A reply that is being streamed.
struct Running<W> {
    gains: SelectAll<BoxStream<'static, Gained>>,
    writer: W,
    usage: Usage,
    per_prompt: usize,
}

impl<W: Writer> Running<W> {
    /// Writes what happens next; none when that was the end.
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

use super::{
    speaker::{Gain, Speaker},
    usage::Usage,
};
use crate::ApiError;
use futures_util::{Stream, StreamExt, stream};

/// Writes a streamed reply in the words of one endpoint. What it puts into `out` goes to the client at once.
pub(super) trait Writer: Send + 'static {
    /// Before anything has been generated.
    fn open(&mut self, out: &mut String);
    /// One answer gained something.
    fn gain(&mut self, out: &mut String, answer: usize, gain: Gain);
    /// One answer failed; nothing more comes from it.
    fn fail(&mut self, out: &mut String, error: &ApiError);
    /// Every answer has ended.
    fn close(&mut self, out: &mut String, usage: &Usage);
}

/// All answers to one request: those to its first prompt, then those to its second, and so on.
pub(super) struct Reply {
    speakers: Vec<Speaker>,
    per_prompt: usize,
}

impl Reply {
    /// `per_prompt` answers to each prompt.
    pub(super) fn new(speakers: Vec<Speaker>, per_prompt: usize) -> Self {
        Self { speakers, per_prompt: per_prompt.max(1) }
    }

    /// Number of answers.
    pub(super) fn len(&self) -> usize {
        self.speakers.len()
    }

    /// Waits for all of it, answer by answer; `take` gets every gain with the answer's index.
    pub(super) async fn whole(mut self, mut take: impl FnMut(usize, Gain)) -> Result<Usage, ApiError> {
        let mut usage = Usage::default();
        for (index, speaker) in self.speakers.iter_mut().enumerate() {
            while let Some(gain) = speaker.next().await? {
                if let Some(ended) = gain.ended {
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
        let per_prompt = self.per_prompt;
        let gains = self.speakers.into_iter().enumerate().map(|(index, speaker)| {
            stream::unfold(Some(speaker), move |speaker| async move {
                let mut speaker = speaker?;
                match speaker.next().await {
                    Ok(gain) => Some(((index, Ok(gain?)), Some(speaker))),
                    Err(error) => Some(((index, Err(error)), None)),
                }
            })
            .boxed()
        });
        let mut usage = Usage::default();
        let rest = stream::select_all(gains).map(Some).chain(stream::iter([None])).map(move |item| {
            let mut out = String::new();
            match item {
                Some((index, Ok(gain))) => {
                    if let Some(ended) = gain.ended {
                        usage = usage.add(index % per_prompt == 0, ended);
                    }
                    writer.gain(&mut out, index, gain);
                }
                Some((_, Err(error))) => writer.fail(&mut out, &error),
                None => writer.close(&mut out, &usage),
            }
            out
        });
        // An empty piece would be an empty HTTP chunk, which ends a body.
        stream::iter([first]).chain(rest).filter(|piece| std::future::ready(!piece.is_empty()))
    }
}

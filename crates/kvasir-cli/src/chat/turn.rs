//! One model turn of `kvasir chat`: streams an answer to the screen and collects it as a message.

use crate::chat::interrupt::Answering;
use crate::chat::screen::Screen;
use crate::io::model_progress::reading;
use kvasir::PrefillProgress;
use kvasir_chat::Delta;
use kvasir_serve::{
    ApiError,
    http::{AnswerOutcome, App},
};
use serde_json::{Map, Value, json};
use std::{io, sync::Arc};

/// A collected answer.
pub(crate) struct Turn {
    /// Its text.
    content: String,
    /// Tool calls: name and arguments.
    calls: Vec<(String, String)>,
    /// Outcome; `None` if the user stopped it.
    pub(super) ended: Option<AnswerOutcome>,
}

/// Why there is no answer.
pub(crate) enum NoTurn {
    /// The request was rejected or failed.
    Refused(ApiError),
    /// Writing to stdout failed.
    Screen(io::Error),
}

impl From<ApiError> for NoTurn {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

impl From<io::Error> for NoTurn {
    fn from(error: io::Error) -> Self {
        Self::Screen(error)
    }
}

impl Turn {
    /// Submits the request and streams the answer to the screen, until it ends or `answering` stops
    /// it. A terminal shows how far a long prompt has been read.
    pub(super) async fn take(
        app: &Arc<App>,
        body: &Map<String, Value>,
        screen: &mut Screen,
        mut answering: Option<Answering>,
        prefill: Option<&PrefillProgress>,
    ) -> Result<Self, NoTurn> {
        let mut stream = app.submit_chat(body)?;
        let mut line = prefill.cloned().map(reading);
        let mut writing = Writing::default();
        loop {
            let increment = tokio::select! {
                increment = stream.next() => increment?,
                () = stopped(&mut answering) => None,
            };
            let Some(increment) = increment else { break };
            if !increment.deltas.is_empty() || increment.ended.is_some() {
                drop(line.take());
            }
            writing.take(increment.deltas, screen)?;
            writing.ended = increment.ended;
            if writing.ended.is_some() {
                break;
            }
        }
        drop(line);
        if writing.thinking {
            screen.reasoning("\n");
        }
        screen.end_line()?;
        Ok(Self { content: writing.content, calls: writing.calls, ended: writing.ended })
    }

    /// Whether the answer has neither text nor calls.
    pub(super) fn is_empty(&self) -> bool {
        self.content.is_empty() && self.calls.is_empty()
    }

    /// The assistant message, and ids and names of its calls. Calls of a stopped answer may be
    /// incomplete and are left out.
    pub(super) fn message(&self, number: usize) -> (Value, Vec<(String, String)>) {
        let mut message = json!({"role": "assistant", "content": self.content});
        let calls = if self.ended.is_some() { self.calls.as_slice() } else { &[] };
        let named =
            calls.iter().enumerate().map(|(i, (name, _))| (format!("call_{number}_{i}"), name.clone()));
        let named: Vec<_> = named.collect();
        if !calls.is_empty() {
            let call = |((id, name), (_, arguments)): (&(String, String), &(String, String))| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = named.iter().zip(calls).map(call).collect();
        }
        (message, named)
    }
}

async fn stopped(answering: &mut Option<Answering>) {
    match answering {
        Some(answering) => answering.stopped().await,
        None => std::future::pending().await,
    }
}

#[derive(Default)]
struct Writing {
    content: String,
    calls: Vec<(String, String)>,
    thinking: bool,
    ended: Option<AnswerOutcome>,
}

impl Writing {
    fn take(&mut self, deltas: Vec<Delta>, screen: &mut Screen) -> io::Result<()> {
        for delta in deltas {
            if self.thinking && !matches!(delta, Delta::Reasoning(_)) {
                self.thinking = false;
                screen.reasoning("\n\n");
            }
            match delta {
                Delta::Reasoning(text) => {
                    self.thinking = true;
                    screen.reasoning(&text);
                }
                Delta::Content(text) => {
                    screen.answer(&text)?;
                    self.content.push_str(&text);
                }
                Delta::CallBegin { name, .. } => {
                    screen.end_line()?;
                    screen.called(&format!("→ {name} "))?;
                    self.calls.push((name, String::new()));
                }
                Delta::CallArguments { text, .. } => {
                    screen.called(&text)?;
                    if let Some((_, arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        Ok(())
    }
}

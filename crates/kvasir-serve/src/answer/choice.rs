use super::{CallEvent, Calls, Harmony, Part, Reasoning, ReasoningDialect, StopFilter, ToolDialect};
use crate::request::Tool;
use std::sync::Arc;

/// What one answer gains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Text for the reader.
    Content(String),
    /// What the model thinks to itself.
    Reasoning(String),
    /// A tool call begins.
    CallBegin {
        /// Number of the call in the answer.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// Number of the call in the answer.
        index: usize,
        /// The next characters of the JSON text.
        text: String,
    },
}

/// What is told apart in an answer.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Texts that end it.
    pub stop: Vec<String>,
    /// Tokens before those in which they are looked for.
    pub unstopped: u32,
    /// It goes on with a text instead of beginning one.
    pub goes_on: bool,
    /// It may hold calls of these tools, written in this dialect.
    pub calls: Option<(ToolDialect, Arc<[Tool]>)>,
    /// It may begin with reasoning, in this dialect; true when the prompt ends inside it.
    pub reasoning: Option<(ReasoningDialect, bool)>,
    /// Calls are constrained from their beginning on, and read accordingly.
    pub constrained: bool,
    /// Calls after the first are dropped.
    pub one_call: bool,
}

/// One answer, read as it comes: stop texts first, then reasoning, then calls.
#[derive(Clone, Debug)]
pub struct Choice {
    stop: StopFilter,
    parts: Parts,
    one_call: bool,
    /// Tokens that are yet to come before stop texts count.
    unstopped: u32,
}

/// How the parts of an answer are told apart.
#[derive(Clone, Debug)]
enum Parts {
    Marked { reasoning: Option<Reasoning>, calls: Option<Calls> },
    Channels(Harmony),
}

impl Choice {
    /// An empty answer.
    pub fn new(reading: Reading) -> Self {
        let parts = match reading.reasoning {
            Some((ReasoningDialect::Harmony, _)) => Parts::Channels(Harmony::new(reading.calls.is_some())),
            reasoning => Parts::Marked {
                reasoning: reasoning.map(|(dialect, begun)| Reasoning::new(dialect, begun)),
                calls: reading
                    .calls
                    .and_then(|(dialect, tools)| Calls::new(dialect, tools, reading.constrained)),
            },
        };
        let (one_call, unstopped) = (reading.one_call, reading.unstopped);
        Self { stop: StopFilter::new(reading.stop), parts, one_call, unstopped }
    }

    /// Takes the text of one more token and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let sure = match self.unstopped {
            0 => self.stop.push(text),
            _ => self.stop.pass(text),
        };
        self.unstopped = self.unstopped.saturating_sub(1);
        match sure.is_empty() {
            true => Vec::new(),
            false => self.read(&sure),
        }
    }

    /// The text has ended: gives out what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = self.stop.finish();
        let mut deltas = self.read(&rest);
        let last = match &mut self.parts {
            Parts::Channels(harmony) => harmony.finish(),
            Parts::Marked { reasoning, calls } => {
                let part = reasoning.as_mut().and_then(Reasoning::finish);
                let mut last: Vec<Delta> = part.map(|part| read_part(part, calls)).unwrap_or_default();
                let events = calls.as_mut().map(Calls::finish).unwrap_or_default();
                last.extend(events.into_iter().map(Delta::from));
                last
            }
        };
        deltas.extend(self.kept(last));
        deltas
    }

    /// Bytes of the whole text that certainly belong to it, so far.
    pub fn sure(&self) -> usize {
        self.stop.given()
    }

    /// Where a stop text cut it, in bytes of the whole text.
    pub fn stopped(&self) -> Option<(usize, &str)> {
        self.stop.stopped()
    }

    /// Whether it holds a tool call.
    pub fn has_calls(&self) -> bool {
        match &self.parts {
            Parts::Channels(harmony) => harmony.count() > 0,
            Parts::Marked { calls, .. } => calls.as_ref().is_some_and(|calls| calls.count() > 0),
        }
    }

    fn read(&mut self, text: &str) -> Vec<Delta> {
        let deltas = match &mut self.parts {
            Parts::Channels(harmony) => harmony.push(text),
            Parts::Marked { reasoning: None, calls } => read_part(Part::Text(text.to_owned()), calls),
            Parts::Marked { reasoning: Some(reasoning), calls } => {
                reasoning.push(text).into_iter().flat_map(|part| read_part(part, calls)).collect()
            }
        };
        self.kept(deltas)
    }

    /// Without the calls beyond the first, where there may be one.
    fn kept(&self, mut deltas: Vec<Delta>) -> Vec<Delta> {
        let dropped = |delta: &Delta| matches!(delta, Delta::CallBegin { index, .. } | Delta::CallArguments { index, .. } if *index > 0);
        deltas.retain(|delta| !(self.one_call && dropped(delta)));
        deltas
    }
}

fn read_part(part: Part, calls: &mut Option<Calls>) -> Vec<Delta> {
    match (part, calls) {
        (Part::Reasoning(text), _) => vec![Delta::Reasoning(text)],
        (Part::Text(text), None) if text.is_empty() => Vec::new(),
        (Part::Text(text), None) => vec![Delta::Content(text)],
        (Part::Text(text), Some(calls)) => calls.push(&text).into_iter().map(Delta::from).collect(),
    }
}

impl From<CallEvent> for Delta {
    fn from(event: CallEvent) -> Self {
        match event {
            CallEvent::Text(text) => Self::Content(text),
            CallEvent::Begin { index, name } => Self::CallBegin { index, name },
            CallEvent::Arguments { index, text } => Self::CallArguments { index, text },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasoning, text and calls of an answer cut at `cut`, put together again.
    fn cut(reading: &Reading, text: &str, cut: usize) -> (String, String, Vec<(String, String)>, bool) {
        let mut choice = Choice::new(reading.clone());
        let mut deltas = choice.push(&text[..cut]);
        deltas.extend(choice.push(&text[cut..]));
        deltas.extend(choice.finish());
        let (mut thought, mut said, mut calls) = (String::new(), String::new(), Vec::new());
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => thought += &text,
                Delta::Content(text) => said += &text,
                Delta::CallBegin { name, .. } => calls.push((name, String::new())),
                Delta::CallArguments { index, text } => calls[index].1 += &text,
            }
        }
        assert_eq!(choice.has_calls(), !calls.is_empty());
        (thought, said, calls, choice.stopped().is_some())
    }

    #[test]
    fn all_three_readings_together() {
        let text = "<think>hm</think>\nSure.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\
                    <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>STOPmore";
        let reading = Reading {
            stop: vec!["STOP".into()],
            unstopped: 0,
            goes_on: false,
            calls: Some((ToolDialect::Hermes, Arc::new([]))),
            reasoning: Some((ReasoningDialect::Think, false)),
            constrained: false,
            one_call: true,
        };
        for at in 0..text.len() {
            let want = ("hm".into(), "Sure.".into(), vec![("f".to_owned(), "{}".to_owned())], true);
            assert_eq!(cut(&reading, text, at), want, "cut at {at}");
        }
    }

    #[test]
    fn no_stop_counts_before_the_least_length() {
        let reading = Reading { stop: vec!["ab".into()], unstopped: 2, ..Reading::default() };
        let mut choice = Choice::new(reading);
        let said: Vec<Vec<Delta>> = ["ab", "xa", "b", "ab."].map(|text| choice.push(text)).into();
        let text = |text: &str| vec![Delta::Content(text.into())];
        // What stands on both sides of the line is no stop either.
        assert_eq!(said, [text("ab"), text("xa"), text("b"), vec![]]);
        assert_eq!((choice.finish(), choice.stopped(), choice.sure()), (vec![], Some((5, "ab")), 5));
    }

    #[test]
    fn who_may_not_call_makes_no_call() {
        let reading = Reading { reasoning: Some((ReasoningDialect::Harmony, false)), ..Reading::default() };
        let text = "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Hm.";
        let want = ("{}".into(), "Hm.".into(), vec![], false);
        assert_eq!(cut(&reading, text, 9), want);
    }

    #[test]
    fn channels() {
        let calls = Some((ToolDialect::Harmony, Arc::from([])));
        let reading =
            Reading { calls, reasoning: Some((ReasoningDialect::Harmony, false)), ..Reading::default() };
        let text = "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>commentary<|message|>Look.<|end|>\
                    <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"a\": \"<|\"}<|call|>";
        for at in 0..text.len() {
            let want =
                ("a < b".into(), "Look.".into(), vec![("f".to_owned(), "{\"a\": \"<|\"}".to_owned())], false);
            assert_eq!(cut(&reading, text, at), want, "cut at {at}");
        }
        let text = "<|channel|>final<|message|>Hello.<|return|>";
        let plain = "No channel at all.";
        for at in 0..plain.len() {
            assert_eq!(cut(&reading, text, at).1, "Hello.");
            assert_eq!(cut(&reading, plain, at).1, plain);
        }
    }
}

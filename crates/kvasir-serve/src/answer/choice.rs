use super::{CallEvent, Calls, Part, Reasoning, StopFilter};

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
    /// It may hold tool calls.
    pub calls: bool,
    /// It may begin with reasoning; `Some(true)` when the prompt ends inside it.
    pub reasoning: Option<bool>,
    /// Calls after the first are dropped.
    pub one_call: bool,
}

/// One answer, read as it comes: stop texts first, then reasoning, then calls.
#[derive(Clone, Debug)]
pub struct Choice {
    stop: StopFilter,
    reasoning: Option<Reasoning>,
    calls: Option<Calls>,
    one_call: bool,
}

impl Choice {
    /// An empty answer.
    pub fn new(reading: Reading) -> Self {
        Self {
            stop: StopFilter::new(reading.stop),
            reasoning: reading.reasoning.map(Reasoning::new),
            calls: reading.calls.then(Calls::default),
            one_call: reading.one_call,
        }
    }

    /// Takes more text and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let sure = self.stop.push(text);
        let mut deltas = Vec::new();
        if !sure.is_empty() {
            self.read(&sure, &mut deltas);
        }
        deltas
    }

    /// The text has ended: gives out what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let rest = self.stop.finish();
        self.read(&rest, &mut deltas);
        if let Some(part) = self.reasoning.as_mut().and_then(Reasoning::finish) {
            self.part(part, &mut deltas);
        }
        if let Some(calls) = &mut self.calls {
            let events = calls.finish();
            self.events(events, &mut deltas);
        }
        deltas
    }

    /// Where a stop text cut it, in bytes of the whole text.
    pub fn stopped(&self) -> Option<(usize, &str)> {
        self.stop.stopped()
    }

    /// Whether it holds a tool call.
    pub fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.count() > 0)
    }

    fn read(&mut self, text: &str, deltas: &mut Vec<Delta>) {
        match &mut self.reasoning {
            None => self.part(Part::Text(text.to_owned()), deltas),
            Some(reasoning) => {
                for part in reasoning.push(text) {
                    self.part(part, deltas);
                }
            }
        }
    }

    fn part(&mut self, part: Part, deltas: &mut Vec<Delta>) {
        match (part, &mut self.calls) {
            (Part::Reasoning(text), _) => deltas.push(Delta::Reasoning(text)),
            (Part::Text(text), None) if !text.is_empty() => deltas.push(Delta::Content(text)),
            (Part::Text(_), None) => {}
            (Part::Text(text), Some(calls)) => {
                let events = calls.push(&text);
                self.events(events, deltas);
            }
        }
    }

    fn events(&self, events: Vec<CallEvent>, deltas: &mut Vec<Delta>) {
        let dropped = |index: usize| self.one_call && index > 0;
        deltas.extend(events.into_iter().filter_map(|event| match event {
            CallEvent::Text(text) => Some(Delta::Content(text)),
            CallEvent::Begin { index, name } => (!dropped(index)).then_some(Delta::CallBegin { index, name }),
            CallEvent::Arguments { index, text } => {
                (!dropped(index)).then_some(Delta::CallArguments { index, text })
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_readings_together() {
        let text = "<think>hm</think>\nSure.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\
                    <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>STOPmore";
        let reading =
            Reading { stop: vec!["STOP".into()], calls: true, reasoning: Some(false), one_call: true };
        for cut in 0..text.len() {
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
            assert_eq!((thought.as_str(), said.as_str()), ("hm", "Sure."), "cut at {cut}");
            assert_eq!(calls, [("f".to_owned(), "{}".to_owned())]);
            assert!(choice.has_calls() && choice.stopped().is_some());
        }
    }
}

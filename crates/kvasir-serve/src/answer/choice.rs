//! Streaming post-processing of one choice: stop sequences, then reasoning, then tool calls.
//!
//! Pipeline of each token's text:
//!
//! 1. `StopFilter` cuts the text at the first stop sequence and holds back a possible prefix of
//!    one.
//! 2. `Reasoning` splits the reasoning block from visible text; `Harmony` does this by channel.
//! 3. `Calls` parses tool calls out of visible text.
//!
//! Invariant: the concatenated deltas do not depend on how the text is split; the tests here check
//! every split.

use crate::{
    answer::{
        calls::Calls,
        events::Delta,
        harmony::Harmony,
        reasoning::{Part, Reasoning},
        stop_sequences::StopFilter,
    },
    dialect::{reasoning::ReasoningDialect, tool_calls::ToolDialect},
    request::tools::Tool,
};
use std::sync::Arc;

/// Parsing options of one choice.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Stop sequences.
    pub stop: Vec<String>,
    /// Number of leading tokens in which stop sequences are ignored (`min_tokens`).
    pub unstopped: u32,
    /// The answer continues a text instead of starting one (raw completion).
    pub goes_on: bool,
    /// Tool call dialect and offered tools, if calls are parsed.
    pub calls: Option<(ToolDialect, Arc<[Tool]>)>,
    /// Reasoning dialect, if any; the flag is true when the prompt ends inside the reasoning block.
    pub reasoning: Option<(ReasoningDialect, bool)>,
    /// Calls were generated under constrained decoding and are parsed accordingly.
    pub constrained: bool,
    /// Drop calls after the first (`parallel_tool_calls: false`).
    pub one_call: bool,
}

/// Streaming state of one choice: stop sequences first, then reasoning, then tool calls.
#[derive(Clone, Debug)]
pub struct Choice {
    stop: StopFilter,
    parts: Parts,
    one_call: bool,
    /// Remaining tokens in which stop sequences are ignored.
    unstopped: u32,
}

/// How content, reasoning and calls are separated: by markers in text, or by harmony channels.
#[derive(Clone, Debug)]
enum Parts {
    Marked { reasoning: Option<Reasoning>, calls: Option<Calls> },
    Channels(Harmony),
}

impl Choice {
    /// An empty choice.
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

    /// Feeds the text of one token; returns the deltas that no later text can change.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let sure = match self.unstopped {
            0 => self.stop.push(text),
            _ => self.stop.pass(text),
        };
        self.unstopped = self.unstopped.saturating_sub(1);
        if sure.is_empty() { Vec::new() } else { self.read(&sure) }
    }

    /// Ends the text and flushes what was held back.
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

    /// Bytes of the raw text released so far: not held back as a possible stop sequence.
    pub fn sure(&self) -> usize {
        self.stop.given()
    }

    /// Byte offset in the raw text where a stop sequence cut it, and that sequence.
    pub fn stopped(&self) -> Option<(usize, &str)> {
        self.stop.stopped()
    }

    /// Whether a tool call was parsed.
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

    /// Drops calls after the first if only one is allowed.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasoning, text and calls of an answer split at `cut`, concatenated.
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
        // A stop sequence across the `min_tokens` border does not count either.
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

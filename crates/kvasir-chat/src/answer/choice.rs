//! Streaming post-processing of one choice: stop sequences, then reasoning, then tool calls.
//!
//! Pipeline of each token's text:
//!
//! 1. `StopFilter` cuts the text at the first stop sequence and holds back a possible prefix of
//!    one.
//! 2. `Reasoning` splits the reasoning block from visible text; `Harmony` does this by channel.
//! 3. `ToolCallParser` parses tool calls out of visible text.
//!
//! Invariant: the concatenated deltas do not depend on how the text is split; the tests here check
//! every split.

use crate::answer::call_constraint::CallConstraint;
use crate::answer::calls::ToolCallParser;
use crate::answer::events::Delta;
use crate::answer::harmony::Harmony;
use crate::answer::reasoning::{Reasoning, ReasoningPart};
use crate::answer::stop_sequences::StopFilter;
use crate::dialect::reasoning::ReasoningDialect;
use crate::dialect::tool_calls::ToolDialect;
use crate::scan::stop_regex::StopRegex;
use crate::tool::Tool;
use std::sync::Arc;

/// Parsing options of one choice.
#[derive(Clone, Debug, Default)]
pub struct ParseOptions {
    /// Stop sequences.
    pub stop: Vec<String>,
    /// Regular expressions that end the answer behind their match. Valid ones.
    pub stop_regex: Vec<String>,
    /// Number of leading tokens in which stop sequences are ignored (`min_tokens`).
    pub min_tokens: u32,
    /// The answer continues a text instead of starting one (raw completion).
    pub continues: bool,
    /// Tool call dialect and offered tools, if calls are parsed.
    pub calls: Option<(ToolDialect, Arc<[Tool]>)>,
    /// Reasoning dialect, if any; the flag is true when the prompt ends inside the reasoning block.
    pub reasoning: Option<(ReasoningDialect, bool)>,
    /// How far constrained decoding shapes the calls.
    pub constrained: CallConstraint,
    /// Drop calls after the first (`parallel_tool_calls: false`).
    pub one_call: bool,
}

/// Streaming state of one choice: stop sequences first, then reasoning, then tool calls.
#[derive(Clone, Debug)]
pub struct Choice {
    stop: StopFilter,
    stop_regex: Option<StopRegex>,
    parts: Pipeline,
    one_call: bool,
    /// The answer consists of calls: text at its end is the beginning of one.
    only_calls: bool,
    /// Whether the answer ended inside a call.
    ends_in_call: bool,
    /// Remaining tokens in which stop sequences are ignored.
    min_tokens: u32,
}

/// How content, reasoning and calls are separated: by markers in text, or by harmony channels.
#[derive(Clone, Debug)]
enum Pipeline {
    Marked { reasoning: Option<Reasoning>, calls: Option<ToolCallParser> },
    Channels(Harmony),
}

impl Choice {
    /// An empty choice.
    pub fn new(options: ParseOptions) -> Self {
        let parts = match options.reasoning {
            Some((ReasoningDialect::Harmony, _)) => Pipeline::Channels(Harmony::new(options.calls.is_some())),
            reasoning => Pipeline::Marked {
                reasoning: reasoning.map(|(dialect, begun)| Reasoning::new(dialect, begun)),
                calls: options
                    .calls
                    .and_then(|(dialect, tools)| ToolCallParser::under(&options.constrained, dialect, tools)),
            },
        };
        let (one_call, min_tokens) = (options.one_call, options.min_tokens);
        let stop_regex = StopRegex::new(&options.stop_regex).ok();
        let only_calls = options.constrained == CallConstraint::Required;
        let stop = StopFilter::new(options.stop);
        Self { stop, stop_regex, parts, one_call, only_calls, ends_in_call: false, min_tokens }
    }

    /// Feeds the text of one token; returns the deltas that no later text can change.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let mut released = match self.min_tokens {
            0 => self.stop.push(text),
            _ => self.stop.pass(text),
        };
        if self.min_tokens == 0
            && self.stop.stopped().is_none()
            && self.stop_regex.as_mut().is_some_and(|stop| stop.push(text))
        {
            released += &self.stop.stop_here();
        }
        self.min_tokens = self.min_tokens.saturating_sub(1);
        if released.is_empty() { Vec::new() } else { self.read(&released) }
    }

    /// Ends the text and flushes what was held back.
    pub fn finish(&mut self) -> Vec<Delta> {
        let rest = self.stop.finish();
        let mut deltas = self.read(&rest);
        self.ends_in_call = self.is_in_call();
        let mut last = match &mut self.parts {
            Pipeline::Channels(harmony) => harmony.finish(),
            Pipeline::Marked { reasoning, calls } => {
                let part = reasoning.as_mut().and_then(Reasoning::finish);
                let mut last: Vec<Delta> = part.map(|part| read_part(part, calls)).unwrap_or_default();
                let events = calls.as_mut().map(ToolCallParser::finish).unwrap_or_default();
                last.extend(events.into_iter().map(Delta::from));
                last
            }
        };
        last.retain(|delta| !(self.only_calls && matches!(delta, Delta::Content(_))));
        deltas.extend(self.first_call_only(last));
        deltas
    }

    /// Whether a call has begun whose arguments are incomplete.
    fn is_in_call(&self) -> bool {
        let (is_open, complete) = match &self.parts {
            Pipeline::Channels(harmony) => (harmony.is_open(), harmony.count()),
            Pipeline::Marked { calls: Some(calls), .. } => (calls.is_open(), calls.count()),
            Pipeline::Marked { calls: None, .. } => (false, 0),
        };
        is_open && !(self.one_call && complete > 0)
    }

    /// Whether the answer ended inside a call, so that its arguments are incomplete.
    pub fn ends_in_call(&self) -> bool {
        self.ends_in_call
    }

    /// Bytes of the raw text released so far: not held back as a possible stop sequence.
    pub fn released(&self) -> usize {
        self.stop.emitted()
    }

    /// Byte offset in the raw text where a stop sequence cut it, and that sequence.
    pub fn stopped(&self) -> Option<(usize, &str)> {
        self.stop.stopped()
    }

    /// Whether a tool call was parsed.
    pub fn has_calls(&self) -> bool {
        match &self.parts {
            Pipeline::Channels(harmony) => harmony.count() > 0,
            Pipeline::Marked { calls, .. } => calls.as_ref().is_some_and(|calls| calls.count() > 0),
        }
    }

    fn read(&mut self, text: &str) -> Vec<Delta> {
        let deltas = match &mut self.parts {
            Pipeline::Channels(harmony) => harmony.push(text),
            Pipeline::Marked { reasoning: None, calls } => {
                read_part(ReasoningPart::Text(text.to_owned()), calls)
            }
            Pipeline::Marked { reasoning: Some(reasoning), calls } => {
                reasoning.push(text).into_iter().flat_map(|part| read_part(part, calls)).collect()
            }
        };
        self.first_call_only(deltas)
    }

    /// Drops calls after the first if only one is allowed.
    fn first_call_only(&self, mut deltas: Vec<Delta>) -> Vec<Delta> {
        let dropped = |delta: &Delta| matches!(delta, Delta::CallBegin { index, .. } | Delta::CallArguments { index, .. } if *index > 0);
        deltas.retain(|delta| !(self.one_call && dropped(delta)));
        deltas
    }
}

fn read_part(part: ReasoningPart, calls: &mut Option<ToolCallParser>) -> Vec<Delta> {
    match (part, calls) {
        (ReasoningPart::Reasoning(text), _) => vec![Delta::Reasoning(text)],
        (ReasoningPart::Text(text), None) if text.is_empty() => Vec::new(),
        (ReasoningPart::Text(text), None) => vec![Delta::Content(text)],
        (ReasoningPart::Text(text), Some(calls)) => calls.push(&text).into_iter().map(Delta::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reasoning, text and calls of an answer split at `cut`, concatenated.
    fn cut(options: &ParseOptions, text: &str, cut: usize) -> (String, String, Vec<(String, String)>, bool) {
        let mut choice = Choice::new(options.clone());
        let mut deltas = choice.push(&text[..cut]);
        deltas.extend(choice.push(&text[cut..]));
        deltas.extend(choice.finish());
        let (mut thought, mut answered, mut calls) = (String::new(), String::new(), Vec::new());
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => thought += &text,
                Delta::Content(text) => answered += &text,
                Delta::CallBegin { name, .. } => calls.push((name, String::new())),
                Delta::CallArguments { index, text } => calls[index].1 += &text,
            }
        }
        assert_eq!(choice.has_calls(), !calls.is_empty());
        (thought, answered, calls, choice.stopped().is_some())
    }

    #[test]
    fn stop_reasoning_and_calls_compose() {
        let text = "<think>hm</think>\nSure.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\
                    <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>STOPmore";
        let options = ParseOptions {
            stop: vec!["STOP".into()],
            stop_regex: Vec::new(),
            min_tokens: 0,
            continues: false,
            calls: Some((ToolDialect::Hermes, Arc::new([]))),
            reasoning: Some((ReasoningDialect::Think, false)),
            constrained: CallConstraint::None,
            one_call: true,
        };
        for at in 0..text.len() {
            let want = ("hm".into(), "Sure.".into(), vec![("f".to_owned(), "{}".to_owned())], true);
            assert_eq!(cut(&options, text, at), want, "cut at {at}");
        }
    }

    #[test]
    fn stop_sequences_are_ignored_before_min_tokens() {
        let options = ParseOptions { stop: vec!["ab".into()], min_tokens: 2, ..ParseOptions::default() };
        let mut choice = Choice::new(options);
        let answered: Vec<Vec<Delta>> = ["ab", "xa", "b", "ab."].map(|text| choice.push(text)).into();
        let text = |text: &str| vec![Delta::Content(text.into())];
        // A stop sequence across the `min_tokens` border does not count either.
        assert_eq!(answered, [text("ab"), text("xa"), text("b"), vec![]]);
        assert_eq!((choice.finish(), choice.stopped(), choice.released()), (vec![], Some((5, "ab")), 5));
    }

    #[test]
    fn a_regular_expression_stops_behind_its_match() {
        let options = ParseOptions {
            stop: vec!["12!".into()],
            stop_regex: vec![r"\d\d".into()],
            ..ParseOptions::default()
        };
        let mut choice = Choice::new(options);
        let texts: Vec<Vec<Delta>> = ["a 1", "2", "!"].map(|text| choice.push(text)).into();
        let text = |text: &str| vec![Delta::Content(text.into())];
        assert_eq!(texts, [text("a "), text("12"), vec![]]);
        assert_eq!(choice.stopped(), Some((4, "")));
        assert_eq!(choice.finish(), vec![]);
    }

    #[test]
    fn a_truncated_call_yields_no_text() {
        let marked = "Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let tagged = "Hm.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
        for (dialect, whole) in [(ToolDialect::Hermes, marked), (ToolDialect::Glm45, tagged)] {
            for constrained in [CallConstraint::FromMarker, CallConstraint::Required] {
                let whole = if constrained == CallConstraint::Required { &whole[4..] } else { whole };
                let marker = whole.find('>').unwrap() + 1;
                let calls = Some((dialect, Arc::from([])));
                let options = ParseOptions { calls, constrained, ..ParseOptions::default() };
                for end in marker..=whole.len() {
                    let mut choice = Choice::new(options.clone());
                    let mut deltas = choice.push(&whole[..end]);
                    deltas.extend(choice.finish());
                    let texts = deltas.iter().filter(|delta| matches!(delta, Delta::Content(_))).count();
                    let wanted = usize::from(options.constrained == CallConstraint::FromMarker);
                    assert_eq!(texts, wanted, "{:?}: {deltas:?}", &whole[..end]);
                    let arguments = deltas.iter().filter_map(|delta| match delta {
                        Delta::CallArguments { text, .. } => Some(text.as_str()),
                        _ => None,
                    });
                    let arguments = arguments.collect::<String>();
                    let is_cut =
                        choice.has_calls() && serde_json::from_str::<serde_json::Value>(&arguments).is_err();
                    assert_eq!(choice.ends_in_call(), is_cut, "{:?}", &whole[..end]);
                }
            }
        }
        // Without constraints it may be text.
        let calls = Some((ToolDialect::Hermes, Arc::from([])));
        let options = ParseOptions { calls, ..ParseOptions::default() };
        assert_eq!(cut(&options, "a <tool_call> is", 3).1, "a <tool_call> is");
    }

    #[test]
    fn calls_without_offered_tools_stay_reasoning() {
        let options =
            ParseOptions { reasoning: Some((ReasoningDialect::Harmony, false)), ..ParseOptions::default() };
        let text = "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant<|channel|>final<|message|>Hm.";
        let want = ("{}".into(), "Hm.".into(), vec![], false);
        assert_eq!(cut(&options, text, 9), want);
    }

    #[test]
    fn channels() {
        let calls = Some((ToolDialect::Harmony, Arc::from([])));
        let options = ParseOptions {
            calls,
            reasoning: Some((ReasoningDialect::Harmony, false)),
            ..ParseOptions::default()
        };
        let text = "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>commentary<|message|>Look.<|end|>\
                    <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"a\": \"<|\"}<|call|>";
        for at in 0..text.len() {
            let want =
                ("a < b".into(), "Look.".into(), vec![("f".to_owned(), "{\"a\": \"<|\"}".to_owned())], false);
            assert_eq!(cut(&options, text, at), want, "cut at {at}");
        }
        let text = "<|channel|>final<|message|>Hello.<|return|>";
        let plain = "No channel at all.";
        for at in 0..plain.len() {
            assert_eq!(cut(&options, text, at).1, "Hello.");
            assert_eq!(cut(&options, plain, at).1, plain);
        }
    }
}

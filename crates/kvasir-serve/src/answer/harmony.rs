//! Streaming parser of the harmony response format (gpt-oss): channels of reasoning, text and tool
//! calls.
//!
//! Message grammar: `<|start|>role<|channel|>name to=recipient<|message|>text<|end|>`. The
//! `analysis` channel is reasoning, `final` is content, and a message to `functions.NAME` is a tool
//! call. A message to any other recipient is treated as reasoning. The tests are in `choice.rs`.

use crate::{
    answer::events::Delta,
    grammar::call_scanner::{ENDS, MESSAGE, TO_FUNCTION},
    scan::hold_back::{take, take_to_mark},
};

/// Streaming harmony parser: `<|channel|>analysis<|message|>…<|end|>` is reasoning, `final` is
/// content, and a message to a function is a tool call.
#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    held: String,
    place: Place,
    count: usize,
    /// Whether messages to functions are tool calls; otherwise they are reasoning.
    calls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Place {
    /// The message header: role, recipient, channel.
    #[default]
    Header,
    Reasoning,
    Text,
    Call,
}

impl Harmony {
    /// A parser at the start of an answer; `calls` tells whether tool calls are parsed.
    pub(super) fn new(calls: bool) -> Self {
        Self { held: String::new(), place: Place::default(), count: 0, calls }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while match self.place {
            Place::Header => self.header(&mut deltas),
            _ => self.message(&mut deltas),
        } {}
        deltas
    }

    pub(super) fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.place {
            // A header without a message is dropped; text without any marker is the answer.
            Place::Header if rest.contains("<|") || rest.trim() == "assistant" => {}
            Place::Header => say(rest, Delta::Content, &mut deltas),
            _ => self.say(rest, &mut deltas),
        }
        if self.place == Place::Call {
            self.count += 1;
        }
        deltas
    }

    fn header(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let Some(at) = self.held.find(MESSAGE) else { return false };
        let header = take(&mut self.held, at);
        self.held.drain(..MESSAGE.len());
        let function = header.split(TO_FUNCTION).nth(1);
        let name = function
            .map(|rest| rest.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default());
        self.place = match name.filter(|name| self.calls && !name.is_empty()) {
            Some(name) => {
                deltas.push(Delta::CallBegin { index: self.count, name: name.to_owned() });
                Place::Call
            }
            None if header.contains("<|channel|>analysis") => Place::Reasoning,
            // A message to a recipient that was not offered stays reasoning.
            None if header.contains("to=") => Place::Reasoning,
            None => Place::Text,
        };
        true
    }

    fn message(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let (text, mark) = take_to_mark(&mut self.held, ENDS.iter().copied());
        self.say(text, deltas);
        let Some(mark) = mark else { return false };
        if mark != "<|channel|>" {
            self.held.drain(..mark.len());
        }
        if self.place == Place::Call {
            self.count += 1;
        }
        self.place = Place::Header;
        true
    }

    fn say(&self, text: String, deltas: &mut Vec<Delta>) {
        match self.place {
            Place::Reasoning => say(text, Delta::Reasoning, deltas),
            Place::Call => say(text, |text| Delta::CallArguments { index: self.count, text }, deltas),
            Place::Text | Place::Header => say(text, Delta::Content, deltas),
        }
    }
}

fn say(text: String, kind: impl FnOnce(String) -> Delta, deltas: &mut Vec<Delta>) {
    if !text.is_empty() {
        deltas.push(kind(text));
    }
}

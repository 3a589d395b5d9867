//! Streaming parser of the harmony response format (gpt-oss): channels of reasoning, text and tool
//! calls.
//!
//! Message grammar: `<|start|>role<|channel|>name to=recipient<|message|>text<|end|>`. The
//! `analysis` channel is reasoning, `final` is content, and a message to `functions.NAME` is a tool
//! call. A message to any other recipient is treated as reasoning. The tests are in `choice.rs`.

use crate::answer::events::Delta;
use crate::grammar::call_scanner::{ENDS, MESSAGE, TO_FUNCTION};
use crate::scan::hold_back::{take, take_to_marker};

/// Streaming harmony parser: `<|channel|>analysis<|message|>…<|end|>` is reasoning, `final` is
/// content, and a message to a function is a tool call.
#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    held: String,
    state: State,
    count: usize,
    /// Whether messages to functions are tool calls; otherwise they are reasoning.
    calls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum State {
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
        Self { held: String::new(), state: State::default(), count: 0, calls }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Call
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Delta> {
        self.held.push_str(text);
        let mut deltas = Vec::new();
        while match self.state {
            State::Header => self.header(&mut deltas),
            _ => self.message(&mut deltas),
        } {}
        deltas
    }

    pub(super) fn finish(&mut self) -> Vec<Delta> {
        let mut deltas = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.state {
            // A header without a message is dropped; text without any marker is the answer.
            State::Header if rest.contains("<|") || rest.trim() == "assistant" => {}
            State::Header => emit(rest, Delta::Content, &mut deltas),
            _ => self.emit(rest, &mut deltas),
        }
        if self.state == State::Call {
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
        self.state = match name.filter(|name| self.calls && !name.is_empty()) {
            Some(name) => {
                deltas.push(Delta::CallBegin { index: self.count, name: name.to_owned() });
                State::Call
            }
            None if header.contains("<|channel|>analysis") => State::Reasoning,
            // A message to a recipient that was not offered stays reasoning.
            None if header.contains("to=") => State::Reasoning,
            None => State::Text,
        };
        true
    }

    fn message(&mut self, deltas: &mut Vec<Delta>) -> bool {
        let (text, mark) = take_to_marker(&mut self.held, ENDS.iter().copied());
        self.emit(text, deltas);
        let Some(mark) = mark else { return false };
        if mark != "<|channel|>" {
            self.held.drain(..mark.len());
        }
        if self.state == State::Call {
            self.count += 1;
        }
        self.state = State::Header;
        true
    }

    fn emit(&self, text: String, deltas: &mut Vec<Delta>) {
        match self.state {
            State::Reasoning => emit(text, Delta::Reasoning, deltas),
            State::Call => emit(text, |text| Delta::CallArguments { index: self.count, text }, deltas),
            State::Text | State::Header => emit(text, Delta::Content, deltas),
        }
    }
}

fn emit(text: String, kind: impl FnOnce(String) -> Delta, deltas: &mut Vec<Delta>) {
    if !text.is_empty() {
        deltas.push(kind(text));
    }
}

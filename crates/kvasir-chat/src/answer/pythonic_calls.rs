//! Streaming parser of Python-style tool calls (Llama 3.2 and 4, Gemma): a leading list, or a
//! `tool_code` fence.
//!
//! States: `Start` (only white space so far), `Text`, `Fence`. A list is held back until it is
//! complete, and parsed as a whole: text that only resembles a call list stays text.

use crate::answer::events::{CallEvent, TextBetweenCalls};
use crate::dialect::markers::PYTHON_FENCE;
use crate::scan::hold_back::{possible_start, take};
use crate::scan::python_calls::calls;

/// Streaming parser of Python-style calls (`[get(city="Paris")]`): a list at the start of the
/// answer, or the body of a fence.
#[derive(Clone, Debug, Default)]
pub(crate) struct PythonicCalls {
    held: String,
    state: State,
    text: TextBetweenCalls,
    count: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Only white space so far.
    #[default]
    Start,
    Text,
    Fence,
}

const CLOSE: &str = "```";

impl PythonicCalls {
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<CallEvent> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while match self.state {
            State::Start => self.start(&mut events),
            State::Text => self.text(&mut events),
            State::Fence => self.fence(&mut events),
        } {}
        events
    }

    pub(super) fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        let held = std::mem::take(&mut self.held);
        let fence = if self.state == State::Fence { PYTHON_FENCE } else { "" };
        if fence.is_empty() || !self.take_calls(&held, &mut events) {
            self.text.push(&format!("{fence}{held}"), &mut events);
        }
        events
    }

    fn start(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let text = self.held.trim_start();
        if !text.starts_with('[') {
            if !text.is_empty() {
                self.state = State::Text;
            }
            return !text.is_empty();
        }
        let space = self.held.len() - text.len();
        match list_end(text) {
            Some(end) => {
                let list = text[..end].to_owned();
                self.state = State::Text;
                if self.take_calls(&list, events) {
                    self.held.drain(..space + end);
                }
                true
            }
            None if could_be_list(text) => false,
            None => {
                self.state = State::Text;
                true
            }
        }
    }

    fn text(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let at = self.held.find(PYTHON_FENCE);
        let sure = at.unwrap_or_else(|| self.held.len() - possible_start(&self.held, PYTHON_FENCE));
        let text = take(&mut self.held, sure);
        self.text.push(&text, events);
        if at.is_some() {
            self.held.drain(..PYTHON_FENCE.len());
            self.state = State::Fence;
        }
        at.is_some()
    }

    fn fence(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let Some(end) = self.held.find(CLOSE) else { return false };
        let body = take(&mut self.held, end);
        self.held.drain(..CLOSE.len());
        if !self.take_calls(&body, events) {
            self.text.push(&format!("{PYTHON_FENCE}{body}{CLOSE}"), events);
        }
        self.state = State::Text;
        true
    }

    fn take_calls(&mut self, text: &str, events: &mut Vec<CallEvent>) -> bool {
        let Some(calls) = calls(text) else { return false };
        for (name, arguments) in calls {
            events.push(CallEvent::Begin { index: self.count, name });
            events.push(CallEvent::Arguments { index: self.count, text: arguments.to_string() });
            self.count += 1;
        }
        self.text.call();
        true
    }
}

/// Whether this incomplete list may still become a list of calls: a name and a parenthesis.
fn could_be_list(text: &str) -> bool {
    let inner = text[1..].trim_start();
    let name = inner.trim_start_matches(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
    inner.is_empty() || name.len() < inner.len() && (name.is_empty() || name.starts_with('('))
}

/// Byte offset of the end of the list at the start of `text`.
fn list_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut escaped) = (0usize, None, false);
    for (i, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '(' | '{') => depth += 1,
            (None, ']' | ')' | '}') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return Some(i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

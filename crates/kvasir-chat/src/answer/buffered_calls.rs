//! Streaming parser of tool calls that are buffered until they are complete: Python-style lists
//! (Llama 3.2 and 4, Gemma 3, LFM2), and Gemma 4's calls.
//!
//! States: `Start` (only white space so far), `Text`, `Marked`. Text that only resembles a
//! call stays text.

use crate::answer::call_machine::CallMachine;
use crate::answer::events::{CallEvent, TextBetweenCalls};
use crate::dialect::markers::BufferedMarkers;
use crate::scan::hold_back::{possible_start, take};

/// Streaming parser of calls between two markers, and of a list at the start of the answer in
/// dialects that have such lists.
#[derive(Clone, Debug)]
pub(crate) struct BufferedCalls {
    markers: &'static BufferedMarkers,
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
    /// Between a start marker and its end marker.
    Marked,
}

impl CallMachine for BufferedCalls {
    fn held(&mut self) -> &mut String {
        &mut self.held
    }

    fn advance(&mut self, events: &mut Vec<CallEvent>, _is_end: bool) -> bool {
        match self.state {
            State::Start => self.start(events),
            State::Text => self.text(events),
            State::Marked => self.marked(events),
        }
    }

    fn end(&mut self, events: &mut Vec<CallEvent>) {
        let held = std::mem::take(&mut self.held);
        let open = if self.state == State::Marked { self.markers.open } else { "" };
        if open.is_empty() || !self.take_calls(&held, events) {
            self.text.push(&format!("{open}{held}"), events);
        }
    }
}

impl BufferedCalls {
    pub(super) fn new(markers: &'static BufferedMarkers) -> Self {
        let text = TextBetweenCalls::default();
        let state = if markers.leading_list { State::Start } else { State::Text };
        Self { markers, held: String::new(), state, text, count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
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
        let open = self.markers.open;
        let at = self.held.find(open);
        let sure = at.unwrap_or_else(|| self.held.len() - possible_start(&self.held, open));
        let text = take(&mut self.held, sure);
        self.text.push(&text, events);
        if at.is_some() {
            self.held.drain(..open.len());
            self.state = State::Marked;
        }
        at.is_some()
    }

    fn marked(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let BufferedMarkers { open, close, string_delimiters, .. } = *self.markers;
        let Some(end) = find_outside_strings(&self.held, close, string_delimiters) else { return false };
        let body = take(&mut self.held, end);
        self.held.drain(..close.len());
        if !self.take_calls(&body, events) {
            self.text.push(&format!("{open}{body}{close}"), events);
        }
        self.state = State::Text;
        true
    }

    fn take_calls(&mut self, text: &str, events: &mut Vec<CallEvent>) -> bool {
        let Some(calls) = (self.markers.parse)(text) else { return false };
        for (name, arguments) in calls {
            events.push(CallEvent::Begin { index: self.count, name });
            events.push(CallEvent::Arguments { index: self.count, text: arguments.to_string() });
            self.count += 1;
        }
        self.text.call();
        true
    }
}

/// Byte offset of the first `marker` outside of strings. A string ends with the delimiter that
/// starts it. A backslash escapes a character in strings whose delimiter is one character.
fn find_outside_strings(text: &str, marker: &str, delimiters: &[&str]) -> Option<usize> {
    let (mut at, mut inside) = (0, None::<&str>);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        match inside {
            Some(delimiter) if rest.starts_with(delimiter) => {
                at += delimiter.len();
                inside = None;
                continue;
            }
            Some(delimiter) if c == '\\' && delimiter.len() == 1 => {
                at += 1;
                at += text[at..].chars().next().map_or(0, char::len_utf8);
                continue;
            }
            Some(_) => {}
            None if rest.starts_with(marker) => return Some(at),
            None => {
                if let Some(delimiter) = delimiters.iter().find(|delimiter| rest.starts_with(**delimiter)) {
                    at += delimiter.len();
                    inside = Some(delimiter);
                    continue;
                }
            }
        }
        at += c.len_utf8();
    }
    None
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

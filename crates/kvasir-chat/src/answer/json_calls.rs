//! Streaming parser of tool calls with JSON arguments: Hermes, Llama 3, Mistral, DeepSeek, Phi-4.
//!
//! A table (`JsonMarkers`) describes each dialect. States:
//!
//! 1. `Outside`: text up to a start marker, or an unmarked object at the start of the answer.
//! 2. `Before`: a call may begin here; the consumed text is kept in case it is not a call.
//! 3. `Arguments`: the JSON object of arguments is streamed as it arrives.
//! 4. `RestOfObject`: the rest of the enclosing object, up to its brace or the end marker.
//! 5. `After`: the end marker, or the next call of a run.
//!
//! Invariants: a candidate that is not a call is emitted as text, markers included, unless calls are
//! constrained and the answer was cut within one. Once its name is emitted, a broken call is not
//! retracted. `calls/tests.rs` checks both under every split.

use crate::answer::call_machine::CallMachine;
use crate::answer::events::{CallEvent, TextBetweenCalls};
use crate::dialect::markers::{CallBody, JsonMarkers};
use crate::scan::hold_back::{take, take_to_marker};
use crate::scan::json_prefix::{Extent, Head, extent, head};
use crate::tool::Tool;
use serde_json::Value;
use std::sync::Arc;

/// Separators before the first call of a run (`BEFORE`) and between two calls (`BETWEEN`).
const BEFORE: &[char] = &['[', ' ', '\n', '\r', '\t'];
const BETWEEN: &[char] = &[']', ',', ';', ' ', '\n', '\r', '\t'];
const SPACE: &[char] = &[' ', '\n', '\r', '\t'];
/// Leftovers of a call without an end marker.
const TAIL: &[char] = &['}', ']', ',', ';', '`', ' ', '\n', '\r', '\t'];
/// Longest function name accepted, in bytes.
const LONGEST_NAME: usize = 128;

/// Streaming parser of tool calls with JSON arguments.
///
/// A candidate that is not a call is emitted as text, markers included.
#[derive(Clone, Debug)]
pub(crate) struct JsonCalls {
    marks: &'static JsonMarkers,
    tools: Arc<[Tool]>,
    held: String,
    state: State,
    text: TextBetweenCalls,
    count: usize,
    /// Only white space so far.
    fresh: bool,
    /// Calls were generated under constraints from their start: unmarked ones begin with their name,
    /// and what begins with a marker is a call.
    constrained: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Outside,
    /// Where a call may begin. Holds the text consumed since the marker, in case no call follows.
    Before(String),
    /// In arguments that begin at offset `start` of `held`, of which `sent` is emitted. `inside`:
    /// they are part of an object that begins at offset 0 of `held`.
    Arguments {
        start: usize,
        sent: Extent,
        inside: bool,
    },
    /// After the arguments, which end at offset `from` of `held`.
    RestOfObject {
        from: usize,
        inside: bool,
    },
    /// After a call; `object` tells whether it was a JSON object.
    After {
        object: bool,
    },
}

impl CallMachine for JsonCalls {
    fn held(&mut self) -> &mut String {
        &mut self.held
    }

    fn advance(&mut self, events: &mut Vec<CallEvent>, is_end: bool) -> bool {
        match self.state.clone() {
            State::Outside => self.outside(events),
            State::Before(taken) => self.before(taken, events, is_end),
            State::Arguments { start, sent, inside } => self.arguments(start, sent, inside, events),
            State::RestOfObject { from, inside } => self.rest_of_object(from, inside),
            State::After { object } => self.after(object, events),
        }
    }

    fn end(&mut self, events: &mut Vec<CallEvent>) {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Outside => self.text.push(&held, events),
            // The beginning of a call, cut before its name.
            State::Before(taken) if self.constrained && !taken.trim().is_empty() => {}
            State::Before(taken) => self.text.push(&(taken + &held), events),
            // Once its name is emitted, a broken call cannot be retracted.
            State::Arguments { .. } => self.end_call(),
            State::RestOfObject { from, .. } => self.end_open_call(&held[from..], events),
            State::After { .. } => self.end_open_call(&held, events),
        }
    }
}

impl JsonCalls {
    /// A parser for `marks`. An unmarked object is a call only if it names one of `tools`.
    pub(super) fn new(marks: &'static JsonMarkers, tools: Arc<[Tool]>, constrained: bool) -> Self {
        Self {
            marks,
            tools,
            held: String::new(),
            state: State::Outside,
            text: TextBetweenCalls::default(),
            count: 0,
            fresh: true,
            constrained,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Arguments { .. })
    }

    /// Ends a call that has all its arguments but no end marker; the text after it is text.
    fn end_open_call(&mut self, after: &str, events: &mut Vec<CallEvent>) {
        self.end_call();
        let text = after.trim_start_matches(TAIL);
        if !self.marks.close.is_some_and(|close| close.starts_with(text)) {
            self.text.push(text, events);
        }
    }

    fn outside(&mut self, events: &mut Vec<CallEvent>) -> bool {
        if self.fresh && self.marks.unmarked {
            let text = self.held.trim_start();
            if text.starts_with('{') {
                let before = self.held.len() - text.len();
                let space = take(&mut self.held, before);
                self.fresh = false;
                self.state = State::Before(space);
                return true;
            }
            if text.is_empty() {
                return false;
            }
        }
        self.fresh &= self.held.trim_start().is_empty();
        let marks = self.marks.open.iter().chain(self.marks.decoration).copied();
        let (text, mark) = take_to_marker(&mut self.held, marks);
        self.text.push(&text, events);
        let Some(mark) = mark else { return false };
        self.held.drain(..mark.len());
        if self.marks.open.contains(&mark) {
            self.state = State::Before(mark.to_owned());
        }
        true
    }

    fn before(&mut self, mut taken: String, events: &mut Vec<CallEvent>, is_end: bool) -> bool {
        let is_list = self.marks.body == CallBody::Object || self.held.trim_start().starts_with(['[', '{']);
        let space = if is_list { BEFORE } else { SPACE };
        let n = self.held.len() - self.held.trim_start_matches(space).len();
        taken += &take(&mut self.held, n);
        self.state = State::Before(taken);
        if self.held.is_empty() {
            return false;
        }
        if let Some(close) = self.marks.close {
            if self.held.starts_with(close) {
                return self.emit_as_text(close.len(), events);
            }
            if close.starts_with(self.held.as_str()) && !is_end {
                return false;
            }
        }
        match &self.marks.body {
            _ if self.held.starts_with('{') => self.object(events, is_end),
            CallBody::Object => self.not_a_call(events),
            CallBody::Named { before, between } => self.named(before, between, events, is_end),
        }
    }

    /// Parses a JSON call object.
    fn object(&mut self, events: &mut Vec<CallEvent>, is_end: bool) -> bool {
        let unmarked = matches!(&self.state, State::Before(taken) if taken.trim().is_empty());
        let bare = self.marks.unmarked && unmarked;
        let is_offered = |name: &str| !bare || self.tools.iter().any(|tool| tool.name == name);
        match head(&self.held) {
            Head::Call(name, start) if is_offered(&name) => {
                events.push(CallEvent::Begin { index: self.count, name });
                self.state = State::Arguments { start, sent: Extent::default(), inside: true };
                return true;
            }
            Head::Incomplete if !is_end => return false,
            _ if bare && self.constrained => return self.emit_as_text(0, events),
            Head::Call(..) | Head::Incomplete | Head::Other => {}
        }
        // Keys in another order, or no arguments: only the complete object decides.
        let (len, whole) = extent(&self.held);
        if !whole {
            return false;
        }
        let call = serde_json::from_str(&self.held[..len]).ok().and_then(|object| whole_call(object, bare));
        match call.filter(|(name, _)| is_offered(name)) {
            Some((name, text)) => {
                events.push(CallEvent::Begin { index: self.count, name });
                events.push(CallEvent::Arguments { index: self.count, text });
                self.held.drain(..len);
                self.state = State::After { object: true };
                true
            }
            None => self.emit_as_text(len, events),
        }
    }

    fn named(&mut self, before: &str, between: &[&str], events: &mut Vec<CallEvent>, is_end: bool) -> bool {
        if !before.is_empty() && before.starts_with(self.held.as_str()) && !is_end {
            return false;
        }
        let skip = if self.held.starts_with(before) { before.len() } else { 0 };
        let rest = &self.held[skip..];
        let ends = between.iter().copied().chain(["{"]).filter_map(|mark| Some((rest.find(mark)?, mark)));
        let Some((at, mark)) = ends.min_by_key(|(at, _)| *at) else {
            return if rest.len() > LONGEST_NAME { self.not_a_call(events) } else { false };
        };
        if at > LONGEST_NAME {
            return self.not_a_call(events);
        }
        let name = rest[..at].trim().to_owned();
        let start = match mark {
            "{" => skip + at,
            _ => skip + at + mark.len(),
        };
        // White space, a code fence or decorative markers may precede the arguments.
        let gap = self.held[start..].find('{');
        match gap {
            _ if name.is_empty() => self.not_a_call(events),
            None if is_end => self.not_a_call(events),
            None if self.held.len() - start > LONGEST_NAME => self.not_a_call(events),
            None => false,
            Some(gap) if gap > LONGEST_NAME => self.not_a_call(events),
            Some(gap) => {
                events.push(CallEvent::Begin { index: self.count, name });
                self.state = State::Arguments { start: start + gap, sent: Extent::default(), inside: false };
                true
            }
        }
    }

    fn arguments(
        &mut self,
        start: usize,
        mut sent: Extent,
        inside: bool,
        events: &mut Vec<CallEvent>,
    ) -> bool {
        let from = start + sent.len;
        let whole = sent.read(&self.held[start..]);
        let end = start + sent.len;
        if let Some(text) = self.held.get(from..end).filter(|text| !text.is_empty()) {
            events.push(CallEvent::Arguments { index: self.count, text: text.to_owned() });
        }
        self.state = if whole {
            State::RestOfObject { from: end, inside }
        } else {
            State::Arguments { start, sent, inside }
        };
        whole
    }

    /// Consumes the rest of the enclosing object. The end marker also ends it, in case the model
    /// forgot the brace.
    fn rest_of_object(&mut self, from: usize, inside: bool) -> bool {
        let (len, whole) = if inside { extent(&self.held) } else { (from, true) };
        let close = self.marks.close.filter(|_| inside).and_then(|close| self.held[from..].find(close));
        let Some(end) = close.map(|at| from + at).into_iter().chain(whole.then_some(len)).min() else {
            return false;
        };
        self.held.drain(..end);
        self.state = State::After { object: inside };
        true
    }

    /// After a call: the end marker, or the next call of a run.
    fn after(&mut self, object: bool, events: &mut Vec<CallEvent>) -> bool {
        let next = self.held.trim_start_matches(if object { BETWEEN } else { SPACE });
        if object && next.starts_with('{') {
            self.held = next.to_owned();
            self.end_call();
            self.state = State::Before(String::new());
            return true;
        }
        match self.marks.close {
            Some(close) => {
                let end = self.held.find(close);
                let next = self.marks.open.iter().filter_map(|open| self.held.find(open)).min();
                match (end, next) {
                    (end, Some(next)) if end.is_none_or(|end| next < end) => {
                        let between = take(&mut self.held, next);
                        self.end_open_call(&between, events);
                        return true;
                    }
                    (Some(end), _) => drop(self.held.drain(..end + close.len())),
                    (None, _) => return false,
                }
            }
            None if next.is_empty() => return false,
            None => self.held = next.to_owned(),
        }
        self.end_call();
        true
    }

    fn end_call(&mut self) {
        self.count += 1;
        self.text.call();
        self.state = State::Outside;
    }

    /// Emits the candidate consumed so far as text.
    fn emit_as_text(&mut self, len: usize, events: &mut Vec<CallEvent>) -> bool {
        let State::Before(taken) = std::mem::replace(&mut self.state, State::Outside) else { return false };
        let text = taken + &take(&mut self.held, len);
        self.text.push(&text, events);
        true
    }

    /// Emits text in the position of a call: up to the end marker, or all that follows.
    fn not_a_call(&mut self, events: &mut Vec<CallEvent>) -> bool {
        match self.marks.close {
            None => self.emit_as_text(0, events),
            Some(close) => match self.held.find(close) {
                Some(at) => self.emit_as_text(at + close.len(), events),
                None => false,
            },
        }
    }
}

/// Name and arguments of a complete JSON object, if it is a call. A `bare` (unmarked) one must have
/// arguments.
fn whole_call(object: Value, bare: bool) -> Option<(String, String)> {
    let function = object.get("function").filter(|inner| inner.is_object()).unwrap_or(&object);
    let name = function.get("name")?.as_str()?.to_owned();
    let arguments = function.get("arguments").or_else(|| function.get("parameters"));
    let text = match arguments {
        None if bare => return None,
        None | Some(Value::Null) => "{}".into(),
        // Arguments as a JSON string, as on the OpenAI wire.
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
    };
    Some((name, text))
}

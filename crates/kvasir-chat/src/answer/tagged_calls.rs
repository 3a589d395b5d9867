//! Streaming parser of XML-like tool calls (GLM-4.5, Qwen3-Coder, DeepSeek V3.2): one tag per
//! argument, converted to JSON.
//!
//! A table (`TagMarkers`) describes each dialect. States: `Outside` → `Name` → `Arguments`. An
//! argument is emitted once its value is complete. Missing end tags are tolerated: the next
//! argument or the call's end closes a value. The tool's JSON schema decides whether an unquoted
//! value is a string. `calls/tests.rs` checks every dialect under every split.

use crate::answer::call_machine::CallMachine;
use crate::answer::events::{CallEvent, TextBetweenCalls};
use crate::dialect::markers::TagMarkers;
use crate::dialect::schema_types::admits;
use crate::scan::hold_back::{take, take_to_marker};
use crate::tool::Tool;
use serde_json::Value;
use std::sync::Arc;

/// Streaming parser of tagged calls; assembles their arguments into JSON.
#[derive(Clone, Debug)]
pub(crate) struct TaggedCalls {
    tags: &'static TagMarkers,
    tools: Arc<[Tool]>,
    held: String,
    state: State,
    text: TextBetweenCalls,
    count: usize,
    /// Calls were generated under constraints from their start: what begins with a marker is a call.
    constrained: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Outside,
    Name,
    Arguments { name: String, first: bool },
}

impl CallMachine for TaggedCalls {
    fn held(&mut self) -> &mut String {
        &mut self.held
    }

    fn advance(&mut self, events: &mut Vec<CallEvent>, _is_end: bool) -> bool {
        match self.state.clone() {
            State::Outside => self.outside(events),
            State::Name => self.name(events),
            State::Arguments { name, first } => self.argument(&name, first, events),
        }
    }

    fn end(&mut self, events: &mut Vec<CallEvent>) {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Outside => self.text.push(&held, events),
            // The beginning of a call, cut within its name.
            State::Name if self.constrained => {}
            State::Name => self.text.push(&format!("{}{held}", self.tags.open), events),
            // Once its name is emitted, a broken call cannot be retracted. A truncated one stays
            // visibly incomplete JSON.
            State::Arguments { first, .. } => {
                let truncated_argument = self.truncated_argument(&held, first);
                events
                    .extend(truncated_argument.map(|text| CallEvent::Arguments { index: self.count, text }));
                self.count += 1;
            }
        }
    }
}

impl TaggedCalls {
    pub(super) fn new(tags: &'static TagMarkers, tools: Arc<[Tool]>, constrained: bool) -> Self {
        Self {
            tags,
            tools,
            held: String::new(),
            state: State::Outside,
            text: TextBetweenCalls::default(),
            count: 0,
            constrained,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Arguments { .. })
    }

    fn outside(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let marks = self.tags.decoration.iter().copied().chain([self.tags.open]);
        let (text, mark) = take_to_marker(&mut self.held, marks);
        self.text.push(&text, events);
        let Some(mark) = mark else { return false };
        self.held.drain(..mark.len());
        if mark == self.tags.open {
            self.state = State::Name;
        }
        true
    }

    fn name(&mut self, events: &mut Vec<CallEvent>) -> bool {
        // A line break may precede the name.
        let space = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[space..];
        let ends = self.tags.name_end.iter().filter_map(|mark| Some((rest.find(mark)?, *mark)));
        let Some((at, mark)) = ends.min_by_key(|(at, _)| *at) else { return false };
        let name = rest[..at].trim().to_owned();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "{}<>\"".contains(c)) {
            let text = format!("{}{}", self.tags.open, take(&mut self.held, space + at));
            self.text.push(&text, events);
            self.state = State::Outside;
            return true;
        }
        self.held.drain(..space + at + if mark.starts_with('<') { 0 } else { mark.len() });
        events.push(CallEvent::Begin { index: self.count, name: name.clone() });
        events.push(CallEvent::Arguments { index: self.count, text: "{".into() });
        self.state = State::Arguments { name, first: true };
        true
    }

    fn argument(&mut self, name: &str, first: bool, events: &mut Vec<CallEvent>) -> bool {
        match (self.held.find(self.tags.key), self.call_end(&self.held)) {
            (Some(key), end) if end.is_none_or(|(end, _)| key < end) => {
                let Some((key, value, len)) = self.pair(key) else { return false };
                let text = format!("{}{}: {value}", separator(first), Value::from(key));
                events.push(CallEvent::Arguments { index: self.count, text });
                self.held.drain(..len);
                self.state = State::Arguments { name: name.to_owned(), first: false };
                true
            }
            (_, Some((_, after))) => {
                events.push(CallEvent::Arguments { index: self.count, text: "}".into() });
                self.held.drain(..after);
                self.count += 1;
                self.text.call();
                self.state = State::Outside;
                true
            }
            _ => false,
        }
    }

    /// Where a call ends, and where the following text begins: at its end tag or, if the model
    /// forgot that, at the next marker that cannot be part of the call.
    fn call_end(&self, text: &str) -> Option<(usize, usize)> {
        let tags = self.tags;
        let others = tags.decoration.iter().filter(|mark| mark.starts_with("</")).chain([&tags.open]);
        let others = others.filter_map(|mark| text.find(mark).map(|at| (at, at)));
        let own = text.find(tags.close).map(|at| (at, at + tags.close.len()));
        own.into_iter().chain(others).min()
    }

    /// Key, attributes and value offset of the argument whose key tag begins at `at`.
    fn head<'h>(&self, held: &'h str, at: usize) -> Option<(&'h str, &'h str, usize)> {
        let tags = self.tags;
        let key_from = at + tags.key.len();
        let key_to = key_from + held[key_from..].find(tags.key_end)?;
        let after = key_to + tags.key_end.len();
        let rest = held[after..].trim_start();
        let key = held[key_from..key_to].trim();
        if tags.value.starts_with('<') && !rest.starts_with(tags.value) {
            // Some models omit the value's start tag.
            return (!tags.value.starts_with(rest)).then(|| (key, "", held.len() - rest.len()));
        }
        let value_at = after + held[after..].find(tags.value)?;
        Some((key, &held[after..value_at], value_at + tags.value.len()))
    }

    /// Key, JSON value and end offset of the argument whose key tag begins at `at`; `None` while
    /// incomplete.
    fn pair(&self, at: usize) -> Option<(String, String, usize)> {
        let (tags, held) = (self.tags, &self.held);
        let (key, attributes, from) = self.head(held, at)?;
        let value = &held[from..];
        let own = value.find(tags.value_end).map(|at| (at, at + tags.value_end.len()));
        // If the model forgot the end tag, the next argument or the call's end closes the value.
        let next = value.find(tags.key).map(|at| (at, at));
        let end = self.call_end(value).map(|(at, _)| (at, at));
        let (to, after) = own.into_iter().chain(next).chain(end).min()?;
        Some((key.to_owned(), self.json(key, attributes, &value[..to]), from + after))
    }

    /// The visible part of a truncated argument.
    fn truncated_argument(&self, held: &str, first: bool) -> Option<String> {
        let (key, attributes, from) = self.head(held, held.find(self.tags.key)?)?;
        let value = self.json(key, attributes, &held[from..]);
        Some(format!(
            "{}{}: {}",
            separator(first),
            Value::from(key),
            value.strip_suffix('"').unwrap_or(&value)
        ))
    }

    /// Converts a value to JSON: by its tag's attributes, else by the tool's schema, else by
    /// whatever it parses as.
    fn json(&self, key: &str, attributes: &str, text: &str) -> String {
        let text = if self.tags.padded { unpadded(text) } else { text };
        let value = serde_json::from_str::<Value>(text.trim()).ok().filter(|value| match attributes {
            a if a.contains("string=\"true\"") => false,
            a if a.contains("string=\"false\"") => true,
            _ => self.is_not_string(key, value),
        });
        value.map_or_else(|| Value::from(text).to_string(), |_| text.trim().to_owned())
    }

    /// Whether a text that parses as `value` is that value rather than a string, by the running
    /// call's schema.
    fn is_not_string(&self, key: &str, value: &Value) -> bool {
        let tool = |name: &str| self.tools.iter().find(|tool| tool.name == name)?.parameters.as_ref();
        let parameters = match &self.state {
            State::Arguments { name, .. } => tool(name),
            _ => None,
        };
        let schema = parameters.and_then(|root| Some((root, root.get("properties")?.get(key)?)));
        let Some((root, schema)) =
            schema.filter(|(_, schema)| KINDS.iter().any(|key| schema.get(key).is_some()))
        else {
            return true;
        };
        let takes = |value: &Value| admits(root, schema, value);
        !takes(&Value::from("")) || !value.is_string() && takes(value)
    }
}

/// Schema keywords that restrict a value's type.
const KINDS: &[&str] = &["type", "enum", "const", "anyOf", "oneOf", "$ref"];

fn separator(first: bool) -> &'static str {
    if first { "" } else { ", " }
}

/// Strips one line break on each side.
fn unpadded(text: &str) -> &str {
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text)
}

use super::{
    CallEvent,
    dialect::is_text,
    hold::{take, take_to_mark},
    said::Said,
};
use crate::request::Tool;
use serde_json::Value;
use std::sync::Arc;

/// How calls are marked whose arguments stand in tags of their own.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Begins a call; its name follows.
    pub(super) open: &'static str,
    /// Ends the name; those that begin with `<` are left for what follows.
    pub(super) name_end: &'static [&'static str],
    /// Begins an argument; its key follows.
    pub(super) key: &'static str,
    /// Ends the key.
    pub(super) key_end: &'static str,
    /// Begins the value.
    pub(super) value: &'static str,
    /// Ends the value.
    pub(super) value_end: &'static str,
    /// Ends the call.
    pub(super) close: &'static str,
    /// Marks beside calls that say nothing.
    pub(super) beside: &'static [&'static str],
}

/// Reads calls whose arguments stand in tags out of an answer, and puts their JSON together.
#[derive(Clone, Debug)]
pub(super) struct TaggedCalls {
    tags: &'static Tags,
    tools: Arc<[Tool]>,
    held: String,
    place: Place,
    said: Said,
    count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Outside,
    Name,
    Arguments { name: String, first: bool },
}

impl TaggedCalls {
    pub(super) fn new(tags: &'static Tags, tools: Arc<[Tool]>) -> Self {
        Self { tags, tools, held: String::new(), place: Place::Outside, said: Said::default(), count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<CallEvent> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while match self.place.clone() {
            Place::Outside => self.outside(&mut events),
            Place::Name => self.name(&mut events),
            Place::Arguments { name, first } => self.argument(&name, first, &mut events),
        } {}
        events
    }

    pub(super) fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.place, Place::Outside) {
            Place::Outside => self.said.say(&held, &mut events),
            Place::Name => self.said.say(&format!("{}{held}", self.tags.open), &mut events),
            // Once its name is out, a broken call cannot be taken back.
            Place::Arguments { .. } => self.count += 1,
        }
        events
    }

    fn outside(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let marks = self.tags.beside.iter().copied().chain([self.tags.open]);
        let (text, mark) = take_to_mark(&mut self.held, marks);
        self.said.say(&text, events);
        let Some(mark) = mark else { return false };
        self.held.drain(..mark.len());
        if mark == self.tags.open {
            self.place = Place::Name;
        }
        true
    }

    fn name(&mut self, events: &mut Vec<CallEvent>) -> bool {
        // A line end may stand before the name.
        let space = self.held.len() - self.held.trim_start().len();
        let rest = &self.held[space..];
        let ends = self.tags.name_end.iter().filter_map(|mark| Some((rest.find(mark)?, *mark)));
        let Some((at, mark)) = ends.min_by_key(|(at, _)| *at) else { return false };
        let name = rest[..at].trim().to_owned();
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "{}<>\"".contains(c)) {
            let text = format!("{}{}", self.tags.open, take(&mut self.held, space + at));
            self.said.say(&text, events);
            self.place = Place::Outside;
            return true;
        }
        self.held.drain(..space + at + if mark.starts_with('<') { 0 } else { mark.len() });
        events.push(CallEvent::Begin { index: self.count, name: name.clone() });
        events.push(CallEvent::Arguments { index: self.count, text: "{".into() });
        self.place = Place::Arguments { name, first: true };
        true
    }

    fn argument(&mut self, name: &str, first: bool, events: &mut Vec<CallEvent>) -> bool {
        let tags = self.tags;
        let (key, close) = (self.held.find(tags.key), self.held.find(tags.close));
        match (key, close) {
            (Some(key), close) if close.is_none_or(|close| key < close) => {
                let Some((key, value, len)) = self.pair(key) else { return false };
                let separator = if first { "" } else { ", " };
                let text = format!("{separator}{}: {value}", Value::from(key));
                events.push(CallEvent::Arguments { index: self.count, text });
                self.held.drain(..len);
                self.place = Place::Arguments { name: name.to_owned(), first: false };
                true
            }
            (_, Some(close)) => {
                events.push(CallEvent::Arguments { index: self.count, text: "}".into() });
                self.held.drain(..close + tags.close.len());
                self.count += 1;
                self.said.call();
                self.place = Place::Outside;
                true
            }
            _ => false,
        }
    }

    /// The argument whose key's tag begins at `at`, its value as JSON, and where it ends in what is held.
    fn pair(&self, at: usize) -> Option<(String, String, usize)> {
        let (tags, held) = (self.tags, &self.held);
        let key_from = at + tags.key.len();
        let key_to = key_from + held[key_from..].find(tags.key_end)?;
        let after = key_to + tags.key_end.len();
        let value_at = after + held[after..].find(tags.value)?;
        let value_from = value_at + tags.value.len();
        let value_to = value_from + held[value_from..].find(tags.value_end)?;
        let key = held[key_from..key_to].trim();
        let value = self.json(key, &held[after..value_at], &held[value_from..value_to]);
        Some((key.to_owned(), value, value_to + tags.value_end.len()))
    }

    /// A value as JSON: as its tag says, else as the tool's schema does, else whatever it can be read as.
    fn json(&self, key: &str, attributes: &str, text: &str) -> String {
        let is_text = match attributes {
            a if a.contains("string=\"true\"") => true,
            a if a.contains("string=\"false\"") => false,
            _ => self.is_text(key),
        };
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let value = (!is_text).then(|| serde_json::from_str::<Value>(text.trim()).ok()).flatten();
        value.map_or_else(|| Value::from(text).to_string(), |_| text.trim().to_owned())
    }

    /// Whether the running call's schema has this argument as a text.
    fn is_text(&self, key: &str) -> bool {
        let Place::Arguments { name, .. } = &self.place else { return false };
        let tool = self.tools.iter().find(|tool| tool.name == *name);
        let schema = tool.and_then(|tool| tool.parameters.as_ref()?.get("properties")?.get(key));
        schema.is_some_and(is_text)
    }
}

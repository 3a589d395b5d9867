use super::{
    Delta,
    hold::{take, take_to_mark},
};

/// Reads an answer in channels: `<|channel|>analysis<|message|>…<|end|>` is reasoning, `final` is text, and a message to a
/// function is a call.
#[derive(Clone, Debug)]
pub(super) struct Harmony {
    held: String,
    place: Place,
    count: usize,
    /// Whether it may call functions.
    calls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the message: who speaks, to whom, in which channel.
    #[default]
    Header,
    Reasoning,
    Text,
    Call,
}

const MESSAGE: &str = "<|message|>";
/// Marks that end a message.
pub(super) const ENDS: &[&str] = &["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

impl Harmony {
    /// Control tokens that must stay in the text.
    pub(super) const MARKS: &[&str] =
        &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"];

    /// An empty answer, which may hold calls or not.
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
            // A header without a message says nothing; text without any mark is the answer.
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
        let function = header.split("to=functions.").nth(1);
        let name = function
            .map(|rest| rest.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default());
        self.place = match name.filter(|name| self.calls && !name.is_empty()) {
            Some(name) => {
                deltas.push(Delta::CallBegin { index: self.count, name: name.to_owned() });
                Place::Call
            }
            None if header.contains("<|channel|>analysis") => Place::Reasoning,
            // What is said to a tool that nobody offered stays the model's own.
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

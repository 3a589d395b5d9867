//! Streaming reasoning parser: separates the reasoning block (`<think>…</think>`) from visible
//! text.
//!
//! States: `Start` → `Opened` → `Thinking` → `Between` → `Answering`. A reasoning block counts
//! only at the start of the answer, or where the prompt has opened it. Line breaks next to the
//! markers belong to neither part. The test here checks every split of the text.

use crate::dialect::reasoning::ReasoningDialect;
use crate::scan::hold_back::{possible_start, take};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReasoningPart {
    /// Reasoning text.
    Reasoning(String),
    /// Visible text.
    Text(String),
}

/// Streaming parser of one reasoning block between two markers.
#[derive(Clone, Debug)]
pub struct Reasoning {
    open: &'static str,
    close: &'static str,
    held: String,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only white space so far.
    Start,
    /// Skips line breaks after the start marker.
    Opened,
    Thinking,
    /// Skips line breaks between reasoning and text.
    Between,
    Answering,
}

impl Reasoning {
    /// A parser for `dialect`; `begun` is true when the prompt ends inside the reasoning block.
    pub fn new(dialect: ReasoningDialect, begun: bool) -> Self {
        let (open, close) = dialect.marks();
        Self { open, close, held: String::new(), state: if begun { State::Opened } else { State::Start } }
    }

    /// Feeds more text; returns the pieces that no later text can change.
    pub fn push(&mut self, text: &str) -> Vec<ReasoningPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            let before = (self.state, self.held.len());
            match self.state {
                State::Start => self.start(),
                State::Thinking => self.think(&mut parts),
                State::Opened => self.skip_line_ends(State::Thinking),
                State::Between => self.skip_line_ends(State::Answering),
                State::Answering if !self.held.is_empty() => {
                    parts.push(ReasoningPart::Text(std::mem::take(&mut self.held)))
                }
                State::Answering => {}
            }
            if before == (self.state, self.held.len()) {
                return parts;
            }
        }
    }

    fn start(&mut self) {
        let answer = self.held.trim_start();
        if let Some(rest) = answer.strip_prefix(self.open) {
            self.held = rest.to_owned();
            self.state = State::Opened;
        } else if !self.open.starts_with(answer) {
            self.state = State::Answering;
        }
    }

    fn skip_line_ends(&mut self, next: State) {
        self.held.drain(..self.held.len() - self.held.trim_start_matches('\n').len());
        if !self.held.is_empty() {
            self.state = next;
        }
    }

    fn think(&mut self, parts: &mut Vec<ReasoningPart>) {
        let end = self.held.find(self.close);
        let sure = end.unwrap_or_else(|| {
            // Line breaks just before the end marker belong to it, so they are held back.
            let hold = self.held.len() - possible_start(&self.held, self.close);
            self.held[..hold].trim_end_matches('\n').len()
        });
        let thought = take(&mut self.held, sure);
        let thought = if end.is_some() { thought.trim_end_matches('\n').to_owned() } else { thought };
        if !thought.is_empty() {
            parts.push(ReasoningPart::Reasoning(thought));
        }
        if end.is_some() {
            self.held.drain(..self.close.len());
            self.state = State::Between;
        }
    }

    /// Ends the text and flushes what was held back.
    pub fn finish(&mut self) -> Option<ReasoningPart> {
        let held = std::mem::take(&mut self.held);
        match self.state {
            _ if held.is_empty() => None,
            State::Thinking => Some(ReasoningPart::Reasoning(held)),
            _ => Some(ReasoningPart::Text(held)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_pieces(text: &str, cuts: &[usize]) -> (String, String) {
        let mut reasoning = Reasoning::new(ReasoningDialect::Think, false);
        let (mut thought, mut answer, mut from) = (String::new(), String::new(), 0);
        let mut add = |part: ReasoningPart| match part {
            ReasoningPart::Reasoning(text) => thought += &text,
            ReasoningPart::Text(text) => answer += &text,
        };
        for &to in cuts.iter().chain([&text.len()]) {
            reasoning.push(&text[from..to]).into_iter().for_each(&mut add);
            from = to;
        }
        reasoning.finish().into_iter().for_each(&mut add);
        (thought, answer)
    }

    #[test]
    fn every_split_gives_the_same() {
        for (text, thought, answer) in [
            ("<think>\na < b\n\nso\n</think>\n\nYes.\n", "a < b\n\nso", "Yes.\n"),
            ("plain <think> text", "", "plain <think> text"),
            ("<thin air", "", "<thin air"),
            ("<think>no end </th", "no end </th", ""),
            (" hi", "", " hi"),
        ] {
            for a in 0..=text.len() {
                for b in a..=text.len() {
                    assert_eq!(
                        in_pieces(text, &[a, b]),
                        (thought.into(), answer.into()),
                        "{text:?} cut at {a}, {b}"
                    );
                }
            }
        }
    }
}

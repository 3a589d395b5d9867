//! Tells tool calls from formatted text by the first bytes of an answer, for requests with tools and
//! a response format.
//!
//! An answer consists of calls if its visible text begins with a *call head*: the literal text of an
//! offered tool's call up to its arguments, such as `<tool_call>\n{"name": "f", "arguments": `.
//! Any other answer is in the format, whatever it contains further on.
//!
//! States: `Start` (a reasoning block may open) → `Reasoning` → `Between` (line breaks behind it) →
//! `Visible` → `Decided`.
//!
//! Invariants: the state is a function of the bytes alone, and a decision is final. The constraint
//! (`format_or_calls`) and the parser (`answer/calls_or_format`) use the same classifier, so both
//! find the same calls.

use std::sync::Arc;

/// What an answer consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// Tool calls.
    Calls,
    /// Text in the response format.
    Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A reasoning block may open the answer.
    Start,
    Reasoning,
    /// Only line breaks since the reasoning block.
    Between,
    /// In text that may still become a call head.
    Visible,
    Decided(AnswerKind),
}

/// Streaming classifier of one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerClassifier {
    state: State,
    /// The last bytes, as far as they are undecided: a possible prefix of a marker or head.
    tail: Vec<u8>,
    /// Start and end markers of the reasoning block.
    reasoning: Option<(&'static str, &'static str)>,
    heads: Arc<[String]>,
    /// Length of the longest common prefix of the heads.
    common: usize,
}

impl AnswerClassifier {
    /// A classifier at the start of an answer. `reasoning` holds the markers of the reasoning block;
    /// `is_reasoning` is true when the prompt ends inside it.
    pub(crate) fn new(
        heads: Arc<[String]>,
        reasoning: Option<(&'static str, &'static str)>,
        is_reasoning: bool,
    ) -> Self {
        let state = match reasoning {
            Some(_) if is_reasoning => State::Reasoning,
            Some(_) => State::Start,
            None => State::Visible,
        };
        let common = common_prefix(&heads);
        Self { state, tail: Vec::new(), reasoning, heads, common }
    }

    /// The kind of the answer, once it is decided.
    pub(crate) fn kind(&self) -> Option<AnswerKind> {
        match self.state {
            State::Decided(kind) => Some(kind),
            _ => None,
        }
    }

    pub(crate) fn heads(&self) -> impl Iterator<Item = &str> {
        self.heads.iter().map(String::as_str)
    }

    /// Number of bytes at the end of the text that may still become a call head, or are the head that
    /// has decided.
    pub(crate) fn pending(&self) -> usize {
        self.tail.len()
    }

    /// Feeds the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.kind().is_some() {
            return;
        }
        self.tail.extend_from_slice(bytes);
        loop {
            let state = self.state;
            match state {
                State::Start => self.start(),
                State::Reasoning => self.reason(),
                State::Between => self.skip_line_breaks(),
                State::Visible => self.classify(),
                State::Decided(_) => {}
            }
            if state == self.state {
                return;
            }
        }
    }

    /// Whether `bytes` would complete a call head. Costs little for bytes that do not.
    pub(crate) fn completes_head(&self, bytes: &[u8]) -> bool {
        let behind_tail = |tail: &[u8], bytes: &[u8]| {
            let completes = |head: &[u8]| head.strip_prefix(tail).is_some_and(|rest| bytes.starts_with(rest));
            let common = self.heads.first().map(|head| &head.as_bytes()[..self.common]).unwrap_or_default();
            // Most tokens differ from all heads alike.
            (common.len() < tail.len() || completes(common))
                && self.heads.iter().any(|head| completes(head.as_bytes()))
        };
        match self.state {
            State::Start | State::Visible => behind_tail(&self.tail, bytes),
            State::Between => behind_tail(&[], without_line_breaks(bytes)),
            State::Reasoning => {
                let last = self.reasoning.and_then(|(_, close)| close.bytes().last());
                last.is_some_and(|last| bytes.contains(&last)) && {
                    let mut next = self.clone();
                    next.push(bytes);
                    next.kind() == Some(AnswerKind::Calls)
                }
            }
            State::Decided(_) => false,
        }
    }

    fn start(&mut self) {
        let space = self.tail.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let text = &self.tail[space..];
        match self.reasoning {
            Some((open, _)) if text.starts_with(open.as_bytes()) => {
                self.tail.drain(..space + open.len());
                self.state = State::Reasoning;
            }
            Some((open, _)) if open.as_bytes().starts_with(text) => {}
            _ => self.state = State::Visible,
        }
    }

    fn reason(&mut self) {
        let Some((_, close)) = self.reasoning else { return };
        let close = close.as_bytes();
        match self.tail.windows(close.len()).position(|part| part == close) {
            Some(at) => {
                self.tail.drain(..at + close.len());
                self.state = State::Between;
            }
            None => {
                let most = self.tail.len().min(close.len() - 1);
                let is_prefix = |kept: &usize| close.starts_with(&self.tail[self.tail.len() - kept..]);
                let kept = (1..=most).rev().find(is_prefix).unwrap_or(0);
                self.tail.drain(..self.tail.len() - kept);
            }
        }
    }

    fn skip_line_breaks(&mut self) {
        let rest = without_line_breaks(&self.tail).len();
        self.tail.drain(..self.tail.len() - rest);
        if rest > 0 {
            self.state = State::Visible;
        }
    }

    fn classify(&mut self) {
        let is_head = |head: &String| self.tail.starts_with(head.as_bytes());
        let may_become_head = |head: &String| head.as_bytes().starts_with(&self.tail);
        if self.heads.iter().any(is_head) {
            self.state = State::Decided(AnswerKind::Calls);
        } else if !self.heads.iter().any(may_become_head) {
            self.state = State::Decided(AnswerKind::Format);
        }
    }
}

fn common_prefix(heads: &[String]) -> usize {
    let first = heads.first().map(String::as_bytes).unwrap_or_default();
    let same = |head: &String| first.iter().zip(head.as_bytes()).take_while(|(a, b)| a == b).count();
    heads.iter().map(same).min().unwrap_or(0)
}

fn without_line_breaks(bytes: &[u8]) -> &[u8] {
    let breaks = bytes.iter().take_while(|byte| **byte == b'\n').count();
    &bytes[breaks..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: (&str, &str) = ("<think>", "</think>");

    fn of(
        text: &str,
        reasoning: Option<(&'static str, &'static str)>,
        is_reasoning: bool,
    ) -> AnswerClassifier {
        let heads = ["<call>get(", "<call>get_all("].map(String::from);
        let mut classifier = AnswerClassifier::new(heads.into(), reasoning, is_reasoning);
        // Byte by byte: the result must not depend on how the text is split.
        text.bytes().for_each(|byte| classifier.push(&[byte]));
        let mut whole = AnswerClassifier::new(classifier.heads.clone(), reasoning, is_reasoning);
        whole.push(text.as_bytes());
        assert_eq!(whole.kind(), classifier.kind(), "{text}");
        classifier
    }

    #[test]
    fn an_answer_is_calls_if_it_begins_with_a_head() {
        use AnswerKind::{Calls, Format};
        for (text, kind) in [
            ("", None),
            ("<cal", None),
            ("<call>get", None),
            ("<call>get(", Some(Calls)),
            ("<call>get_all(1", Some(Calls)),
            ("<call>got", Some(Format)),
            (" <call>get(", Some(Format)),
            ("{\"a\": \"<call>get(\"}", Some(Format)),
        ] {
            assert_eq!(of(text, None, false).kind(), kind, "{text}");
            assert_eq!(of(text, Some(THINK), false).kind(), kind, "{text}");
            let behind = format!("<think>a <call>get( b</think>\n\n{text}");
            assert_eq!(of(&behind, Some(THINK), false).kind(), kind, "{behind}");
            let behind = format!("</thin <call>get( b</think>{text}");
            assert_eq!(of(&behind, Some(THINK), true).kind(), kind, "{behind}");
        }
        assert_eq!(of("<think><call>get(", Some(THINK), false).kind(), None);
        assert_eq!(of("<thin <call>", Some(THINK), false).kind(), Some(Format));
    }

    #[test]
    fn completed_heads_are_foreseen() {
        for (text, next, completes) in [
            ("", "<call>get(x", true),
            ("", "<call>get", false),
            ("<call>g", "et(", true),
            ("<call>g", "<call>get(", false),
            ("<think>a</think>", "\n<call>get(", true),
            ("<think>a</think>", "<call>get_", false),
            ("<think>a</th", "ink>\n<call>get(", true),
            ("<think>a", "<call>get(", false),
            ("{", "<call>get(", false),
        ] {
            let before = of(text, Some(THINK), false);
            assert_eq!(before.completes_head(next.as_bytes()), completes, "{text} {next}");
            let mut later = before.clone();
            later.push(next.as_bytes());
            assert_eq!(later.kind() == Some(AnswerKind::Calls), completes, "{text} {next}");
        }
    }
}

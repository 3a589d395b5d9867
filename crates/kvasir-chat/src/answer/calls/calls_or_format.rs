//! Streaming parser of an answer that is either in the response format or consists of tool calls.
//!
//! An [`AnswerClassifier`] decides by the first bytes. Formatted text passes as it is, whatever markers
//! it contains; an answer of calls goes to the parser of the dialect. Only text that may still become a
//! call head is held back.

use crate::answer::calls::ToolCallParser;
use crate::answer::events::CallEvent;
use crate::grammar::answer_classifier::{AnswerClassifier, AnswerKind};
use crate::scan::hold_back::take;

/// Routes an answer to the parser of calls, or passes it as text.
#[derive(Clone, Debug)]
pub(crate) struct CallsOrFormat {
    classifier: AnswerClassifier,
    calls: ToolCallParser,
    /// Markers with which calls begin: text behind one of them is the beginning of a call.
    marks: Vec<&'static str>,
    /// Text that is not emitted yet.
    held: String,
}

impl CallsOrFormat {
    /// A parser in front of `calls`; `marks` are the markers of its dialect.
    pub(super) fn new(
        classifier: AnswerClassifier,
        calls: ToolCallParser,
        mut marks: Vec<&'static str>,
    ) -> Self {
        marks.retain(|mark| !mark.is_empty() && classifier.heads().any(|head| head.starts_with(mark)));
        Self { classifier, calls, marks, held: String::new() }
    }

    pub(super) fn is_open(&self) -> bool {
        self.calls.is_open()
    }

    pub(super) fn count(&self) -> usize {
        self.calls.count()
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<CallEvent> {
        if text.is_empty() {
            return Vec::new();
        }
        match self.classifier.kind() {
            Some(AnswerKind::Format) => return vec![CallEvent::Text(text.to_owned())],
            Some(AnswerKind::Calls) => return self.calls.push(text),
            None => {}
        }
        self.held.push_str(text);
        self.classifier.push(text.as_bytes());
        let kind = self.classifier.kind();
        // Reasoning that is not separated is text.
        let sure = match kind {
            Some(AnswerKind::Format) => self.held.len(),
            _ => self.held.len().saturating_sub(self.classifier.pending()),
        };
        let sure = take(&mut self.held, sure);
        let mut events = Vec::new();
        if !sure.is_empty() {
            events.push(CallEvent::Text(sure));
        }
        if kind == Some(AnswerKind::Calls) {
            let head = std::mem::take(&mut self.held);
            events.extend(self.calls.push(&head));
        }
        events
    }

    pub(super) fn finish(&mut self) -> Vec<CallEvent> {
        let held = std::mem::take(&mut self.held);
        match self.classifier.kind() {
            Some(AnswerKind::Calls) => {
                let mut events = self.calls.finish();
                // An answer of calls has no text: what is left is the beginning of a call.
                events.retain(|event| !matches!(event, CallEvent::Text(_)));
                events
            }
            None if self.marks.iter().any(|mark| held.starts_with(mark)) => Vec::new(),
            _ if held.is_empty() => Vec::new(),
            _ => vec![CallEvent::Text(held)],
        }
    }
}

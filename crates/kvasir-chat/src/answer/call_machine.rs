//! `CallMachine`: the state machine that all streaming parsers of tool calls are, and its loop.

use crate::answer::events::CallEvent;

/// A streaming parser of tool calls in one family of dialects: a state machine over buffered text.
pub(super) trait CallMachine {
    /// The buffered text that no transition has consumed yet.
    fn held(&mut self) -> &mut String;

    /// Makes one state transition; returns false if it needs more text. With `is_end`, no text
    /// follows.
    fn advance(&mut self, events: &mut Vec<CallEvent>, is_end: bool) -> bool;

    /// Handles the buffered text and the state at the end of the text.
    fn end(&mut self, events: &mut Vec<CallEvent>);

    /// Appends text; returns the events that no later text can change.
    fn push(&mut self, text: &str) -> Vec<CallEvent> {
        self.held().push_str(text);
        let mut events = Vec::new();
        while self.advance(&mut events, false) {}
        events
    }

    /// Ends the text; returns the remaining events.
    fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        while self.advance(&mut events, true) {}
        self.end(&mut events);
        events
    }
}

//! The loop that the streaming parsers of tool calls share: a state machine over held text.

use crate::answer::events::CallEvent;

/// A streaming parser of tool calls in one family of dialects.
pub(super) trait CallMachine {
    /// The text that no transition has consumed.
    fn held(&mut self) -> &mut String;

    /// One state transition; false if it needs more text. With `is_end`, none will come.
    fn advance(&mut self, events: &mut Vec<CallEvent>, is_end: bool) -> bool;

    /// Handles the text that is held at the end.
    fn end(&mut self, events: &mut Vec<CallEvent>);

    /// Feeds more text; returns the events that no later text can change.
    fn push(&mut self, text: &str) -> Vec<CallEvent> {
        self.held().push_str(text);
        let mut events = Vec::new();
        while self.advance(&mut events, false) {}
        events
    }

    /// Ends the text.
    fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        while self.advance(&mut events, true) {}
        self.end(&mut events);
        events
    }
}

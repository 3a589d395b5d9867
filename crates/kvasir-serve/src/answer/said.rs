//! Emits the text between tool calls and drops the white space next to calls.

use super::CallEvent;

/// The text between calls. Trailing white space is held back and emitted only if more text follows,
/// so white space around calls is dropped.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    space: String,
    said: bool,
}

impl Said {
    pub(super) fn say(&mut self, text: &str, events: &mut Vec<CallEvent>) {
        let text = std::mem::take(&mut self.space) + text;
        let kept = text.trim_end().len();
        self.space = text[kept..].to_owned();
        if kept > 0 {
            // The line break between a call and the text after it is dropped.
            let said = if self.said { &text[..kept] } else { text[..kept].trim_start_matches('\n') };
            self.said = true;
            events.push(CallEvent::Text(said.to_owned()));
        }
    }

    /// Marks the position of a call: drops the held white space.
    pub(super) fn call(&mut self) {
        self.space.clear();
        self.said = false;
    }
}

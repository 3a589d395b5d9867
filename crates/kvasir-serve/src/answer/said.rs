use super::CallEvent;

/// The text between calls. White space around calls belongs to neither: it is given out only if more text follows.
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
            // The line end between a call and what follows it belongs to neither.
            let said = if self.said { &text[..kept] } else { text[..kept].trim_start_matches('\n') };
            self.said = true;
            events.push(CallEvent::Text(said.to_owned()));
        }
    }

    /// A call stands here.
    pub(super) fn call(&mut self) {
        self.space.clear();
        self.said = false;
    }
}

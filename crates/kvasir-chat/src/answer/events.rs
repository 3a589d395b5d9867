//! Events of the output parsers: text, reasoning and fragments of tool calls.

/// A delta of one choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// Visible text (`content`).
    Content(String),
    /// Reasoning text (`reasoning_content`).
    Reasoning(String),
    /// A tool call begins.
    CallBegin {
        /// Zero-based index of the call in the answer.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// A fragment of a call's arguments.
    CallArguments {
        /// Zero-based index of the call in the answer.
        index: usize,
        /// The next characters of the JSON text.
        text: String,
    },
}

/// An event of the streaming tool call parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// Visible text.
    Text(String),
    /// A tool call begins.
    Begin {
        /// Zero-based index of the call in the answer.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// A fragment of the call's arguments, as JSON text.
    Arguments {
        /// Zero-based index of the call in the answer.
        index: usize,
        /// The fragment.
        text: String,
    },
}

impl From<CallEvent> for Delta {
    fn from(event: CallEvent) -> Self {
        match event {
            CallEvent::Text(text) => Self::Content(text),
            CallEvent::Begin { index, name } => Self::CallBegin { index, name },
            CallEvent::Arguments { index, text } => Self::CallArguments { index, text },
        }
    }
}

/// The text between calls. Trailing white space is held back and emitted only if more text follows,
/// so white space around calls is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextBetweenCalls {
    space: String,
    has_text: bool,
}

impl TextBetweenCalls {
    pub(super) fn push(&mut self, text: &str, events: &mut Vec<CallEvent>) {
        let text = std::mem::take(&mut self.space) + text;
        let kept = text.trim_end().len();
        self.space = text[kept..].to_owned();
        if kept > 0 {
            // The line break between a call and the text after it is dropped.
            let visible = if self.has_text { &text[..kept] } else { text[..kept].trim_start_matches('\n') };
            self.has_text = true;
            events.push(CallEvent::Text(visible.to_owned()));
        }
    }

    /// Marks the position of a call: drops the held white space.
    pub(super) fn call(&mut self) {
        self.space.clear();
        self.has_text = false;
    }
}

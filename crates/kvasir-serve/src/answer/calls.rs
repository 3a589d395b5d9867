use super::hold::{possible_start, take};
use serde_json::Value;

/// A piece of an answer that may hold tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// Text for the reader.
    Text(String),
    /// A call begins.
    Begin {
        /// Number of the call in the answer.
        index: usize,
        /// The function.
        name: String,
    },
    /// More of the JSON text of its arguments.
    Arguments {
        /// Number of the call in the answer.
        index: usize,
        /// The next characters.
        text: String,
    },
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Reads calls of the form `<tool_call>{"name": .., "arguments": {..}}</tool_call>` out of an answer.
///
/// What is between the marks and no such object comes out as text, marks included: nothing a model wrote is lost.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    held: String,
    inside: bool,
    /// The running call's arguments: where they begin in `held`, and how much of them is out.
    open: Option<(usize, usize)>,
    count: usize,
    /// White space after text that is only given out if more text follows.
    space: String,
    said: bool,
}

impl Calls {
    /// Takes more text and returns what is certain.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        self.held.push_str(text);
        let mut events = Vec::new();
        while match self.inside {
            false => self.outside(&mut events),
            true => self.within(&mut events),
        } {}
        events
    }

    /// The text has ended: what is no whole call comes out as text.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        let mut events = Vec::new();
        let held = std::mem::take(&mut self.held);
        // Once its name is out, a broken call cannot be taken back; the rest of what it has goes to its arguments.
        match (self.inside, self.open.take()) {
            (true, Some((start, sent))) => {
                let text = held.get(start + sent..).unwrap_or_default();
                if !text.is_empty() {
                    events.push(CallEvent::Arguments { index: self.count, text: text.to_owned() });
                }
                self.count += 1;
            }
            (true, None) => self.say(&format!("{OPEN}{held}"), &mut events),
            (false, _) => self.say(&held, &mut events),
        }
        events
    }

    /// Number of calls so far.
    pub fn count(&self) -> usize {
        self.count
    }

    fn say(&mut self, text: &str, events: &mut Vec<CallEvent>) {
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

    fn outside(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let at = self.held.find(OPEN);
        let sure = at.unwrap_or_else(|| self.held.len() - possible_start(&self.held, OPEN));
        let text = take(&mut self.held, sure);
        self.say(&text, events);
        if at.is_some() {
            self.held.drain(..OPEN.len());
            self.inside = true;
        }
        at.is_some()
    }

    fn within(&mut self, events: &mut Vec<CallEvent>) -> bool {
        let end = self.held.find(CLOSE);
        let body = &self.held[..end.unwrap_or(self.held.len())];
        if self.open.is_none() {
            let whole = end.is_some();
            match head(body) {
                Some((name, start)) if !whole || parsed(body) => {
                    events.push(CallEvent::Begin { index: self.count, name });
                    self.open = Some((start, 0));
                }
                // Keys in another order, or no `arguments` at all: only the whole object tells.
                _ if whole => return self.whole(body.len(), events),
                _ => return false,
            }
        }
        if let Some((start, sent)) = self.open {
            let have = arguments_len(&self.held[start..end.unwrap_or(self.held.len())]);
            if let Some(text) = self.held.get(start + sent..start + have).filter(|text| !text.is_empty()) {
                events.push(CallEvent::Arguments { index: self.count, text: text.to_owned() });
            }
            self.open = Some((start, have.max(sent)));
        }
        self.close(end, true)
    }

    /// A body that is only understood once it is complete.
    fn whole(&mut self, len: usize, events: &mut Vec<CallEvent>) -> bool {
        let body = self.held[..len].to_owned();
        let call = serde_json::from_str::<Value>(body.trim()).ok();
        let call = call
            .and_then(|call| Some((call.get("name")?.as_str()?.to_owned(), call.get("arguments").cloned())));
        let is_call = call.is_some();
        match call {
            Some((name, arguments)) => {
                let text = arguments.map_or_else(|| "{}".into(), |arguments| arguments.to_string());
                events.push(CallEvent::Begin { index: self.count, name });
                events.push(CallEvent::Arguments { index: self.count, text });
            }
            None => self.say(&format!("{OPEN}{body}{CLOSE}"), events),
        }
        self.close(Some(len), is_call)
    }

    fn close(&mut self, end: Option<usize>, is_call: bool) -> bool {
        let Some(end) = end else { return false };
        self.held.drain(..end + CLOSE.len());
        self.inside = false;
        self.open = None;
        if is_call {
            self.count += 1;
            self.space.clear();
            self.said = false;
        }
        true
    }
}

fn parsed(body: &str) -> bool {
    serde_json::from_str::<Value>(body.trim()).is_ok_and(|call| call["name"].is_string())
}

/// `{"name": "f", "arguments":` at the start of a call: the name, and where the arguments' object begins.
fn head(body: &str) -> Option<(String, usize)> {
    let at = |text: &str| body.len() - text.len();
    let rest = body.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"name\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let mut names = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let name = names.next()?.ok()?;
    let rest = rest.get(names.byte_offset()..)?;
    let rest = rest.trim_start().strip_prefix(',')?.trim_start().strip_prefix("\"arguments\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    rest.starts_with('{').then(|| (name, at(rest)))
}

/// How much of `text`, which begins with `{`, belongs to that object.
fn arguments_len(text: &str) -> usize {
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' | b']' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text and calls put together again.
    fn in_pieces(text: &str, cuts: &[usize]) -> (String, Vec<(String, String)>) {
        let mut calls = Calls::default();
        let (mut said, mut made, mut from) = (String::new(), Vec::<(String, String)>::new(), 0);
        let mut add = |event: CallEvent| match event {
            CallEvent::Text(text) => said += &text,
            CallEvent::Begin { index, name } => {
                assert_eq!(index, made.len());
                made.push((name, String::new()));
            }
            CallEvent::Arguments { index, text } => {
                assert_eq!(index, made.len() - 1);
                made[index].1 += &text;
            }
        };
        for &to in cuts.iter().chain([&text.len()]) {
            calls.push(&text[from..to]).into_iter().for_each(&mut add);
            from = to;
        }
        calls.finish().into_iter().for_each(&mut add);
        assert_eq!(calls.count(), made.len());
        (said, made)
    }

    #[test]
    fn every_split_gives_the_same() {
        let one = r#"<tool_call>
{"name": "get", "arguments": {"a": "}\"{", "b": [1, {"c": 2}]}}
</tool_call>"#;
        let two = format!("Let me see.\n{one}\n{one}");
        let arguments = r#"{"a": "}\"{", "b": [1, {"c": 2}]}"#;
        for (text, said, calls) in [
            (one.to_owned(), "", 1),
            (two, "Let me see.", 2),
            (r#"<tool_call>{"arguments": {"a": 1}, "name": "late"}</tool_call>"#.into(), "", 1),
            ("a < b <tool> c".into(), "a < b <tool> c", 0),
            ("<tool_call>no json</tool_call> x".into(), "<tool_call>no json</tool_call> x", 0),
            ("<tool_call>{\"na".into(), "<tool_call>{\"na", 0),
        ] {
            let whole = in_pieces(&text, &[]);
            assert_eq!((whole.0.as_str(), whole.1.len()), (said, calls), "{text}");
            if text.contains("get") {
                assert!(whole.1.iter().all(|(name, got)| name == "get" && got == arguments));
            }
            for a in 0..=text.len() {
                for b in (a..=text.len()).step_by(3) {
                    assert_eq!(in_pieces(&text, &[a, b]), whole, "{text:?} cut at {a}, {b}");
                }
            }
        }
    }

    #[test]
    fn arguments_stream_before_the_call_ends() {
        let mut calls = Calls::default();
        let events = calls.push(r#"<tool_call>{"name": "f", "arguments": {"city": "Par"#);
        assert_eq!(events.len(), 2);
        assert_eq!(events[1], CallEvent::Arguments { index: 0, text: r#"{"city": "Par"#.into() });
    }
}

//! Passes tool call arguments that are not JSON objects through a chat template, by placeholders.
//!
//! A model may emit arbitrary text as arguments, and clients send it back in the history. Templates
//! write arguments in one of three ways: `arguments | tojson`, verbatim if they are a string, or
//! field by field. So each such text is replaced by a placeholder before rendering and restored
//! afterwards, along with quotes that `tojson` put around it. A template that needs fields gets an
//! object with the text as its only field.

use serde_json::{Value, json};

/// Encloses a placeholder's index. A noncharacter, which is removed from client text.
pub(crate) const PLACEHOLDER: char = '\u{fdd2}';

/// Maximum bytes of rendered output with its texts restored: that of a body.
pub(crate) const MAX_RESTORED: usize = 32 << 20;

/// The replaced texts, in the order of their calls.
pub(crate) struct RawArguments(Vec<String>);

impl RawArguments {
    /// Replaces string arguments in `messages` by placeholders.
    pub(crate) fn take(messages: &mut [Value]) -> Self {
        let mut texts = Vec::new();
        for arguments in all_arguments(messages) {
            if let Value::String(text) = arguments {
                let mark = format!("{PLACEHOLDER}{}{PLACEHOLDER}", texts.len());
                texts.push(std::mem::replace(text, mark));
            }
        }
        Self(texts)
    }

    /// Replaces placeholders by objects, for a template that reads fields.
    pub(crate) fn as_objects(&self, messages: &mut [Value]) {
        let marks = all_arguments(messages).filter(|arguments| arguments.is_string());
        marks.zip(&self.0).for_each(|(mark, text)| *mark = json!({"arguments": text}));
    }

    /// Restores the texts in rendered output. `None` if the result exceeds [`MAX_RESTORED`]: a template
    /// may repeat a placeholder of a few bytes, which stands for a text of megabytes.
    pub(crate) fn restore(&self, rendered: String) -> Option<String> {
        if self.is_empty() {
            return Some(rendered);
        }
        // Text and placeholder indices alternate between marks.
        let mut pieces = rendered.split(PLACEHOLDER);
        let mut restored = pieces.next().unwrap_or_default().to_owned();
        while let (Some(index), Some(behind)) = (pieces.next(), pieces.next()) {
            let text = index.parse().ok().and_then(|i: usize| self.0.get(i));
            let unquoted = restored.strip_suffix('"').map(str::len).zip(behind.strip_prefix('"'));
            let behind = match unquoted {
                Some((before, behind)) => {
                    restored.truncate(before);
                    behind
                }
                None => behind,
            };
            let text = text.map_or("", String::as_str);
            if restored.len() + text.len() + behind.len() > MAX_RESTORED {
                return None;
            }
            restored.push_str(text);
            restored.push_str(behind);
        }
        Some(restored)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn all_arguments(messages: &mut [Value]) -> impl Iterator<Item = &mut Value> {
    let calls = messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut());
    calls.flatten().filter_map(|call| call.get_mut("function")?.get_mut("arguments"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_template::ChatTemplate;
    use serde_json::Map;

    fn rendered(arguments: &str, template: &str) -> Option<String> {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        let mut messages = vec![json!({"role": "user"}), json!({"role": "assistant", "tool_calls": [call]})];
        let raw = RawArguments::take(&mut messages);
        let template = ChatTemplate::new(template).unwrap();
        let render = |messages: &[Value]| {
            let variables = Map::from_iter([("messages".to_owned(), messages.into())]);
            template.render(&variables, 0).ok()
        };
        let text = render(&messages).or_else(|| {
            raw.as_objects(&mut messages);
            render(&messages)
        });
        text.and_then(|text| raw.restore(text))
    }

    #[test]
    fn arguments_that_are_no_object_are_rendered_as_they_are() {
        let text = "{\"a\": \"b\nc\"";
        for (template, expected) in [
            ("{{ messages[1].tool_calls[0].function.arguments | tojson }}", text.to_owned()),
            (
                "{{ messages[1].tool_calls[0].function | tojson }}",
                format!("{{\"name\": \"f\", \"arguments\": {text}}}"),
            ),
            (
                "{% set a = messages[1].tool_calls[0].function.arguments %}{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}",
                text.to_owned(),
            ),
            (
                "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
                format!("arguments={text}"),
            ),
        ] {
            assert_eq!(rendered(text, template), Some(expected), "{template}");
        }
    }
}

//! Normalizes conversations for strict chat templates: one leading system message, then alternating
//! roles, each with a text.
//!
//! Clients insert system messages between others, send several messages of one role in a row, and
//! have no text beside tool calls. Many templates render these; others raise an error or drop the
//! unexpected message.

use serde_json::Value;

fn role(message: &Value) -> &str {
    message["role"].as_str().unwrap_or_default()
}

/// Whether `rendered` contains the text of every system message after the first position.
pub(crate) fn shows_late_system(messages: &[Value], rendered: &str) -> bool {
    let mut late = messages.iter().skip(1).filter(|message| role(message) == "system");
    late.all(|message| rendered.contains(message["content"].as_str().unwrap_or_default().trim()))
}

/// Folds a conversation: leading system messages are merged, later ones become user text, and
/// consecutive user messages are merged, and absent texts become empty. No text is lost.
pub(crate) fn fold(messages: Vec<Value>) -> Vec<Value> {
    let mut folded: Vec<Value> = Vec::with_capacity(messages.len());
    for mut message in messages {
        if message["content"].is_null() {
            message["content"] = "".into();
        }
        let leads = folded.iter().all(|earlier| role(earlier) == "system");
        if role(&message) == "system" && !leads {
            message["role"] = "user".into();
        }
        match folded.last_mut() {
            Some(last) if role(last) == role(&message) && matches!(role(last), "system" | "user") => {
                let more = message["content"].as_str().unwrap_or_default();
                match &mut last["content"] {
                    Value::String(text) => text.extend(["\n\n", more]),
                    other => *other = format!("\n\n{more}").into(),
                }
            }
            _ => folded.push(message),
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(messages: &[(&str, &str)]) -> Vec<Value> {
        messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
    }

    #[test]
    fn a_call_without_text_gets_an_empty_one() {
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "a"}]});
        let folded = fold(vec![call]);
        assert_eq!((&folded[0]["content"], &folded[0]["tool_calls"][0]["id"]), (&json!(""), &json!("a")));
    }

    #[test]
    fn folding_keeps_every_text_and_alternates() {
        let messages = list(&[
            ("system", "a"),
            ("system", "b"),
            ("user", "c"),
            ("system", "d"),
            ("assistant", "e"),
            ("tool", "f"),
            ("system", "g"),
            ("user", "h"),
        ]);
        let expected = list(&[
            ("system", "a\n\nb"),
            ("user", "c\n\nd"),
            ("assistant", "e"),
            ("tool", "f"),
            ("user", "g\n\nh"),
        ]);
        assert_eq!(fold(messages.clone()), expected);
        assert!(
            shows_late_system(&messages, "a b c d e f g h") && !shows_late_system(&messages, "a b c d e f h")
        );
    }
}

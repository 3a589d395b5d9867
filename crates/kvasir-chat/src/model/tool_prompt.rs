//! Tools for chat templates that do not render any: described in the system prompt, with calls and
//! results as text.
//!
//! The text is in the Hermes dialect, in which such a model's answers are parsed
//! (`ToolDialect::default`). How well a model calls tools so depends on its training.

use serde_json::{Value, json};

/// Rewrites a conversation so that a template without tools shows the tools, the calls and their
/// results. Without tools, calls and results are written all the same.
pub(crate) fn with_tool_prompt(messages: Vec<Value>, tools: &[Value]) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    for mut message in messages {
        let content = message["content"].as_str().unwrap_or_default().to_owned();
        let calls = message.as_object_mut().and_then(|message| message.remove("tool_calls"));
        if let Some(calls) = calls.as_ref().and_then(Value::as_array) {
            let texts = calls.iter().map(|call| {
                let function = &call["function"];
                let call = json!({"name": function["name"], "arguments": function["arguments"]});
                format!("<tool_call>\n{call}\n</tool_call>")
            });
            let parts = [content].into_iter().filter(|text| !text.is_empty()).chain(texts);
            message["content"] = parts.collect::<Vec<_>>().join("\n").into();
            out.push(message);
        } else if message["role"] == "tool" {
            let result = format!("<tool_response>\n{content}\n</tool_response>");
            match out.last_mut().filter(|last| last["role"] == "user" && last["tool_result"] == true) {
                Some(last) => {
                    let before = last["content"].as_str().unwrap_or_default().to_owned();
                    last["content"] = format!("{before}\n{result}").into();
                }
                // The mark is for the next result only; templates do not read it.
                None => out.push(json!({"role": "user", "content": result, "tool_result": true})),
            }
        } else {
            out.push(message);
        }
    }
    if !tools.is_empty() {
        let tools: Vec<String> = tools.iter().map(Value::to_string).collect();
        let text = format!(
            "You can call functions. Each line describes one:\n{}\n\nTo call a function, write its name and arguments \
             as a JSON object between these tags, once for each call:\n<tool_call>\n{{\"name\": \"NAME\", \"arguments\": \
             {{}}}}\n</tool_call>\nThe result comes back between <tool_response> tags.",
            tools.join("\n")
        );
        match out.first_mut().filter(|first| first["role"] == "system") {
            Some(system) => {
                let own = system["content"].as_str().unwrap_or_default().to_owned();
                system["content"] = format!("{own}\n\n{text}").into();
            }
            None => out.insert(0, json!({"role": "system", "content": text})),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_calls_and_results_become_text() {
        let tool = json!({"type": "function", "function": {"name": "f"}});
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}});
        let messages = vec![
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Go."}),
            json!({"role": "assistant", "content": null, "tool_calls": [call, call]}),
            json!({"role": "tool", "tool_call_id": "c", "content": "1"}),
            json!({"role": "tool", "tool_call_id": "c", "content": "2"}),
            json!({"role": "user", "content": "Well?"}),
        ];
        let out = with_tool_prompt(messages, &[tool]);
        let text = |i: usize| out[i]["content"].as_str().unwrap();
        assert!(
            text(0).starts_with("Be brief.\n\n")
                && text(0).contains(r#"{"type":"function","function":{"name":"f"}}"#)
        );
        let call = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>";
        assert_eq!(text(2), format!("{call}\n{call}"));
        assert_eq!(text(3), "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>");
        assert_eq!((out.len(), text(4)), (5, "Well?"));
        assert!(out.iter().all(|message| message["role"] != "tool" && message.get("tool_calls").is_none()));
    }
}

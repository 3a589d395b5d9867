use super::*;
use crate::request::{IgnoredFields, UnknownFields};
use serde_json::json;

fn read(extra: Value) -> Result<ChatRequest, ApiError> {
    let mut body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
    let body = Reader::new(body.as_object().unwrap(), &ignored);
    Ok(MessagesRequest::read(&body, &Sampling::default(), 1000)?.chat)
}

fn refused(extra: Value) -> String {
    let error = read(extra).unwrap_err();
    assert_eq!(error.status, 400);
    error.param.unwrap()
}

fn sources(messages: Value) -> Vec<Value> {
    read(json!({"messages": messages})).unwrap().messages.into_iter().map(|message| message.source).collect()
}

#[test]
fn blocks_become_the_messages_that_templates_know() {
    let got = sources(json!([
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                     {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "only its maker can read it"},
            {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}, "toolset_name": null}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
            {"type": "text", "text": "and?"}]},
        {"role": "assistant", "content": []},
    ]));
    let call = json!({"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}});
    assert_eq!(
        got,
        [
            json!({"role": "user", "content": "ab"}),
            json!({"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "t1", "content": "42"}),
            json!({"role": "user", "content": "and?"}),
            json!({"role": "assistant", "content": ""}),
        ]
    );
}

#[test]
fn the_rest_of_a_request_is_read() {
    let chat = read(json!({
        "system": [{"type": "text", "text": "be brief"}], "stop_sequences": ["x"], "top_k": 5,
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "eager_input_streaming": true}],
        "cache_control": {"type": "ephemeral"}, "output_config": {"effort": "max"},
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
        "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"},
    }))
    .unwrap();
    assert_eq!(chat.messages[0].source, json!({"role": "system", "content": "be brief"}));
    assert_eq!((chat.sampling.stop, chat.sampling.sampling.top_k), (vec!["x".to_owned()], 5));
    assert_eq!(chat.tools[0].source["function"]["parameters"], json!({"type": "object"}));
    assert!(!chat.parallel_tool_calls && chat.add_generation_prompt);
    assert_eq!(chat.template_kwargs["enable_thinking"], false);
    assert_eq!(chat.template_kwargs["reasoning_effort"], "max");
    let prefill = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    let chat = read(json!({"messages": prefill})).unwrap();
    assert!(chat.continue_final_message && !chat.add_generation_prompt, "the answer goes on with it");
}

fn said() -> Value {
    json!({"role": "user", "content": "hi"})
}

fn calls(ids: &[&str]) -> Value {
    let blocks = ids.iter().map(|id| json!({"type": "tool_use", "id": id, "name": "f", "input": {}}));
    json!({"role": "assistant", "content": blocks.collect::<Value>()})
}

fn results(ids: &[&str]) -> Value {
    let blocks = ids.iter().map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "4"}));
    json!({"role": "user", "content": blocks.collect::<Value>()})
}

#[test]
fn every_call_has_its_result() {
    let error = read(json!({"messages": [said(), calls(&["t", "u"]), results(&["t"]), said()]})).unwrap_err();
    assert!(error.message.contains("`u`"), "{}", error.message);
    // Neighbouring messages of the user are one.
    for answers in [vec![results(&["u", "t"])], vec![results(&["t"]), results(&["u"]), said()]] {
        let messages: Vec<_> = [said(), calls(&["t", "u"])].into_iter().chain(answers).collect();
        assert!(read(json!({"messages": messages})).is_ok());
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (bad, param) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"model": null}), "model"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "king", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (json!({"output_config": {"effort": "wild"}}), "output_config.effort"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]}),
            "messages[0].content[0].tool_use_id",
        ),
        (json!({"messages": [said(), calls(&["t"])]}), "messages[1].content"),
        (json!({"messages": [said(), calls(&["t"]), said()]}), "messages[1].content"),
        (json!({"messages": [said(), calls(&["t", "u"]), results(&["t"])]}), "messages[1].content"),
        (
            json!({"messages": [said(), calls(&["t"]), calls(&["u"]), results(&["t", "u"])]}),
            "messages[1].content",
        ),
        (
            json!({"messages": [said(), calls(&["t"]), results(&["t"]), results(&["t"])]}),
            "messages[3].content[0].tool_use_id",
        ),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.name"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}), "tools[0].type"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 10}}), "thinking.budget_tokens"),
        (json!({"n": 2}), "n"),
        (json!({"temperature": 3}), "temperature"),
    ] {
        assert_eq!(refused(bad.clone()), param, "{bad}");
    }
}

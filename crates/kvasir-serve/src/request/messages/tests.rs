//! Tests of Anthropic request parsing: blocks to template messages, tool results, context edits,
//! errors by field.

use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
use crate::request::messages::*;
use serde_json::json;

fn read(extra: Value) -> Result<ChatRequest, ApiError> {
    let mut body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
    let body = Reader::new(body.as_object().unwrap(), &ignored);
    let chat = MessagesRequest::read(&body, &Sampling::default(), 1000, true)?.chat;
    match &chat.unread_media {
        Some(unread) => Err(unread.refusal("m")),
        None => Ok(chat),
    }
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
fn content_blocks_become_template_messages() {
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
fn sampling_and_limits_are_parsed() {
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

fn answered() -> Value {
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
fn every_tool_call_needs_a_result() {
    let error =
        read(json!({"messages": [answered(), calls(&["t", "u"]), results(&["t"]), answered()]})).unwrap_err();
    assert!(error.message.contains("`u`"), "{}", error.message);
    // Adjacent user messages count as one.
    for answers in [vec![results(&["u", "t"])], vec![results(&["t"]), results(&["u"]), answered()]] {
        let messages: Vec<_> = [answered(), calls(&["t", "u"])].into_iter().chain(answers).collect();
        assert!(read(json!({"messages": messages})).is_ok());
    }
}

#[test]
fn errors_name_the_field() {
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
        (json!({"messages": [answered(), calls(&["t"])]}), "messages[1].content"),
        (json!({"messages": [answered(), calls(&["t"]), answered()]}), "messages[1].content"),
        (json!({"messages": [answered(), calls(&["t", "u"]), results(&["t"])]}), "messages[1].content"),
        (
            json!({"messages": [answered(), calls(&["t"]), calls(&["u"]), results(&["t", "u"])]}),
            "messages[1].content",
        ),
        (
            json!({"messages": [answered(), calls(&["t"]), results(&["t"]), results(&["t"])]}),
            "messages[3].content[0].tool_use_id",
        ),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.name"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 10}}), "thinking.budget_tokens"),
        (json!({"n": 2}), "n"),
        (json!({"temperature": 3}), "temperature"),
    ] {
        assert_eq!(refused(bad.clone()), param, "{bad}");
    }
}

fn thoughts(management: Value) -> Vec<bool> {
    let turn = |text: &str| {
        let blocks =
            json!([{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": text}]);
        [json!({"role": "user", "content": "ask"}), json!({"role": "assistant", "content": blocks})]
    };
    let mut messages: Vec<Value> = ["a", "b", "c"].into_iter().flat_map(turn).collect();
    messages.push(json!({"role": "user", "content": "ask"}));
    let chat = read(json!({"messages": messages, "context_management": management})).unwrap();
    let answers = chat.messages.iter().filter(|message| message.role == Role::Assistant);
    answers.map(|message| message.source.get("reasoning_content").is_some()).collect()
}

#[test]
fn context_edits_clear_old_reasoning() {
    let clear = |keep: Value| json!({"edits": [{"type": "clear_thinking_20251015", "keep": keep}]});
    assert_eq!(thoughts(json!({"edits": []})), [true; 3]);
    assert_eq!(thoughts(clear(json!("all"))), [true; 3]);
    assert_eq!(thoughts(clear(json!({"type": "thinking_turns", "value": 2}))), [false, true, true]);
    assert_eq!(thoughts(clear(Value::Null)), [false, false, true]);
    let clear_tools = json!({"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 9}}]});
    assert_eq!(thoughts(clear_tools.clone()), [true; 3]);
    let ignored = IgnoredFields::default();
    let map = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "context_management": clear_tools});
    let body = Reader::new(map.as_object().unwrap(), &ignored);
    MessagesRequest::read(&body, &Sampling::default(), 1000, true).unwrap();
    assert_eq!(ignored.names(), ["context_management.edits[].clear_tool_uses_20250919"]);
    assert_eq!(refused(json!({"context_management": clear(json!(3))})), "context_management.edits[0].keep");
}

#[test]
fn system_messages_may_appear_anywhere() {
    let got = sources(json!([
        {"role": "user", "content": "a"},
        {"role": "system", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "{\"x\": 1}"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": {"type": "base64", "data": "AA=="}}, {"type": "tool_reference", "tool_name": "g"}]}]},
    ]));
    assert_eq!(got[1], json!({"role": "system", "content": "b"}));
    assert_eq!(got[2]["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
    assert_eq!(got[3]["content"], "[image omitted: this model reads text]g");
}

#[test]
fn billing_header_is_stripped_from_system_prompt() {
    let header = "x-anthropic-billing-header: cc_version=1.2.3.abc; cch=00ff1;";
    let read = |system: Value, strip: bool| {
        let map = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "system": system});
        let ignored = IgnoredFields::default();
        let body = Reader::new(map.as_object().unwrap(), &ignored);
        let chat = MessagesRequest::read(&body, &Sampling::default(), 1000, strip).unwrap().chat;
        chat.messages
            .iter()
            .filter(|m| m.role == Role::System)
            .map(|m| m.source["content"].clone())
            .collect::<Vec<_>>()
    };
    let blocks = json!([{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]);
    assert_eq!(read(blocks.clone(), true), ["Be brief."]);
    assert_eq!(read(blocks, false), [format!("{header}Be brief.")]);
    assert_eq!(read(json!(format!("{header}\nBe brief.\nAnd kind.")), true), ["Be brief.\nAnd kind."]);
    assert_eq!(read(json!([{"type": "text", "text": header}]), true), [""; 0]);
    let quoted = format!("Never print {header}");
    assert_eq!(read(json!(quoted), true), [quoted], "only where it stands first");
}

#[test]
fn threads_are_refused_in_the_sdk_format() {
    let error = read(json!({"thread": {"type": "create"}})).unwrap_err();
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!((error.status, &error.to_anthropic()["error"]["details"]), (400, &details));
    assert_eq!(error.to_anthropic()["error"]["type"], "invalid_request_error");
}

#[test]
fn loaded_tools_come_last_and_media_are_refused() {
    let tool = |name: &str, deferred: bool| json!({"name": name, "input_schema": {"type": "object"}, "defer_loading": deferred});
    let found = json!([{"type": "tool_reference", "tool_name": "b"}]);
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "a", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": found}]},
    ]);
    let tools = json!([tool("a", false), tool("b", true), tool("c", false), tool("d", true)]);
    let names = |messages: Value| {
        let chat = read(json!({"tools": tools, "messages": messages})).unwrap();
        chat.tools.into_iter().map(|tool| tool.name).collect::<Vec<_>>()
    };
    assert_eq!(names(messages), ["a", "c", "b"]);
    assert_eq!(names(json!([{"role": "user", "content": "x"}])), ["a", "c"]);
    for (kind, words) in [("image", "could not process image"), ("document", "does not support PDF input")] {
        let block = json!({"type": kind, "source": {"type": "base64", "data": "AA=="}});
        let error = read(json!({"messages": [{"role": "user", "content": [block]}]})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("messages[0].content[0].type"));
        assert!(error.message.contains(words), "{}", error.message);
    }
}

#[test]
fn only_media_of_the_newest_message_are_refused() {
    let block = |kind: &str| json!({"type": kind, "source": {"type": "base64", "data": "AA=="}});
    let user = |blocks: Value| json!({"role": "user", "content": blocks});
    let text = json!({"type": "text", "text": "and?"});
    let messages = json!([
        user(json!([block("image"), block("document"), text])),
        {"role": "assistant", "content": [block("image"), {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        user(json!([{"type": "tool_result", "tool_use_id": "t", "content": [block("document")]}])),
        user(json!([text])),
    ]);
    let note = |kind: &str| format!("[{kind} omitted: this model reads text]");
    let got = sources(messages);
    assert_eq!(got[0]["content"], note("image") + &note("document") + "and?");
    assert_eq!((&got[1]["content"], &got[2]["content"]), (&json!(note("image")), &json!(note("document"))));
    // Results of calls are no message of the user: the image before them is the newest one's.
    let newest = json!([user(json!([block("image")])), calls(&["t"]), results(&["t"]),]);
    assert_eq!(refused(json!({"messages": newest})), "messages[0].content[0].type");
}

#[test]
fn blocks_of_server_tools_are_left_out() {
    let got = sources(json!([
        answered(),
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"type": "text", "text": "found"}]},
        answered(),
    ]));
    assert_eq!(got[1], json!({"role": "assistant", "content": "found"}));
}

#[test]
fn documents_of_text_are_read() {
    let document = json!({
        "type": "document", "title": "Notes", "citations": {"enabled": true},
        "source": {"type": "text", "media_type": "text/plain", "data": "one two"},
    });
    let content = json!([document, {"type": "text", "text": "Sum up."}]);
    let request = read(json!({"messages": [{"role": "user", "content": content}]})).unwrap();
    let text = &request.messages.last().unwrap().source["content"];
    assert_eq!(*text, json!("<document>\n<title>Notes</title>\none two\n</document>\nSum up."));
}

#[test]
fn unknown_fields_of_documents_and_edits_are_named() {
    let request = |source: Value, extra: Value| {
        let mut document = json!({"type": "document", "source": source});
        document.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"messages": [{"role": "user", "content": [document]}]})
    };
    let text = json!({"type": "text", "media_type": "text/plain", "data": "a"});
    let keep = json!({"type": "thinking_turns", "value": 1, "foo": 1});
    let edit = json!({"type": "clear_thinking_20251015", "keep": keep});
    for (body, param) in [
        (request(text.clone(), json!({"foo": 1})), "messages[0].content[0].foo"),
        (
            request(json!({"type": "text", "data": "a", "foo": 1}), json!({})),
            "messages[0].content[0].source.foo",
        ),
        (
            request(json!({"type": "content", "content": "a", "foo": 1}), json!({})),
            "messages[0].content[0].source.foo",
        ),
        (
            request(json!({"type": "text", "media_type": "text/html", "data": "a"}), json!({})),
            "messages[0].content[0].source.media_type",
        ),
        (json!({"context_management": {"edits": [edit]}}), "context_management.edits[0].keep.foo"),
    ] {
        assert_eq!(refused(body), param);
    }
    let known = json!({"title": "t", "context": "c", "citations": {"enabled": true}, "cache_control": {"type": "ephemeral"}});
    read(request(text, known)).unwrap();
}

//! Tests of `/v1/responses` request parsing: items to template messages, errors by field, coding
//! agents' history.

use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
use crate::request::responses::*;
use kvasir_chat::Shape;
use serde_json::json;

fn read(extra: Value) -> Result<ResponsesRequest, ApiError> {
    let mut body = json!({"input": "hi"});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let request = ResponsesRequest::read(
        &Reader::new(body.as_object().unwrap(), &IgnoredFields::default().with_rule(UnknownFields::Refuse)),
        &Sampling::default(),
        1000,
    )?;
    match &request.chat.unread_media {
        Some(unread) => Err(unread.refusal("m")),
        None => Ok(request),
    }
}

#[test]
fn input_items_become_template_messages() {
    let request = read(json!({
        "instructions": "be brief", "max_output_tokens": 9, "store": false,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "so", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}", "namespace": null},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
        ],
    }))
    .unwrap();
    let sources: Vec<_> = request.chat.messages.into_iter().map(|message| message.source).collect();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}});
    assert_eq!(
        sources,
        [
            json!({"role": "system", "content": "be brief"}),
            json!({"role": "user", "content": "ab"}),
            json!({"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "c1", "content": "42"}),
        ]
    );
    assert_eq!(request.chat.sampling.length.max_tokens, Some(9));
}

#[test]
fn errors_name_the_field() {
    for (bad, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": [{"type": "reasoning", "summary": []}]}), "input"),
        (json!({"input": [{"role": "user", "content": []}]}), "input[0].content"),
        (json!({"tool_choice": {"type": "hosted"}}), "tool_choice.type"),
        (json!({"input": [{"role": "king", "content": "x"}]}), "input[0].role"),
        (json!({"input": [{"role": "user"}]}), "input[0].content"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]}),
            "input[0].content[0].type",
        ),
        (
            json!({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]}),
            "input[0].call_id",
        ),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0].type"),
        (json!({"background": true, "store": false}), "background"),
        (json!({"previous_response_id": 1}), "previous_response_id"),
        (json!({"truncation": "middle"}), "truncation"),
        (json!({"session": "s", "truncation": "auto"}), "session"),
        (json!({"session": "s", "instructions": "x"}), "session"),
        (json!({"session": "s", "previous_response_id": "r"}), "session"),
        (json!({"session": "s", "conversation": "c"}), "session"),
        (json!({"session": 1}), "session"),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (
            json!({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}}),
            "tool_choice.tools[0].name",
        ),
        (json!({"max_output_tokens": 0}), "max_output_tokens"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].type"),
        (json!({"input": [{"type": "riddle"}]}), "input[0].riddle"),
        (json!({"metadata": 1}), "metadata"),
        (json!({"tool_choice": {"type": "function", "name": "f"}}), "tool_choice.name"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
        (json!({"messages": []}), "messages"),
        (json!({"text": {"verbosity": "some"}}), "text.verbosity"),
        (json!({"text": {"format": {"type": "json_object", "schema": 5}}}), "text.format.schema"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "foo": 1}]}]}),
            "input[0].content[0].foo",
        ),
    ] {
        let error = read(bad.clone()).expect_err(param);
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{bad}");
    }
}

#[test]
fn metadata_has_the_limits_of_openai() {
    let keys = |n: usize| (0..n).map(|i| (i.to_string(), json!("x"))).collect::<Map<_, _>>();
    // Characters count, not bytes.
    let longest = json!({"é".repeat(64): "é".repeat(512)});
    for good in [json!(null), json!({}), keys(16).into(), longest] {
        assert!(read(json!({"metadata": good})).is_ok());
    }
    for (bad, param, why) in [
        (keys(17).into(), "metadata", "`metadata` may have at most 16 keys, not 17"),
        (
            json!({"k".repeat(65): "x"}),
            "metadata",
            "`metadata` may have keys of at most 64 characters, not 65",
        ),
        (
            json!({"k": "x".repeat(513)}),
            "metadata.k",
            "`metadata.k` may have at most 512 characters, not 513",
        ),
        (json!({"k": 1}), "metadata.k", "`metadata.k` must be a text"),
        (json!({"k": null}), "metadata.k", "`metadata.k` must be a text"),
    ] {
        let error = read(json!({"metadata": bad})).unwrap_err();
        assert_eq!((error.status, error.param.as_deref(), error.message.as_str()), (400, Some(param), why));
    }
}

#[test]
fn coding_agent_history_is_accepted() {
    let request = read(json!({
        "tools": [{"type": "web_search", "external_web_access": false}, {"type": "custom", "name": "patch"},
                  {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}]}],
        "tool_choice": "auto", "store": false, "reasoning": {"summary": "auto"}, "client_metadata": {"turn": "1"},
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "compaction", "encrypted_content": "only its maker can read it"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
            {"type": "function_call", "call_id": "c1", "name": "spawn", "namespace": "agents", "arguments": ""},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
            {"type": "local_shell_call", "call_id": "c3", "status": "completed",
             "action": {"type": "exec", "command": ["ls"]}},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": "data:"}]},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"type": "local_shell_call_output", "id": "c3", "output": "x"},
        ],
    }))
    .unwrap();
    let names: Vec<_> = request.chat.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["patch", "agents__spawn"]);
    let sources: Vec<_> = request.chat.messages.into_iter().map(|message| message.source).collect();
    let calls = sources[2]["tool_calls"].as_array().unwrap();
    let called: Vec<_> =
        calls.iter().map(|call| (&call["function"]["name"], &call["function"]["arguments"])).collect();
    assert_eq!(
        called,
        [
            (&json!("agents__spawn"), &json!({})),
            (&json!("patch"), &json!({"input": "*** Begin"})),
            (&json!("local_shell"), &json!({"type": "exec", "command": ["ls"]})),
        ]
    );
    let results: Vec<_> = sources[3..].iter().map(|result| result["content"].as_str().unwrap()).collect();
    assert_eq!(results, ["[image omitted: this model reads text]", "done", "x"]);
}

#[test]
fn input_items_may_add_tools() {
    let exec = json!({"type": "custom", "name": "exec"});
    let run = json!({"type": "function", "name": "run"});
    let offered = json!({"type": "additional_tools", "id": "at_1", "role": "developer",
        "tools": [{"type": "namespace", "name": "functions", "description": "", "tools": [exec, run]}, run]});
    let input = json!([offered, {"role": "user", "content": "x"}]);
    let request = read(json!({"tools": [run], "input": input})).unwrap();
    let names: Vec<_> =
        request.chat.tools.iter().map(|tool| (tool.name.as_str(), tool.kind.is_custom())).collect();
    assert_eq!(names, [("run", false), ("functions__exec", true), ("functions__run", false)]);
    let bad =
        json!([{"type": "additional_tools", "tools": [{"name": "x"}]}, {"role": "user", "content": "x"}]);
    assert_eq!(read(json!({"input": bad})).unwrap_err().param.as_deref(), Some("input[0].tools[0].type"));
}

#[test]
fn media_of_earlier_items_become_notes() {
    let media = |kind: &str| json!([{"type": kind, "file_id": "f"}]);
    let request = read(json!({"input": [
        {"role": "user", "content": media("input_image")},
        {"role": "developer", "content": media("input_file")},
        {"role": "user", "content": "hi"},
    ]}));
    let contents: Vec<_> =
        request.unwrap().chat.messages.into_iter().map(|message| message.source["content"].clone()).collect();
    let note = |noun: &str| format!("[{noun} omitted: this model reads text]");
    assert_eq!(contents, [note("image"), note("file"), "hi".into()]);
}

#[test]
fn json_objects_satisfy_their_schema() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let format = |format: Value| {
        let request = read(json!({"text": {"format": format, "verbosity": "low"}})).unwrap();
        request.chat.response_format.map(|format| format.shape)
    };
    assert_eq!(
        format(json!({"type": "json_object", "schema": schema})),
        Some(Shape::JsonSchema(schema.clone()))
    );
    assert_eq!(format(json!({"type": "json_object"})), Some(Shape::JsonObject));
}

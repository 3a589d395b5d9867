//! Tests of chat request parsing: bounds of every parameter, message and tool validation.

use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
use crate::request::body::Body;
use crate::request::chat::*;
use crate::request::fields::CHAT;
use kvasir_chat::Shape;

fn read(body: Value) -> Result<ChatRequest, ApiError> {
    let body = Body::parse(
        body.to_string().as_bytes(),
        CHAT,
        IgnoredFields::default().with_rule(UnknownFields::Refuse),
    )?;
    let chat =
        ChatRequest::read(&body.reader(), &Sampling { temperature: 1.0, ..Sampling::default() }, 1000)?;
    match &chat.unread_media {
        Some(unread) => Err(unread.refusal("m")),
        None => Ok(chat),
    }
}

fn with(extra: Value) -> Result<ChatRequest, ApiError> {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    read(body)
}

/// The parameter for which a body is rejected.
fn refused(extra: Value) -> String {
    let error = with(extra).unwrap_err();
    assert_eq!(error.status, 400);
    error.param.unwrap()
}

#[test]
fn plain_chats_are_parsed() {
    let chat =
        with(json!({"max_tokens": 5, "max_completion_tokens": 7, "stop": "x", "logit_bias": {"3": -100}}))
            .unwrap();
    assert_eq!(chat.sampling.length.max_tokens, Some(7), "the newer name wins");
    assert_eq!(chat.sampling.stop, ["x"]);
    assert_eq!(chat.sampling.bias, [(3, -100.0)]);
    assert_eq!(chat.sampling.sampling.temperature, 1.0, "the model's default");
    assert_eq!(chat.stream, None);
    assert_eq!(with(json!({"temperature": null, "stream": null})).unwrap().stream, None, "null is absent");
}

#[test]
fn every_parameter_has_bounds() {
    for n in [json!(0), json!(-1), json!(1e9), json!("2"), json!(1.5)] {
        assert_eq!(refused(json!({"n": n})), "n");
    }
    for max in [json!(0), json!(-1), json!(4294967296u64), json!(9223372036854775808u64)] {
        assert_eq!(refused(json!({"max_tokens": max})), "max_tokens");
    }
    for top in [21, 1_000_000_000, -1] {
        assert_eq!(refused(json!({"logprobs": true, "top_logprobs": top})), "top_logprobs");
    }
    assert_eq!(refused(json!({"top_logprobs": 2})), "top_logprobs");
    assert_eq!(refused(json!({"temperature": -1})), "temperature");
    assert_eq!(refused(json!({"temperature": 100.1})), "temperature");
    assert_eq!(refused(json!({"top_p": -0.1})), "top_p");
    assert_eq!(refused(json!({"top_p": 1.0001})), "top_p");
    assert_eq!(refused(json!({"top_k": 2147483647})), "top_k");
    assert_eq!(refused(json!({"min_p": 1.1})), "min_p");
    assert_eq!(refused(json!({"presence_penalty": 2.1})), "presence_penalty");
    assert_eq!(refused(json!({"frequency_penalty": -2.1})), "frequency_penalty");
    assert_eq!(refused(json!({"repetition_penalty": 0})), "repetition_penalty");
    assert_eq!(refused(json!({"logit_bias": {"-1": 1}})), "logit_bias");
    assert_eq!(refused(json!({"logit_bias": {"1000": 1}})), "logit_bias");
    assert_eq!(refused(json!({"logit_bias": {"1": 101}})), "logit_bias");
    let many: Map<String, Value> = (0..100_000).map(|i| (i.to_string(), json!(1))).collect();
    assert_eq!(refused(json!({"logit_bias": many})), "logit_bias");
    assert_eq!(refused(json!({"stop": ""})), "stop");
    assert_eq!(refused(json!({"stop": vec!["a"; 500_000]})), "stop");
    assert_eq!(refused(json!({"seed": 18446744073709551615u64})), "seed");
    assert_eq!(refused(json!({"min_tokens": 5, "max_tokens": 4})), "min_tokens");
    assert_eq!(refused(json!({"priority": 1e12})), "priority");
    assert_eq!(refused(json!({"stream_options": {"include_usage": true}})), "stream_options");
    assert_eq!(refused(json!({"stream": true, "stream_options": {"x": 1}})), "stream_options.x");
    assert_eq!(refused(json!({"nonsense": 1})), "nonsense");
    assert_eq!(refused(json!({"audio": {"voice": "x"}})), "audio");
    assert_eq!(refused(json!({"chat_template_kwargs": {"messages": []}})), "chat_template_kwargs.messages");
}

#[test]
fn messages_are_checked() {
    let bad = |messages: Value| read(json!({"messages": messages})).unwrap_err().param.unwrap();
    assert_eq!(bad(json!([])), "messages");
    assert_eq!(bad(json!([{"role": "king", "content": "x"}])), "messages[0].role");
    assert_eq!(bad(json!([{"role": "user"}])), "messages[0].content");
    assert_eq!(bad(json!([{"role": "user", "content": []}])), "messages[0].content");
    let image = json!([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]);
    assert_eq!(bad(json!([{"role": "user", "content": image}])), "messages[0].content[0].type");
    assert_eq!(
        bad(json!([{"role": "tool", "content": "x", "tool_call_id": "c"}])),
        "messages[0].tool_call_id"
    );
    let call = |arguments: Value| json!({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]});
    let written = |arguments: Value| {
        let chat = read(json!({"messages": [call(arguments)]})).unwrap();
        chat.messages[0].source["tool_calls"][0]["function"]["arguments"].clone()
    };
    // History is never rejected for what a model wrote.
    for (arguments, expected) in [
        (json!(""), json!({})),
        (json!(" \n"), json!({})),
        (json!({"a": 1}), json!({"a": 1})),
        (json!("not json"), json!("not json")),
        (json!("{\"a\": 1} x"), json!("{\"a\": 1} x")),
        (json!("[1]"), json!("[1]")),
        (json!([1]), json!("[1]")),
    ] {
        assert_eq!(written(arguments), expected);
    }
    let good = read(json!({"messages": [call(json!("{\"a\": 1}")), {"role": "tool", "content": "x", "tool_call_id": "c"}]})).unwrap();
    assert_eq!(good.messages[0].source["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let good = read(json!({"messages": [{"role": "developer", "content": parts}]})).unwrap();
    assert_eq!(good.messages[0].source, json!({"role": "system", "content": "ab"}));
}

#[test]
fn tools_are_checked() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    assert_eq!(refused(json!({"tools": [tool("a\"b")]})), "tools[0].function.name");
    assert_eq!(refused(json!({"tools": [tool("a"), tool("a")]})), "tools[1].function.name");
    assert_eq!(refused(json!({"tools": vec![tool("a"); 10_000]})), "tools");
    assert_eq!(refused(json!({"tool_choice": "required"})), "tool_choice");
    let named = json!({"type": "function", "function": {"name": "b"}});
    assert_eq!(refused(json!({"tools": [tool("a")], "tool_choice": named})), "tool_choice.function.name");
    assert_eq!(
        with(json!({"tools": [tool("b")], "tool_choice": named})).unwrap().tool_choice,
        ToolChoice::Named("b".into())
    );
}

fn format(extra: Value) -> Option<Shape> {
    with(extra).unwrap().response_format.map(|format| format.shape)
}

#[test]
fn json_objects_satisfy_their_schema() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let object = |schema: Value| json!({"response_format": {"type": "json_object", "schema": schema}});
    assert_eq!(format(object(schema.clone())), Some(Shape::JsonSchema(schema)));
    for absent in [Value::Null, json!({})] {
        assert_eq!(format(object(absent)), Some(Shape::JsonObject));
    }
    assert_eq!(format(json!({"response_format": {"type": "json_object"}})), Some(Shape::JsonObject));
    assert_eq!(refused(object(json!(5))), "response_format.schema");
}

#[test]
fn empty_texts_are_no_constraint() {
    for name in ["regex", "ebnf", "grammar", "json_schema", "guided_regex", "guided_grammar", "guided_json"] {
        assert_eq!(format(json!({name: ""})), None, "{name}");
    }
    for name in ["regex", "grammar", "json"] {
        assert_eq!(format(json!({"structured_outputs": {name: ""}})), None, "{name}");
    }
    assert_eq!(format(json!({"regex": "", "guided_regex": "a"})), Some(Shape::Regex("a".into())));
    for name in ["regex", "grammar"] {
        let path = format!("response_format.{name}");
        assert_eq!(refused(json!({"response_format": {"type": name, name: ""}})), path);
    }
}

#[test]
fn unknown_nested_fields_are_named() {
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let with_tool = |mut extra: Value| {
        extra["tools"] = json!([tool]);
        extra
    };
    let function = json!({"name": "f", "arguments": "{}"});
    let message = |message: Value| json!({"messages": [message, {"role": "user", "content": "x"}]});
    let schema = json!({"schema": {"type": "object"}, "bar": 1});
    for (body, path) in [
        (
            json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
            "response_format.json_schema.bar",
        ),
        (json!({"response_format": {"type": "json_object", "foo": 1}}), "response_format.foo"),
        (json!({"response_format": {"type": "text", "foo": 1}}), "response_format.foo"),
        (json!({"response_format": {"type": "regex", "regex": "a", "foo": 1}}), "response_format.foo"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}, "foo": 1}]}), "tools[0].foo"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "bar": 1}}]}),
            "tools[0].function.bar",
        ),
        (
            with_tool(json!({"tool_choice": {"type": "function", "function": {"name": "f"}, "foo": 1}})),
            "tool_choice.foo",
        ),
        (
            with_tool(json!({"tool_choice": {"type": "function", "function": {"name": "f", "foo": 1}}})),
            "tool_choice.function.foo",
        ),
        (
            message(json!({"role": "user", "content": [{"type": "text", "text": "a", "foo": 1}]})),
            "messages[0].content[0].foo",
        ),
        (
            message(
                json!({"role": "assistant", "tool_calls": [{"id": "c", "function": function, "foo": 1}]}),
            ),
            "messages[0].tool_calls[0].foo",
        ),
    ] {
        let mut whole = json!({"messages": [{"role": "user", "content": "hi"}]});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let error = read(whole).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some(path), Some("unknown_parameter")));
    }
}

#[test]
fn fields_that_clients_send_are_known() {
    let cached = json!({"type": "ephemeral"});
    let part =
        json!({"type": "text", "text": "a", "annotations": [], "citations": null, "cache_control": cached});
    let call =
        json!({"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}});
    read(json!({
        "messages": [{"role": "user", "content": [part]}, {"role": "assistant", "tool_calls": [call]}],
        "tools": [{"type": "function", "cache_control": cached, "function": {
            "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true,
        }}],
        "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "description": "d", "strict": true, "schema": {"type": "object"},
        }},
    }))
    .unwrap();
}

#[test]
fn allowed_tools_are_the_only_ones_offered() {
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let choice = |mode: Value, tools: Value| {
        json!({
            "tools": [named("a"), named("b"), named("c")],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}},
        })
    };
    let names = |chat: &ChatRequest| chat.tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>();
    for (mode, expected) in [("auto", ToolChoice::Auto), ("required", ToolChoice::Required)] {
        let chat = with(choice(mode.into(), json!([named("c"), named("a")]))).unwrap();
        assert_eq!((names(&chat), chat.tool_choice), (vec!["a".to_owned(), "c".to_owned()], expected));
    }
    let path = "tool_choice.allowed_tools";
    assert_eq!(refused(choice("none".into(), json!([named("a")]))), format!("{path}.mode"));
    assert_eq!(refused(choice("required".into(), json!([]))), format!("{path}.tools"));
    assert_eq!(refused(choice("auto".into(), json!([named("d")]))), format!("{path}.tools[0].function.name"));
    let unknown = json!({"tools": [named("a")], "tool_choice": {"type": "hosted"}});
    assert_eq!(refused(unknown), "tool_choice.type");
}

#[test]
fn media_of_earlier_messages_become_notes() {
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let refusal = json!({"type": "refusal", "refusal": "No."});
    let chat = read_leniently(json!({"messages": [
        {"role": "user", "content": [text("What is it? "), image]},
        {"role": "assistant", "content": [refusal]},
        {"role": "user", "content": "Say it."},
    ]}));
    let contents: Vec<_> = chat.0.messages.iter().map(|message| &message.source["content"]).collect();
    let note = "What is it? [image omitted: this model reads text]";
    assert_eq!(contents, [&json!(note), &json!("No."), &json!("Say it.")]);
    assert_eq!(chat.1, ["messages[].content[].image_url"]);
}

/// The request, and the names of ignored fields.
fn read_leniently(body: Value) -> (ChatRequest, Vec<String>) {
    let ignored = IgnoredFields::default();
    let body = Body::parse(body.to_string().as_bytes(), CHAT, ignored.clone()).unwrap();
    (ChatRequest::read(&body.reader(), &Sampling::default(), 1000).unwrap(), ignored.names())
}

#[test]
fn free_form_tools_take_one_string() {
    let grammar = json!({"type": "grammar", "grammar": {"syntax": "regex", "definition": "x+"}});
    let custom = |name: &str| json!({"type": "custom", "custom": {"name": name}});
    let mut patch = custom("patch");
    patch["custom"]["format"] = grammar;
    let call = json!({"id": "c", "type": "custom", "custom": {"name": "patch", "input": "xx"}});
    let chat = read(json!({
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ],
        "tools": [patch, custom("note")], "tool_choice": custom("patch"),
    }))
    .unwrap();
    assert!(chat.tools.iter().all(|tool| tool.kind.is_custom()));
    assert!(chat.tools[0].source["function"]["description"].as_str().unwrap().contains("regex grammar:\nx+"));
    assert_eq!(chat.tool_choice, ToolChoice::Named("patch".into()));
    let function = &chat.messages[1].source["tool_calls"][0]["function"];
    assert_eq!(*function, json!({"name": "patch", "arguments": {"input": "xx"}}));
    let allowed = json!({"mode": "auto", "tools": [custom("note")]});
    let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
    let chat = with(json!({"tools": [patch, custom("note")], "tool_choice": choice})).unwrap();
    assert_eq!(chat.tools.len(), 1);
    let bad = json!({"type": "custom", "custom": {"name": "f", "format": {"type": "xml"}}});
    assert_eq!(refused(json!({"tools": [bad]})), "tools[0].custom.format.type");
}

#[test]
fn no_allowed_token_is_refused() {
    assert_eq!(refused(json!({"allowed_token_ids": []})), "allowed_token_ids");
    assert!(with(json!({"allowed_token_ids": null})).unwrap().sampling.allowed_token_ids.is_empty());
}

//! Tests of Ollama's requests.

use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
use crate::request::chat::ChatRequest;
use crate::request::ollama::*;
use kvasir_sample::Sampling;

fn chat(body: Value) -> Result<OllamaRequest, String> {
    let ignored = IgnoredFields::default();
    OllamaRequest::chat(&Reader::new(body.as_object().unwrap(), &ignored)).map_err(|e| e.param.unwrap())
}

#[test]
fn options_become_sampling_fields() {
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "think": false, "format": "json",
        "options": {"temperature": 0.5, "num_predict": 9, "repeat_penalty": 1.1, "num_ctx": 4096, "stop": ["x"]},
    });
    let OllamaTask::Chat(chat) = chat(body).unwrap().task else { panic!("no chat") };
    assert_eq!(
        Value::Object(chat),
        json!({
            "temperature": 0.5, "max_tokens": 9, "repetition_penalty": 1.1, "stop": ["x"],
            "response_format": {"type": "json_object"}, "chat_template_kwargs": {"enable_thinking": false},
            "messages": [{"role": "user", "content": "hi"}],
        })
    );
}

#[test]
fn tool_results_find_their_calls_by_name() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
    let body = json!({"messages": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call("a"), call("b")]},
        {"role": "tool", "tool_name": "b", "content": "2"},
        {"role": "tool", "content": "1"},
    ]});
    let OllamaTask::Chat(chat) = chat(body).unwrap().task else { panic!("no chat") };
    let ids: Vec<_> = chat["messages"].as_array().unwrap()[2..].iter().map(|m| &m["tool_call_id"]).collect();
    assert_eq!(ids, ["call_1", "call_0"]);
}

#[test]
fn tool_results_find_their_calls_by_id() {
    let call = |id: &str| json!({"id": id, "function": {"index": 0, "name": "a", "arguments": {}}});
    let body = |id: Value| {
        json!({"messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [call("x"), call("y")]},
            {"role": "tool", "tool_call_id": id, "content": "2"},
            {"role": "tool", "tool_name": "a", "content": "1"},
        ]})
    };
    let OllamaTask::Chat(request) = chat(body(json!("y"))).unwrap().task else { panic!("no chat") };
    let ids = [2, 3].map(|at| &request["messages"][at]["tool_call_id"]);
    assert_eq!(
        (ids, &request["messages"][1]["tool_calls"][0]["id"]),
        ([&json!("y"), &json!("x")], &json!("x"))
    );
    for bad in [json!("z"), json!(7)] {
        assert_eq!(chat(body(bad)).unwrap_err(), "messages[2].tool_call_id");
    }
}

#[test]
fn fields_of_calls_are_checked_and_unknown_ones_named() {
    let body = |call: Value| json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    for (call, param) in [
        (json!({"id": 7, "function": {"name": "a"}}), "id"),
        (json!({"type": 7, "function": {"name": "a"}}), "type"),
        (json!({"function": {"name": "a", "index": "first"}}), "function.index"),
    ] {
        assert_eq!(chat(body(call)).unwrap_err(), format!("messages[0].tool_calls[0].{param}"));
    }
    let body = body(json!({"bar": 1, "function": {"name": "a", "baz": 2}}));
    let ignored = IgnoredFields::default();
    OllamaRequest::chat(&Reader::new(body.as_object().unwrap(), &ignored)).unwrap();
    let names = ["messages[].tool_calls[].bar", "messages[].tool_calls[].function.baz"];
    assert_eq!(ignored.names(), names);
    let refusing = IgnoredFields::default().with_rule(UnknownFields::Refuse);
    let error = OllamaRequest::chat(&Reader::new(body.as_object().unwrap(), &refusing)).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].tool_calls[0].bar"));
}

#[test]
fn a_final_message_of_the_assistant_is_continued() {
    let continued = |last: Value| {
        let body = json!({"messages": [{"role": "user", "content": "hi"}, last]});
        let OllamaTask::Chat(fields) = chat(body).unwrap().task else { panic!("no chat") };
        fields.contains_key("continue_final_message")
    };
    assert!(continued(json!({"role": "assistant", "content": "He"})));
    assert!(!continued(json!({"role": "user", "content": "He"})));
    let call = json!({"function": {"name": "a"}});
    assert!(!continued(json!({"role": "assistant", "content": "", "tool_calls": [call]})));
}

#[test]
fn wrong_values_are_named() {
    let with = |name: &str, value: Value| {
        chat(json!({"messages": [{"role": "user", "content": "hi"}], name: value})).unwrap_err()
    };
    assert_eq!(with("format", json!("xml")), "format");
    assert_eq!(with("think", json!("much")), "think");
    assert_eq!(with("options", json!({"num_predict": "x"})), "options.num_predict");
    let image = json!({"messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]});
    let unread = chat(image).unwrap().unread_media.unwrap().refusal("tiny");
    assert_eq!((unread.status, unread.param.as_deref()), (400, Some("messages[0].images")));
    assert!(unread.message.contains("the model `tiny` reads text only"));
    let wrong = json!({"messages": [{"role": "user", "content": "hi", "images": "x"}]});
    assert_eq!(chat(wrong).unwrap_err(), "messages[0].images");
    let stray = json!({"messages": [{"role": "tool", "tool_name": "a", "content": "1"}]});
    assert_eq!(chat(stray).unwrap_err(), "messages[0].tool_name");
}

#[test]
fn errors_of_the_translated_body_name_the_clients_field() {
    let generate = |extra: Value| {
        let mut body = json!({"prompt": "a"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let ignored = IgnoredFields::default();
        let body = Reader::new(body.as_object().unwrap(), &ignored);
        let request = OllamaRequest::generate(&body).unwrap();
        let OllamaTask::Chat(fields) = &request.task else { panic!("no chat") };
        let error = ChatRequest::read(&body.derived(fields), &Sampling::default(), 100).unwrap_err();
        let error = request.client_error(error);
        assert!(error.message.contains(&format!("`{}`", error.param.as_deref().unwrap())), "{error}");
        error.param.unwrap()
    };
    for name in [
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "stop",
        "presence_penalty",
        "frequency_penalty",
        "repeat_penalty",
    ] {
        assert_eq!(generate(json!({"options": {name: {}}})), format!("options.{name}"));
    }
    assert_eq!(generate(json!({"options": {"repeat_penalty": 0}})), "options.repeat_penalty");
    let ignored = IgnoredFields::default();
    let request = OllamaRequest::generate(&Reader::new(&Map::new(), &ignored)).unwrap();
    for (param, own) in [("response_format.json_schema.schema", "format"), ("messages", "prompt")] {
        assert_eq!(request.client_error(ApiError::param(param, "")).param.unwrap(), own);
    }
}

#[test]
fn without_messages_the_model_is_loaded_or_unloaded() {
    let task =
        |keep_alive: Value| chat(json!({"model": "m", "keep_alive": keep_alive})).map(|request| request.task);
    for loads in [json!(null), json!(-1), json!(0.5), json!(""), json!("5m"), json!("-1"), json!("1h0m")] {
        assert_eq!(task(loads.clone()), Ok(OllamaTask::Load), "{loads}");
    }
    for unloads in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0h0.0m")] {
        assert_eq!(task(unloads.clone()), Ok(OllamaTask::Unload), "{unloads}");
    }
    for bad in [json!("soon"), json!("5 m"), json!("-"), json!("m"), json!(true), json!([0])] {
        assert_eq!(task(bad.clone()), Err("keep_alive".into()), "{bad}");
    }
}

#[test]
fn tools_without_a_type_are_functions() {
    let tool = |extra: Value| {
        let mut tool = json!({"function": {"name": "a"}});
        tool.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
        let OllamaTask::Chat(request) = chat(body).unwrap().task else { panic!("no chat") };
        request["tools"][0]["type"].clone()
    };
    for missing in [json!({}), json!({"type": null}), json!({"type": ""})] {
        assert_eq!(tool(missing), "function");
    }
    assert_eq!(tool(json!({"type": "web_search"})), "web_search");
}

#[test]
fn raw_completions_check_their_logprobs() {
    let read = |extra: Value| {
        let mut body = json!({"prompt": "a", "raw": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let ignored = IgnoredFields::default();
        let request = OllamaRequest::generate(&Reader::new(body.as_object().unwrap(), &ignored));
        request.map_err(|error| error.param.unwrap()).map(|request| match request.task {
            OllamaTask::Completion(fields) => fields.get("logprobs").cloned(),
            _ => panic!("no completion"),
        })
    };
    assert_eq!(read(json!({"top_logprobs": 3})), Err("top_logprobs".into()));
    assert_eq!(read(json!({"logprobs": 3})), Err("logprobs".into()));
    assert_eq!(read(json!({"logprobs": true, "top_logprobs": 3})), Ok(Some(json!(3))));
    assert_eq!(read(json!({"logprobs": true})), Ok(Some(json!(0))));
    assert_eq!(read(json!({"top_logprobs": 0})), Ok(None));
}

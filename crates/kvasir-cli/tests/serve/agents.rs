//! Requests in the style of coding agents: Codex, Claude Code, and tool runners of Anthropic's
//! SDKs.

use crate::server::{CHAT, JSON, Server, chat};
use serde_json::{Value, json};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// A server whose context fits an agent's prompts.
fn server(name: &str, options: &[&str]) -> Server {
    Server::start(name, options)
}

#[test]
fn unknown_fields_are_served_without_and_named() {
    let lenient = server("lenient", &[]);
    let message = json!({"role": "user", "content": "hello", "junk": {"a": [1]}});
    let body = chat(json!({"nonsense": [1, 2], "messages": [message], "best_of": 1, "lora_path": null}));
    let answer = lenient.exchange("POST", CHAT, JSON, &body.to_string());
    assert_eq!((answer.status, answer.header("x-kvasir-ignored")), (200, Some("messages[].junk, nonsense")));
    let plain = lenient.post(CHAT, &chat(json!({}))).1;
    assert_eq!(answer.json()["choices"], plain["choices"], "they change nothing");
    let plain = lenient.exchange("POST", CHAT, JSON, &chat(json!({})).to_string());
    assert_eq!(plain.header("x-kvasir-ignored"), None);
    let best = lenient.exchange("POST", CHAT, JSON, &chat(json!({"best_of": 2})).to_string());
    assert_eq!((best.status, best.param()), (400, "best_of".into()), "it would change what comes back");
    let strict = server("strict", &["--unknown-fields", "refuse"]);
    let refused = strict.exchange("POST", CHAT, JSON, &chat(json!({"nonsense": 1})).to_string());
    assert_eq!((refused.status, refused.param()), (400, "nonsense".into()));
    let refused = strict.exchange("POST", CHAT, JSON, &chat(json!({"messages": [message]})).to_string());
    assert_eq!(refused.status, 400);
}

#[test]
fn history_of_invalid_tool_calls_is_accepted() {
    let server = server("wrote", &[]);
    for arguments in ["", "no json", "{\"a\": ", "[1]"] {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages = json!([{"role": "user", "content": "hello"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "x"}]);
        let (status, answer) = server.post(CHAT, &chat(json!({"messages": messages})));
        assert_eq!(status, 200, "{arguments}: {answer}");
        let item = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments});
        let output = json!({"type": "function_call_output", "call_id": "c", "output": "x"});
        let body = json!({"model": "tiny", "max_output_tokens": 4, "input": [{"role": "user", "content": "hello"}, item, output]});
        assert_eq!(server.post(RESPONSES, &body).0, 200, "{arguments}");
    }
    let rendered = |arguments: &str| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let messages =
            json!([{"role": "user", "content": "hello"}, {"role": "assistant", "tool_calls": [call]}]);
        let tokens = server.post("/tokenize", &json!({"messages": messages})).1["tokens"].clone();
        server.post("/detokenize", &json!({"tokens": tokens})).1["prompt"].as_str().unwrap().to_owned()
    };
    assert!(rendered("half of {\"it").contains("half of {\"it"), "{}", rendered("half of {\"it"));
}

/// A Codex-style body for `/v1/responses`, with `items` after its instructions.
fn codex(items: &[Value]) -> Value {
    let text = |text: &str| json!([{"type": "input_text", "text": text}]);
    let mut input = vec![
        json!({"type": "message", "id": "msg_a", "role": "developer", "content": text("You edit files.")}),
        json!({"type": "message", "id": "msg_b", "role": "developer", "content": text("You may read only.")}),
        json!({"type": "message", "id": "msg_c", "role": "user", "content": text("<place>/home</place>")}),
        json!({"type": "message", "id": "msg_d", "role": "user", "content": text("List the files.")}),
    ];
    input.extend_from_slice(items);
    let parameters = json!({"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"], "additionalProperties": false});
    let run = json!({"type": "function", "name": "run", "description": "Runs.", "strict": false, "parameters": parameters});
    let spawn = json!({"type": "function", "name": "spawn", "strict": false, "parameters": {"type": "object", "properties": {}}});
    json!({
        "model": "tiny", "stream": true, "store": false, "input": input, "tool_choice": "auto", "parallel_tool_calls": true,
        "tools": [run, {"type": "namespace", "name": "agents", "description": "Helpers.", "tools": [spawn]},
                  {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}},
                  {"type": "web_search", "external_web_access": false}],
        "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": {"turn_id": "t"}, "max_output_tokens": 8,
    })
}

/// The ignored-fields header and the events of a streamed response.
fn events(server: &Server, body: &Value) -> (Option<String>, Vec<Value>) {
    let answer = server.exchange("POST", RESPONSES, JSON, &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let lines = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    (
        answer.header("x-kvasir-ignored").map(str::to_owned),
        lines.map(|line| serde_json::from_str(line).unwrap()).collect(),
    )
}

#[test]
fn codex_has_its_turns() {
    let server = server("codex", &[]);
    let (ignored, first) = events(&server, &codex(&[]));
    assert_eq!(ignored.as_deref(), Some("tools[].web_search"));
    assert_eq!(first[0]["type"], "response.created");
    let items = [
        json!({"type": "function_call", "status": "completed", "id": "fc_1", "name": "spawn", "namespace": "agents", "arguments": "{}", "call_id": "c1"}),
        json!({"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "done"}),
        json!({"type": "custom_tool_call", "status": "completed", "id": "ctc_1", "name": "patch", "input": "x", "call_id": "c2"}),
        json!({"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "c2", "output": "rejected"}),
        json!({"type": "message", "id": "msg_e", "role": "assistant", "status": "completed",
               "content": [{"type": "output_text", "text": "So.", "annotations": [], "logprobs": []}]}),
        json!({"type": "message", "id": "msg_f", "role": "user", "content": [{"type": "input_text", "text": "Again."}]}),
    ];
    let (_, second) = events(&server, &codex(&items));
    let last = &second[second.len() - 1]["response"];
    assert!(last["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 64, "{last}");
}

#[test]
fn calls_come_back_as_their_tools_were_offered() {
    let server = server("kinds", &[]);
    for (choice, kind, key) in [
        (json!({"type": "custom", "name": "patch"}), "custom_tool_call", "input"),
        (json!({"type": "function", "name": "agents__spawn"}), "function_call", "arguments"),
    ] {
        let mut body = codex(&[]);
        body["tool_choice"] = choice;
        body["max_output_tokens"] = 200.into();
        // A random model would not end its reasoning.
        body["reasoning"] = json!({"effort": "none"});
        body["seed"] = 1.into();
        let (_, events) = events(&server, &body);
        let added = events
            .iter()
            .find(|event| event["type"] == "response.output_item.added" && event["item"]["type"] == kind);
        let added = added.unwrap_or_else(|| panic!("no {kind}: {events:?}"));
        assert_eq!(added["item"][key], "", "{added}");
        if kind == "function_call" {
            assert_eq!(
                (&added["item"]["name"], &added["item"]["namespace"]),
                (&json!("spawn"), &json!("agents"))
            );
        } else {
            let deltas =
                events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
            assert_eq!(deltas.count(), 0);
        }
    }
}

/// A Claude Code-style body for `/v1/messages`; its billing header ends with `cch`.
fn claude(cch: &str, turns: &[Value]) -> Value {
    let mark = json!({"type": "ephemeral"});
    let mut messages = vec![
        json!({"role": "user", "content": [{"type": "text", "text": "<note>a</note>"}, {"type": "text", "text": "List the files."}]}),
        json!({"role": "system", "content": [{"type": "text", "text": "# Place\nYou are at home.", "cache_control": mark}],
               "output_config": {"effort": "medium"}}),
    ];
    messages.extend_from_slice(turns);
    let schema = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": false,
        "properties": {"command": {"type": "string"}}, "required": ["command"]});
    json!({
        "model": "tiny", "max_tokens": 8, "stream": false, "messages": messages,
        "system": [{"type": "text", "text": format!("x-anthropic-billing-header: cc_version=1.2.3.abc; cch={cch};")},
                   {"type": "text", "text": "You are an agent that edits files. ".repeat(8), "cache_control": mark}],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": schema},
                  {"name": "Later", "description": "Not yet.", "input_schema": schema, "defer_loading": true}],
        "metadata": {"user_id": "{}"}, "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
    })
}

#[test]
fn claude_code_has_its_turns_and_finds_its_prefix() {
    let server = server("claude", &[]);
    let answer = server.exchange("POST", "/v1/messages?beta=true", JSON, &claude("00000", &[]).to_string());
    assert_eq!(
        (answer.status, answer.header("x-kvasir-ignored")),
        (200, Some("messages[].output_config")),
        "{}",
        answer.body
    );
    let call = json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}});
    let turns = [
        json!({"role": "assistant", "content": [{"type": "text", "text": "So."}, call]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.txt", "is_error": false}]}),
    ];
    let (status, second) = server.post(MESSAGES, &claude("ff1c2", &turns));
    assert_eq!(status, 200, "{second}");
    assert!(second["usage"]["cache_read_input_tokens"].as_u64().unwrap() >= 64, "{second}");
    let kept = self::server("billing", &["--strip-billing-header", "off"]);
    kept.post(MESSAGES, &claude("00000", &[]));
    let second = kept.post(MESSAGES, &claude("ff1c2", &turns)).1;
    assert!(second["usage"]["cache_read_input_tokens"].as_u64().unwrap() < 64, "{second}");
}

#[test]
fn deferred_tools_are_offered_once_they_are_referenced() {
    let server = server("deferred", &[]);
    let count = |turns: &[Value]| {
        let mut body = claude("0", turns);
        for field in ["max_tokens", "stream", "metadata"] {
            body.as_object_mut().unwrap().shift_remove(field);
        }
        let (status, answer) = server.post("/v1/messages/count_tokens", &body);
        assert_eq!(status, 200, "{answer}");
        answer["input_tokens"].as_u64().unwrap()
    };
    let turns = |content: Value| {
        [
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "find"}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": content}]}),
        ]
    };
    let named = count(&turns(json!([{"type": "text", "text": "Later"}])));
    let referenced = count(&turns(json!([{"type": "tool_reference", "tool_name": "Later"}])));
    assert!(referenced > named + 20, "its schema is in the prompt: {referenced}, {named}");
}

#[test]
fn overflow_errors_use_the_wording_claude_code_parses() {
    let server = server("overflow", &["--max-model-len", "512"]);
    let mut body = claude("0", &[]);
    body["max_tokens"] = 32_000.into();
    let (status, answer) = server.post(MESSAGES, &body);
    let message = answer["error"]["message"].as_str().unwrap();
    let rest = message.strip_prefix("input length and `max_tokens` exceed context limit: ").unwrap();
    let (numbers, _) = rest.split_once(',').unwrap();
    let (prompt, rest) = numbers.split_once(" + ").unwrap();
    assert_eq!((status, rest), (400, "32000 > 512"));
    assert!(prompt.parse::<u32>().unwrap() > 64);
    body["system"] = "word ".repeat(2000).into();
    let message = server.post(MESSAGES, &body).1["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with("prompt is too long: ") && message.ends_with(" tokens > 512 maximum"),
        "{message}"
    );
}

#[test]
fn threads_are_refused_with_the_code_tool_runners_expect() {
    let server = server("threads", &[]);
    let mut body = claude("0", &[]);
    body["thread"] = json!({"type": "create"});
    let (status, answer) = server.post(MESSAGES, &body);
    let details = json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
    assert_eq!((status, &answer["type"], &answer["error"]["details"]), (400, &json!("error"), &details));
}

#[test]
fn a_model_answers_to_all_its_names() {
    let server = server("names", &["--model-name", "other", "--model-name", "third"]);
    for (name, status) in [("tiny", 200), ("other", 200), ("third", 200), ("fourth", 404)] {
        assert_eq!(server.post(CHAT, &chat(json!({"model": name}))).0, status, "{name}");
    }
    let listed = server.send("GET", "/v1/models", "", "").1;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let names: Vec<_> = listed["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["tiny", "other", "third"]);
    let any = self::server("any", &["--model-name", "*"]);
    let answer = any.post(CHAT, &chat(json!({"model": "claude-of-any-kind"})));
    assert_eq!((answer.0, &answer.1["model"]), (200, &json!("tiny")));
}

#[test]
fn a_response_has_all_fields_of_what_it_repeats() {
    let server = server("repeated", &[]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let body = json!({
        "input": "hello", "max_output_tokens": 16, "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
        "tools": [{"type": "function", "name": "f"}], "tool_choice": "none",
    });
    let (status, response) = server.post(RESPONSES, &body);
    assert_eq!(status, 200, "{response}");
    let format =
        json!({"type": "json_schema", "name": "x", "schema": schema, "description": null, "strict": false});
    assert_eq!(response["text"], json!({"format": format}));
    assert_eq!(response["reasoning"], json!({"effort": "low", "summary": null}));
    let tool =
        json!({"type": "function", "name": "f", "description": null, "parameters": null, "strict": false});
    assert_eq!(response["tools"], json!([tool]));
    let short = json!({"input": "hello", "max_output_tokens": 16, "text": {"verbosity": "low"}});
    let (_, plain) = server.post(RESPONSES, &short);
    assert_eq!(plain["text"], json!({"verbosity": "low", "format": {"type": "text"}}));
    assert_eq!(plain["reasoning"], json!({"effort": null, "summary": null}));
}

//! Responses to valid requests: streaming, `n`, seeds, keys, structured output, log-probabilities,
//! shutdown.

use super::server::{CHAT, Server, chat};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    thread,
    time::{Duration, Instant},
};

#[test]
fn streamed_and_whole_answers_are_equal() {
    let server = Server::start("stream", &[]);
    let (status, whole) = server.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!((status, whole["object"].as_str()), (200, Some("chat.completion")));
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let usage = &whole["usage"];
    assert!(usage["completion_tokens"].as_u64().unwrap() <= 12);

    let events = server.events(
        "/v1/chat/completions",
        &chat(json!({"stream": true, "stream_options": {"include_usage": true}})),
    );
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]), "the usage comes last and alone");
    assert_eq!(last["usage"]["completion_tokens"], usage["completion_tokens"]);
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == last["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let printed: String =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(printed, text);
    let reasons: Vec<_> =
        chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).collect();
    assert_eq!(reasons.len(), 1);
    assert_eq!(reasons[0]["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);

    // A repeated prompt hits the prefix cache and gets the same answer.
    let long = "hello ".repeat(40);
    let body = chat(json!({"messages": [{"role": "user", "content": long}]}));
    let (_, first) = server.post("/v1/chat/completions", &body);
    let (_, second) = server.post("/v1/chat/completions", &body);
    assert_eq!(first["choices"], second["choices"]);
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 16);
}

#[test]
fn several_answers_and_prompts_have_their_own_index_and_noise() {
    let server = Server::start("several", &[]);
    let sampled = json!({"n": 3, "temperature": 1.5, "seed": 5, "logprobs": true, "top_logprobs": 2});
    let (_, answer) = server.post("/v1/chat/completions", &chat(sampled.clone()));
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    let entry = &choices[0]["logprobs"]["content"][0];
    assert!(entry["bytes"].is_array() && entry["top_logprobs"].as_array().unwrap().len() == 2);
    let (_, again) = server.post("/v1/chat/completions", &chat(sampled));
    assert_eq!(answer["choices"], again["choices"], "a seed is kept");

    let (_, answer) = server.post(
        "/v1/completions",
        &json!({"prompt": ["a b", [5, 6, 7]], "n": 2, "max_tokens": 3, "echo": true, "ignore_eos": true, "temperature": 0}),
    );
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert!(choices[0]["text"].as_str().unwrap().starts_with("a b"));
    assert_eq!(choices[0]["text"], choices[1]["text"], "greedy");
    assert_eq!(answer["usage"]["completion_tokens"], 12);
}

#[test]
fn bad_requests_get_their_error_and_nothing_else_changes() {
    let server = Server::start("bad", &["--api-key", "secret,other"]);
    let key = "Content-Type: application/json\r\nAuthorization: Bearer secret\r\n";
    let error = |path: &str, headers: &str, body: &str| {
        let (status, text) = server.send("POST", path, headers, body);
        let error: Value = serde_json::from_str(&text).unwrap();
        (status, error["error"]["param"].as_str().unwrap_or_default().to_owned())
    };
    let hello = chat(json!({})).to_string();
    assert_eq!(server.send("GET", "/live", "", "").0, 200, "open to everybody");
    for path in ["/health", "/v1/models", "/nothing"] {
        assert_eq!(server.send("GET", path, "", "").0, 401, "{path}");
    }
    let wrong = "Content-Type: application/json\r\nAuthorization: Bearer secre\r\n";
    assert_eq!(error("/v1/chat/completions", wrong, &hello).0, 401);
    assert_eq!(server.send("GET", "/nothing", key, "").0, 404);
    assert_eq!(server.send("GET", "/v1/chat/completions", key, "").0, 405);
    let no_type = "Authorization: Bearer secret\r\n";
    assert_eq!(error("/v1/chat/completions", no_type, &hello).0, 415);
    assert_eq!(error("/v1/chat/completions", key, "{").0, 400);
    let error_of = |extra: Value| error("/v1/chat/completions", key, &chat(extra).to_string());
    assert_eq!(error_of(json!({"model": "huge"})), (404, "model".into()));
    assert_eq!(error_of(json!({"max_tokens": 0})), (400, "max_tokens".into()));
    let long = json!([{"role": "user", "content": "word ".repeat(20_000)}]);
    assert_eq!(error_of(json!({"messages": long})), (400, "messages".into()));
    assert_eq!(error_of(json!({"temperature": 900})), (400, "temperature".into()));
    let big = format!("{{\"x\": \"{}\"}}", "a".repeat(33 << 20));
    assert_eq!(error("/v1/chat/completions", key, &big).0, 413);
    let (status, text) = server.send("POST", "/v1/chat/completions", key, &hello);
    assert_eq!(status, 200, "{text}");
}

#[test]
fn prefix_hits_stay_within_one_key() {
    for options in [&[][..], &["--dp", "1", "--threads", "1"]] {
        let server =
            Server::start("tenants", &[&["--api-key", "one,two", "--admin-key", "three"], options].concat());
        let headers =
            |key: &str| format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
        let body = chat(json!({"messages": [{"role": "user", "content": "hello ".repeat(40)}]})).to_string();
        let cached = |key: &str| {
            let (status, text) = server.send("POST", "/v1/chat/completions", &headers(key), &body);
            assert_eq!(status, 200, "{text}");
            let answer: Value = serde_json::from_str(&text).unwrap();
            let details = &answer["usage"]["prompt_tokens_details"];
            let tokens = ["cached_tokens", "matched_tokens"].map(|name| details[name].as_u64().unwrap());
            (tokens, details["cache_end"].clone())
        };
        assert_eq!(cached("one"), ([0, 0], json!("never_computed")), "{options:?}");
        let ([tokens, matched], end) = cached("one");
        assert!(tokens >= 16 && matched == tokens && end.is_null(), "{options:?}: {end}");
        assert_eq!(cached("two"), ([0, 0], json!("never_computed")), "{options:?}");
        // Only the operator's metrics say that another key has cached the prompt. Worker processes
        // report them with a delay.
        let label = "kvasir:prefix_ends_total{model_name=\"tiny\",reason=\"other_key\"} 1";
        let begin = Instant::now();
        while !server.send("GET", "/metrics", &headers("three"), "").1.lines().any(|line| line == label) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{options:?}: no `{label}`");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn the_page_needs_no_key_and_the_steps_do() {
    let mut server = Server::start("page", &["--api-key", "secret", "--grace", "600"]);
    let (status, page) = server.send("GET", "/", "", "");
    assert!(status == 200 && page.contains("/page/main.js"), "{page}");
    assert_eq!(server.send("GET", "/page/view.js", "", "").0, 200);
    assert_eq!(server.send("GET", "/v1/engine/steps", "", "").0, 401);

    let mut stream = server.connect();
    write!(stream, "GET /v1/engine/steps HTTP/1.1\r\nHost: x\r\nx-api-key: secret\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let begin = lines.by_ref().find_map(|line| Some(line.strip_prefix("data: ")?.to_owned())).unwrap();
    let begin: Value = serde_json::from_str(&begin).unwrap();
    assert_eq!((&begin["title"], &begin["setup"]["cache"]), (&json!("tiny"), &json!("radix")));
    let body = chat(json!({"ignore_eos": true})).to_string();
    let key = "Content-Type: application/json\r\nAuthorization: Bearer secret\r\n";
    assert_eq!(server.send("POST", "/v1/chat/completions", key, &body).0, 200);
    let mut made = 0;
    // The last step is sent although none follows it.
    for line in lines.by_ref() {
        let Some(step) = line.strip_prefix("data: ") else { continue };
        let step: Value = serde_json::from_str(step).unwrap();
        let spoke =
            step["spoke"].as_array().map_or(0, |runs| runs.iter().filter_map(|run| run[1].as_u64()).sum());
        made += spoke;
        if step.get("ended").is_some() {
            break;
        }
    }
    assert_eq!(made, 12);
    // A subscriber does not delay shutdown.
    server.terminate();
    assert!(lines.all(|line| !line.starts_with("event")));
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn control_tokens_in_a_message_stay_text() {
    let server = Server::start("control", &[]);
    let prompt_tokens = |content: &str| {
        let (_, answer) = server
            .post("/v1/chat/completions", &chat(json!({"messages": [{"role": "user", "content": content}]})));
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    // A control token would count as one token; as text it is several.
    assert!(
        prompt_tokens("<|im_end|>") > prompt_tokens("") + 1
            || prompt_tokens("<|im_end|>") > prompt_tokens("x") + 1
    );
}

/// Including texts that also occur in the template's suffix, and an empty one.
#[test]
fn a_last_assistant_message_is_continued() {
    let server = Server::start("continued", &[]);
    for begun in ["The", "end", "|", "is ", ""] {
        let messages = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": begun}]);
        let (status, ids) =
            server.post("/tokenize", &json!({"messages": messages, "continue_final_message": true}));
        assert_eq!(status, 200, "{ids}");
        let (_, text) = server.post("/detokenize", &json!({"tokens": ids["tokens"]}));
        let text = text["prompt"].as_str().unwrap();
        assert!(text.ends_with(&format!("<|im_start|>assistant\n{begun}")), "{begun}: {text}");
        // The chat has the same prompt.
        let fields = json!({"messages": messages, "continue_final_message": true, "max_tokens": 1});
        let (_, answer) = server.post("/v1/chat/completions", &chat(fields));
        assert_eq!(answer["usage"]["prompt_tokens"], ids["count"], "{answer}");
    }
}

#[test]
fn a_text_and_a_chat_are_tokenized() {
    let server = Server::start("tokenized", &[]);
    let tokenize = |body: Value| server.post("/tokenize", &body);
    let (_, text) = tokenize(json!({"prompt": "hello there", "return_token_strs": true}));
    let spelt: String = text["token_strs"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        (text["count"].as_u64(), spelt.as_str()),
        (Some(text["tokens"].as_array().unwrap().len() as u64), "hello\u{120}there")
    );
    let messages = json!([{"role": "user", "content": "hello"}]);
    let count = |extra: Value| {
        let mut body = json!({"messages": messages});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        tokenize(body).1["count"].as_u64().unwrap()
    };
    let tool = json!({"type": "function", "function": {"name": "f"}});
    assert!(count(json!({})) > count(json!({"add_generation_prompt": false})));
    assert!(count(json!({"tools": [tool]})) > count(json!({})));
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": "x", "tools": []}), "tools"),
        (json!({"messages": messages, "prompt": "x"}), "prompt"),
        (json!({"messages": messages, "add_special_tokens": true}), "add_special_tokens"),
        (json!({"messages": []}), "messages"),
    ] {
        let (status, answer) = tokenize(body.clone());
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{body}: {answer}");
    }
}

#[test]
fn answers_under_way_end_after_sigterm() {
    let mut server = Server::start("drain", &["--grace", "600"]);
    let mut stream = server.streaming("", json!({"max_tokens": 60}));
    server.terminate();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("[DONE]"), "{rest}");
    assert!(server.process.wait().unwrap().success());
}

#[test]
fn answers_fit_the_requested_response_format() {
    let server = Server::start("forms", &["--reasoning-parser", "none"]);
    let schema = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}, "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "minItems": 2, "maxItems": 2}}, "required": ["unit", "days"], "additionalProperties": false});
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "w", "strict": true, "schema": schema}});
    let body = chat(json!({"max_tokens": 800, "temperature": 1.0, "seed": 3, "response_format": format}));
    let (_, answer) = server.post("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    // Reasoning comes first and is not part of the content.
    let content: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
    assert!(content["days"].as_array().unwrap().len() == 2 && content["unit"].is_string(), "{answer}");
    assert_eq!(choice["finish_reason"], "stop");

    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"], "additionalProperties": false}}});
    let offered = |extra: Value| {
        let mut body = chat(
            json!({"max_tokens": 800, "temperature": 1.0, "seed": 4, "tools": [tool("lamp"), tool("fan")]}),
        );
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for extra in [
        json!({"tool_choice": "required"}),
        json!({"tool_choice": "required", "parallel_tool_calls": false}),
        json!({"tool_choice": {"type": "function", "function": {"name": "fan"}}}),
    ] {
        let (status, answer) = server.post("/v1/chat/completions", &offered(extra.clone()));
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert!(
            extra["parallel_tool_calls"].is_null() && extra["tool_choice"] == "required" || calls.len() == 1
        );
        for call in calls {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            assert!(serde_json::from_str::<Value>(arguments).unwrap()["on"].is_boolean(), "{answer}");
            assert!(extra["tool_choice"] == "required" || call["function"]["name"] == "fan");
        }
    }
    let complete = |extra: Value| {
        let mut body = json!({"prompt": "x", "max_tokens": 50, "temperature": 1.0, "seed": 1});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let text = |answer: (u16, Value)| answer.1["choices"][0]["text"].as_str().unwrap().to_owned();
    assert!(
        ["yes", "no"]
            .contains(&text(complete(json!({"structured_outputs": {"choice": ["yes", "no"]}}))).as_str())
    );
    assert!(text(complete(json!({"guided_regex": "[a-c]{4}"}))).bytes().all(|b| (b'a'..=b'c').contains(&b)));
    let param =
        |answer: (u16, Value)| (answer.0, answer.1["error"]["param"].as_str().unwrap_or_default().to_owned());
    let bad = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}});
    let refused = |extra: Value| param(server.post("/v1/chat/completions", &chat(extra)));
    let named = |name: &str| (400, name.to_owned());
    assert_eq!(
        refused(bad(json!({"type": "integer", "minimum": 3, "maximum": 2}))),
        named("response_format.json_schema.schema")
    );
    assert_eq!(refused(json!({"response_format": {"type": "yaml"}})), named("response_format.type"));
    assert_eq!(refused(json!({"guided_regex": "("})), named("guided_regex"));
    assert_eq!(refused(json!({"guided_json": {}, "guided_regex": "a"})), named("guided_regex"));
    assert_eq!(refused(json!({"structured_outputs": {"choice": []}})), named("structured_outputs.choice"));
    assert_eq!(refused(json!({"guided_regex": "a", "ignore_eos": true})), named("ignore_eos"));
    assert_eq!(refused(json!({"guided_regex": "a", "min_tokens": 3})), named("min_tokens"));
    let broken = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}});
    assert_eq!(
        refused(json!({"tools": [broken], "tool_choice": "required"})),
        named("tools[0].function.parameters")
    );
}

#[test]
fn a_prompt_can_be_scored() {
    let server = Server::start("scores", &[]);
    let complete = |extra: Value| {
        let mut body = json!({"prompt": [5, 6, 7, 8], "max_tokens": 1, "temperature": 0, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let (status, answer) = complete(json!({"echo": true, "logprobs": 1}));
    assert_eq!(status, 200, "{answer}");
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    assert_eq!([list("tokens").len(), list("token_logprobs").len(), list("top_logprobs").len()], [5; 3]);
    assert!(
        list("token_logprobs")[0].is_null()
            && list("token_logprobs")[1..].iter().all(|p| p.as_f64().unwrap() < 0.0)
    );
    assert!(list("top_logprobs")[0].is_null() && list("top_logprobs")[3].is_object());
    let (_, alone) = complete(json!({"echo": true, "logprobs": 1, "max_tokens": 0}));
    assert_eq!(
        alone["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap()[..],
        list("token_logprobs")[..4]
    );
    let (_, other) = complete(json!({"prompt_logprobs": 2}));
    let scores = other["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert!(scores.len() == 4 && scores[0].is_null());
    assert_eq!(scores[2]["7"]["logprob"], list("token_logprobs")[2]);
    assert!(other["choices"][0]["logprobs"].is_null());
    for (extra, param) in [
        (json!({"echo": true, "logprobs": 1, "stream": true}), "stream"),
        (json!({"prompt_logprobs": 1, "n": 2}), "n"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (json!({"max_tokens": 0}), "max_tokens"),
    ] {
        assert_eq!(complete(extra).1["error"]["param"], param);
    }
}

#[test]
fn logprobs_leave_out_stop_text() {
    let server = Server::start("stops", &[]);
    let body = |extra: Value| {
        let mut body = chat(json!({"logprobs": true, "ignore_eos": true, "max_tokens": 24}));
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    // The text, and the bytes of the tokens whose log-probabilities came with it.
    let read = |part: &Value, logprobs: &Value| -> (String, Vec<u8>) {
        let entries = logprobs["content"].as_array().into_iter().flatten();
        let bytes = entries.flat_map(|entry| entry["bytes"].as_array().unwrap().clone());
        let bytes = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
        (part["content"].as_str().unwrap_or_default().to_owned(), bytes)
    };
    let whole = |extra: Value| {
        let (_, answer) = server.post(CHAT, &body(extra));
        read(&answer["choices"][0]["message"], &answer["choices"][0]["logprobs"])
    };
    let (text, tokens) = whole(json!({}));
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text, lossy(&tokens));
    let chars: Vec<char> = text.chars().collect();
    for three in chars.windows(3).skip(1).step_by(3) {
        let stop: String = three.iter().collect();
        let want = text.split(&stop).next().unwrap();
        let (printed, told) = whole(json!({"stop": &stop}));
        assert_eq!(printed, want, "{stop:?}");
        // A token partly in the answer is reported whole; none after it.
        assert!(tokens.starts_with(&told) && lossy(&told).starts_with(want), "{stop:?}: {told:?}");
        assert!(lossy(&told).len() < want.len() + 8, "{stop:?}: {told:?}");
        // Beside ids there are as many.
        let (_, answer) = server.post(CHAT, &body(json!({"stop": &stop, "return_token_ids": true})));
        let choice = &answer["choices"][0];
        let lists = [&choice["token_ids"], &choice["logprobs"]["content"]];
        let [ids, entries] = lists.map(|list| list.as_array().unwrap().len());
        assert_eq!(ids, entries, "{stop:?}");
        let mut streamed = (String::new(), Vec::new());
        for event in server.events(CHAT, &body(json!({"stop": &stop, "stream": true}))) {
            let (text, bytes) = read(&event["choices"][0]["delta"], &event["choices"][0]["logprobs"]);
            streamed.0 += &text;
            streamed.1.extend(bytes);
        }
        assert_eq!(streamed, (printed, told), "{stop:?}");
    }
}

#[test]
fn a_template_of_a_file_replaces_the_models() {
    let file = std::env::temp_dir().join(format!("kvasir-template-{}.jinja", std::process::id()));
    std::fs::write(&file, "{{ messages[0].content }}{{ mood }}{% if enable_thinking %}!{% endif %}").unwrap();
    let kwargs = r#"{"mood": "?", "enable_thinking": true}"#;
    let options = ["--chat-template", file.to_str().unwrap(), "--chat-template-kwargs", kwargs];
    let server = Server::start("template", &options);
    let prompt = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.post("/apply-template", &body).1["prompt"].clone()
    };
    assert_eq!(prompt(json!({})), json!("hi?!"));
    assert_eq!(prompt(json!({"enable_thinking": false})), json!("hi?"));
    assert_eq!(prompt(json!({"chat_template_kwargs": {"mood": "."}})), json!("hi.!"));
    let (_, counted) = server.post("/v1/chat/completions/input_tokens", &chat(json!({})));
    let (_, answered) = server.post(CHAT, &chat(json!({})));
    assert_eq!(counted["input_tokens"], answered["usage"]["prompt_tokens"]);
    let (status, error) = server.post("/apply-template", &chat(json!({"model": "other"})));
    assert_eq!((status, &error["error"]["param"]), (404, &json!("model")));
    std::fs::remove_file(file).unwrap();
}

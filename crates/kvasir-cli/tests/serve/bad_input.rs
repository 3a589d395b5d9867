//! Hostile inputs known to have broken similar servers: each gets its exact error, and does no
//! harm.
//!
//! After each group the process is alive, the KV pool is whole, and a concurrent stream was
//! unaffected. Numbers in parentheses refer to the list of known inputs.

use super::bystander::Bystander;
use super::server::{Answer, CHAT, COMPLETIONS, JSON, Server, chat, head};
use serde_json::{Map, Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
};

/// Status and error parameter of the response to a body.
fn refusal(server: &Server, path: &str, body: &str) -> (u16, String) {
    let answer = server.exchange("POST", path, JSON, body);
    (answer.status, answer.param())
}

/// The process is still running and its whole KV pool is free: a prompt that needs nearly every
/// slot is served.
fn unharmed(server: &mut Server) {
    assert!(server.process.try_wait().unwrap().is_none(), "the process has ended");
    let (status, models) = server.send("GET", "/v1/models", "", "");
    assert_eq!(status, 200);
    let models: Value = serde_json::from_str(&models).unwrap();
    let most = models["data"][0]["max_model_len"].as_u64().unwrap() as usize;
    let body = json!({"prompt": vec![7; most - 1], "max_tokens": 1, "cache_salt": "nobody"});
    let (status, answer) = server.post(COMPLETIONS, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens"], most - 1);
}

fn server(name: &str) -> Server {
    let options = ["--kv-capacity", "1024", "--max-model-len", "1024", "--client-timeout", "10"];
    Server::start(name, &options)
}

#[test]
fn bodies_that_are_no_requests() {
    let mut server = server("bodies");
    let bystander = Bystander::begin(&server);
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let keys: Map<String, Value> = (0..1_000_000).map(|i| (i.to_string(), Value::Null)).collect();
    let keys = Value::Object(keys).to_string();
    let long = |more: usize| format!("{{\"x\": \"{}\"}}", "a".repeat((32 << 20) - 9 + more));
    let cases = [
        ("(1) a byte too long", long(1), 413),
        ("(1) as long as may be", long(0), 400),
        ("(5) too deep", deep, 400),
        ("(6) a million keys", keys, 400),
        ("(6) a key twice", r#"{"n": 1, "n": 2}"#.into(), 400),
        ("(7) NaN", r#"{"temperature": NaN}"#.into(), 400),
        ("(7) past every number", r#"{"temperature": 1e999}"#.into(), 400),
        ("(8) half a character", r#"{"model": "\ud800"}"#.into(), 400),
        ("(9) a byte order mark", "\u{feff}{}".into(), 400),
        ("no object", "[]".into(), 400),
        ("nothing", String::new(), 400),
        ("half of one", r#"{"messages": ["#.into(), 400),
    ];
    for (name, body, status) in cases {
        assert_eq!(refusal(&server, CHAT, &body).0, status, "{name}");
    }
    // (8) Invalid UTF-8: an impossible byte, an overlong encoding, a lone surrogate.
    for wrong in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80"] {
        let body = [b"{\"model\": \"", wrong, b"\"}"].concat();
        let mut stream = server.connect();
        stream.write_all(&[head(CHAT, "", body.len()).as_bytes(), &body].concat()).unwrap();
        assert_eq!(Answer::read(stream).status, 400, "(8) {wrong:x?}");
    }
    // (2) An excessive `content-length` is rejected at once.
    let mut stream = server.connect();
    stream.write_all(head(CHAT, "", (32 << 20) + 1).as_bytes()).unwrap();
    // The server keeps the connection open to drain the body until its timeout.
    let mut status = String::new();
    BufReader::new(stream).read_line(&mut status).unwrap();
    assert!(status.contains(" 413 "), "{status}");
    let plain = chat(json!({})).to_string();
    for kind in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"] {
        let (status, _) = server.send("POST", CHAT, &format!("Content-Type: {kind}\r\n"), &plain);
        assert_eq!(status, 415, "(10) {kind}");
    }
    let (status, _) = server.send("POST", CHAT, &format!("{JSON}Content-Encoding: gzip\r\n"), &plain);
    assert_eq!(status, 415, "(11) nothing is unpacked");
    bystander.went_on();
    unharmed(&mut server);
}

#[test]
fn connections_that_end_badly() {
    let mut server = server("connections");
    let bystander = Bystander::begin(&server);
    let long = chat(json!({"stream": true, "max_tokens": 900, "ignore_eos": true})).to_string();
    // (2) (3) (4) A promised body that never arrives, endless chunks: rejected by timeout.
    let unending = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: x\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"a\":\r\n"
    );
    // (3) (12) (13) Endless heads, another protocol, pipelined requests.
    let live = "GET /live HTTP/1.1\r\nHost: x\r\n\r\n";
    let starts = [
        (head(CHAT, "", long.len() + 100) + &long, Some(408)),
        (unending, Some(408)),
        (format!("POST {CHAT} HTTP/1.1\r\nHost: "), None),
        (String::new(), None),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), None),
        (live.repeat(50), Some(200)),
        (format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "../".repeat(100)), Some(404)),
    ];
    // (13) Disconnecting with unread responses resets the connection.
    let mut hasty = server.connect();
    let _ = hasty.write_all(live.repeat(50).as_bytes());
    assert!(hasty.peek(&mut [0]).is_ok_and(|came| came > 0));
    drop(hasty);
    let mut open = Vec::new();
    for (start, status) in starts {
        let mut stream = server.connect();
        // The server may close early, so a write may fail.
        let _ = stream.write_all(start.as_bytes());
        open.push((stream, start, status));
    }
    // (14) A client that never reads; (15) clients that disconnect while queued, in prefill, or
    // between chunks.
    let mut silent = server.connect();
    let _ = write!(silent, "{}{long}", head(CHAT, "", long.len()));
    for round in 0..200 {
        let mut leaver = server.connect();
        let _ = write!(leaver, "{}{long}", head(CHAT, "", long.len()));
        if round % 8 == 0 {
            let _ = leaver.read(&mut [0; 64]);
        }
        let _ = leaver.shutdown(Shutdown::Both);
    }
    bystander.went_on();
    for (stream, start, status) in open {
        let mut answer = Vec::new();
        // The server closes the connection.
        let _ = BufReader::new(stream).read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let got = answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
        assert_eq!(got, status, "{}: {answer}", start.chars().take(60).collect::<String>());
    }
    drop(silent);
    unharmed(&mut server);
}

#[test]
fn parameters_out_of_bounds() {
    let mut server = server("parameters");
    let bystander = Bystander::begin(&server);
    let many_bias: Map<String, Value> = (0..100_000).map(|i| (i.to_string(), json!(1))).collect();
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let media =
        |kind: &str, url: &str| json!([{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}]);
    let says = |role: &str, content: Value| json!([{"role": role, "content": content}]);
    let cases = [
        (16, json!({"n": 0}), "n"),
        (16, json!({"n": -1}), "n"),
        (16, json!({"n": 1e9}), "n"),
        // Beyond the admission limits in any case.
        (16, json!({"n": 128, "max_tokens": 900}), "n"),
        (17, json!({"max_tokens": 0}), "max_tokens"),
        (17, json!({"max_tokens": -1}), "max_tokens"),
        (17, json!({"max_tokens": 1u64 << 32}), "max_tokens"),
        (17, json!({"max_tokens": 1u64 << 63}), "max_tokens"),
        (18, json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (18, json!({"logprobs": true, "top_logprobs": 1e9}), "top_logprobs"),
        (18, json!({"logprobs": true, "top_logprobs": -1}), "top_logprobs"),
        (18, json!({"prompt_logprobs": -1}), "prompt_logprobs"),
        (19, json!({"temperature": -1}), "temperature"),
        (19, json!({"temperature": 100.1}), "temperature"),
        (20, json!({"top_p": -0.1}), "top_p"),
        (20, json!({"top_p": 1.0001}), "top_p"),
        (20, json!({"top_k": 2147483647}), "top_k"),
        (20, json!({"min_p": 1.1}), "min_p"),
        (21, json!({"presence_penalty": 2.1}), "presence_penalty"),
        (21, json!({"frequency_penalty": -2.1}), "frequency_penalty"),
        (21, json!({"repetition_penalty": 0}), "repetition_penalty"),
        (22, json!({"logit_bias": many_bias}), "logit_bias"),
        (22, json!({"logit_bias": {"-1": 1}}), "logit_bias"),
        (22, json!({"logit_bias": {"+1": 1}}), "logit_bias"),
        (22, json!({"logit_bias": {"01": 1}}), "logit_bias"),
        (22, json!({"logit_bias": {"512": 1}}), "logit_bias"),
        (22, json!({"logit_bias": {"4294967295": 1}}), "logit_bias"),
        (22, json!({"logit_bias": {"1": 1e300}}), "logit_bias"),
        (23, json!({"stop": ""}), "stop"),
        (23, json!({"stop": vec!["a"; 500_000]}), "stop"),
        (24, json!({"seed": (1u128 << 64) as f64}), "seed"),
        (24, json!({"seed": 1e30}), "seed"),
        (28, json!({"min_tokens": 5, "max_tokens": 4}), "min_tokens"),
        (29, json!({"messages": says("user", json!("word ".repeat(5000)))}), "messages"),
        (31, json!({"priority": 1e12}), "priority"),
        (33, json!({"cache_salt": 7}), "cache_salt"),
        (34, json!({"messages": []}), "messages"),
        (34, json!({"messages": says("king", json!("x"))}), "messages[0].role"),
        (35, json!({"messages": says("user", Value::Null)}), "messages[0].content"),
        (35, json!({"messages": says("user", json!([]))}), "messages[0].content"),
        (35, json!({"messages": says("user", json!([{"type": "text"}]))}), "messages[0].content[0].text"),
        (
            36,
            json!({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}),
            "messages[0].tool_call_id",
        ),
        (37, json!({"tools": vec![tool("a"); 10_000]}), "tools"),
        (37, json!({"tools": [tool("a\"b")]}), "tools[0].function.name"),
        (37, json!({"tools": [tool("(a*)*b")]}), "tools[0].function.name"),
        (
            38,
            json!({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "b"}}}),
            "tool_choice.function.name",
        ),
        (39, json!({"chat_template_kwargs": {"messages": []}}), "chat_template_kwargs.messages"),
        (
            39,
            json!({"chat_template_kwargs": {"add_generation_prompt": 1}}),
            "chat_template_kwargs.add_generation_prompt",
        ),
        (
            46,
            json!({"messages": media("image_url", "http://169.254.169.254/")}),
            "messages[0].content[0].type",
        ),
        (46, json!({"messages": media("image_url", "file:///etc/passwd")}), "messages[0].content[0].type"),
        (46, json!({"messages": media("video_url", "gopher://x")}), "messages[0].content[0].type"),
    ];
    for (number, extra, param) in cases {
        let name: String = extra.to_string().chars().take(80).collect();
        assert_eq!(
            refusal(&server, CHAT, &chat(extra).to_string()),
            (400, param.into()),
            "({number}) {name}"
        );
    }
    assert_eq!(
        refusal(&server, CHAT, &chat(json!({"model": "gpt-9"})).to_string()),
        (404, "model".into()),
        "(27)"
    );
    for (prompt, param) in [
        (json!([-1]), "prompt"),
        (json!([512]), "prompt"),
        (json!([4294967296u64]), "prompt"),
        (json!([1u64 << 31]), "prompt"),
        (json!([]), "prompt"),
        (json!([[1], []]), "prompt[1]"),
        (json!([[[1]]]), "prompt[0]"),
        (json!(vec!["x"; 1025]), "prompt"),
        (json!(vec![7; 1024]), "prompt"),
        (json!(vec![7; 1025]), "prompt"),
    ] {
        let name: String = prompt.to_string().chars().take(40).collect();
        let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
        assert_eq!(refusal(&server, COMPLETIONS, &body), (400, param.into()), "(25) (29) {name}");
    }
    // Beyond the admission limits in any case, so 400 instead of 429.
    for extra in [json!({"max_tokens": 20}), json!({"max_tokens": 1, "n": 2})] {
        let mut body = json!({"prompt": vec!["x"; 1024]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_eq!(refusal(&server, COMPLETIONS, &body.to_string()), (400, "prompt".into()), "{extra}");
    }
    // (32) Session and model names are looked up, never used as paths.
    for name in ["../../etc/passwd", "%2e%2e%2f", &"s".repeat(1 << 20)] {
        let (status, param) = refusal(&server, CHAT, &chat(json!({"session": name})).to_string());
        assert_eq!((status, param.as_str()), (404, "session"));
    }
    for path in ["/v1/sessions/..%2f..%2fetc%2fpasswd", "/v1/models/..%2f..%2fetc"] {
        assert_eq!(server.send("GET", path, "", "").0, 404, "{path}");
    }
    bystander.went_on();
    unharmed(&mut server);
}

#[test]
fn unsupported_response_formats_are_refused() {
    let mut server = server("grammars");
    let bystander = Bystander::begin(&server);
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}});
    let place = "response_format.json_schema.schema";
    let deep = (0..100).fold(json!({}), |inner, _| json!({"type": "array", "items": inner}));
    let chain: String = (0..5000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let values: Vec<String> = (0..100_000).map(|i| format!("value {i}")).collect();
    for (number, extra, param) in [
        (
            41,
            json!({"guided_grammar": format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000))}),
            "guided_grammar",
        ),
        (41, json!({"guided_grammar": format!("start: r0\n{chain}")}), "guided_grammar"),
        (41, json!({"guided_grammar": "start: nothing"}), "guided_grammar"),
        (42, json!({"guided_regex": "(?<=x)"}), "guided_regex"),
        (42, json!({"guided_regex": "*a"}), "guided_regex"),
        (42, json!({"guided_regex": "(".repeat(60_000)}), "guided_regex"),
        (43, schema(json!({"$ref": "#/$defs/missing"})), place),
        (43, schema(json!({"$ref": "#"})), place),
        (
            43,
            schema(
                json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
            ),
            place,
        ),
        (43, schema(json!({"allOf": [{"$ref": "#"}]})), place),
        (43, schema(json!({"$ref": "http://169.254.169.254/"})), place),
        (43, schema(json!({"enum": values})), place),
        (43, schema(json!({"type": "array", "items": {}, "minItems": 1_000_000_000u64})), place),
        (43, schema(json!({"type": "array", "uniqueItems": true, "items": {"type": "integer"}})), place),
        (43, schema(deep), place),
        (43, schema(json!({"type": "integer", "minimum": 5, "maximum": 3})), place),
        (45, json!({"guided_grammar": "start: <|nobody|>"}), "guided_grammar"),
    ] {
        let name: String = extra.to_string().chars().take(80).collect();
        let body = chat(extra).to_string();
        assert_eq!(refusal(&server, CHAT, &body), (400, param.into()), "({number}) {name}");
    }
    // (43) The error names the tool's schema by the endpoint's own path.
    let wrong = json!({"type": "object", "properties": {"x": {"type": "nothing"}}});
    let tool = |name: &str, schema: Value| json!({"type": "function", "function": {"name": name, "parameters": schema}});
    let tools = json!([tool("a", json!({"type": "object"})), tool("b", wrong.clone())]);
    let named = json!({"type": "function", "function": {"name": "b"}});
    for choice in [json!("required"), named] {
        let body = chat(json!({"tools": tools, "tool_choice": choice})).to_string();
        assert_eq!(refusal(&server, CHAT, &body), (400, "tools[1].function.parameters".into()));
    }
    let body = chat(json!({"tools": [{"name": "b", "input_schema": wrong}], "tool_choice": {"type": "any"}}));
    let answer = server.exchange("POST", "/v1/messages", JSON, &body.to_string());
    assert_eq!((answer.status, answer.param().as_str()), (400, "tools[0].input_schema"), "{}", answer.body);
    // (41) (42) (44) Inputs that only look dangerous are served.
    let told = |text: &str| schema(json!({"type": "boolean", "description": text}));
    for extra in [
        json!({"guided_grammar": "start: start \"a\" | \"b\""}),
        json!({"guided_regex": "(a*)*b"}),
        json!({"guided_regex": "a{0,2147483648}b"}),
        told("one"),
        told("two"),
    ] {
        let (status, answer) = server.post(CHAT, &chat(extra.clone()));
        assert_eq!(status, 200, "{extra}: {answer}");
    }
    bystander.went_on();
    unharmed(&mut server);
}

#[test]
fn odd_inputs_that_are_right() {
    let mut server = server("odd");
    let bystander = Bystander::begin(&server);
    for (number, extra) in [
        (7, json!({"temperature": -0.0})),
        (8, json!({"messages": [{"role": "user", "content": "a\u{0}b"}]})),
        (19, json!({"temperature": 1e-45})),
        (22, json!({"logit_bias": (0..512).map(|id| (id.to_string(), json!(-100))).collect::<Map<_, _>>()})),
        (23, json!({"stop": ["\u{1f600}", "e"]})),
        (31, json!({"priority": i32::MIN})),
        (33, json!({"cache_salt": "x".repeat(1 << 20)})),
        (34, json!({"messages": [{"role": "system", "content": "x"}]})),
        (34, json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})),
    ] {
        let name: String = extra.to_string().chars().take(80).collect();
        let (status, answer) = server.post(CHAT, &chat(extra));
        assert_eq!(status, 200, "({number}) {name}: {answer}");
    }
    bystander.went_on();
    unharmed(&mut server);
}

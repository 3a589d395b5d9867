//! Voluntary tool calls of the built-in model at high temperature: valid under constraint,
//! unchanged when greedy.

use super::server::Server;
use serde_json::{Value, json};
use std::{fs, path::Path};

const CHAT: &str = "/v1/chat/completions";
const QUESTIONS: [&str; 6] = [
    "What is the weather in Paris?",
    "What time is it in Oslo?",
    "What is 1234 * 77?",
    "Is it raining in Berlin?",
    "Calculate 98 / 7",
    "What time is it in Lima?",
];

fn server(name: &str, options: &[&str], environment: &[(&str, &str)]) -> Server {
    let folder = std::env::temp_dir().join(format!("kvasir-calls-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir/kvasir-mini.gguf");
    fs::copy(file, folder.join("model.gguf")).unwrap();
    Server::of_model(folder, options, environment)
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "A tool", "parameters": parameters}})
}

fn tools() -> Value {
    let text = json!({"type": "string"});
    let unit = json!({"type": "string", "enum": ["C", "F"]});
    json!([
        tool(
            "get_weather",
            json!({"type": "object", "properties": {"city": text, "unit": unit}, "required": ["city"]})
        ),
        tool(
            "calculator",
            json!({"type": "object", "properties": {"expression": text}, "required": ["expression"]})
        ),
        tool("clock", json!({"type": "object", "properties": {"city": text}, "required": ["city"]})),
        tool("ping", Value::Null),
    ])
}

fn tool_request(question: &str, extra: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": question}], "max_tokens": 300, "tools": tools()});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Answers that ended by themselves: question and message.
fn answers(server: &Server, temperature: f64, n: u32) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for (seed, question) in QUESTIONS.into_iter().enumerate() {
        let sampled = json!({"temperature": temperature, "n": n, "seed": seed * 1000});
        let (status, answer) = server.post(CHAT, &tool_request(question, sampled));
        assert_eq!(status, 200, "{answer}");
        let choices = answer["choices"].as_array().unwrap().iter();
        let whole = choices.filter(|choice| choice["finish_reason"] != "length");
        all.extend(whole.map(|choice| (question, choice["message"].clone())));
    }
    all
}

fn calls(message: &Value) -> impl Iterator<Item = (&str, &str)> {
    message["tool_calls"].as_array().into_iter().flatten().map(|call| {
        (call["function"]["name"].as_str().unwrap(), call["function"]["arguments"].as_str().unwrap())
    })
}

fn fits(name: &str, arguments: &str) -> bool {
    let Ok(Value::Object(arguments)) = serde_json::from_str(arguments) else { return false };
    let (needed, free): (&[&str], &[&str]) = match name {
        "get_weather" => (&["city"], &["unit"]),
        "calculator" => (&["expression"], &[]),
        "clock" => (&["city"], &[]),
        "ping" => return true,
        _ => return false,
    };
    needed.iter().all(|key| arguments.contains_key(*key))
        && arguments.iter().all(|(key, value)| match value.as_str() {
            Some(text) if key == "unit" => ["C", "F"].contains(&text),
            value => value.is_some() && (needed.contains(&key.as_str()) || free.contains(&key.as_str())),
        })
}

#[test]
fn every_call_fits_its_tool_and_can_be_sent_back() {
    let server = server("fit", &[], &[]);
    let mut made = 0;
    for (question, message) in answers(&server, 1.5, 24) {
        let mut messages = vec![json!({"role": "user", "content": question}), message.clone()];
        for (at, (name, arguments)) in calls(&message).enumerate() {
            made += 1;
            assert!(fits(name, arguments), "{name}: {arguments}");
            let id = message["tool_calls"][at]["id"].clone();
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": "none"}));
        }
        if messages.len() > 2 && made % 8 == 1 {
            let (status, answer) =
                server.post(CHAT, &tool_request(question, json!({"messages": messages, "max_tokens": 1})));
            assert_eq!(status, 200, "{answer}");
        }
    }
    assert!(made > 40, "{made}");
}

#[test]
fn unconstrained_calls_are_returned_as_written() {
    for (options, environment) in
        [(&["--constrain-tool-calls", "off"][..], &[][..]), (&[], &[("KVASIR_CONSTRAIN_TOOL_CALLS", "off")])]
    {
        let server = server("off", options, environment);
        let all = answers(&server, 1.5, 24);
        let misfits = all
            .iter()
            .flat_map(|(_, message)| calls(message))
            .filter(|(name, arguments)| !fits(name, arguments));
        assert!(misfits.count() > 5);
    }
}

#[test]
fn a_call_that_is_cut_is_no_text_and_says_so() {
    let server = server("cut", &[], &[]);
    let call = |extra: Value| {
        let body = tool_request(QUESTIONS[0], json!({"temperature": 0}));
        let mut body = body.as_object().unwrap().clone();
        body.extend(extra.as_object().unwrap().clone());
        server.post(CHAT, &Value::Object(body)).1["choices"][0].take()
    };
    for choice in ["auto", "required"] {
        for most in 1..16 {
            let cut = call(json!({"max_tokens": most, "tool_choice": choice}));
            assert_eq!(cut["finish_reason"], "length");
            assert_eq!(cut["message"]["content"].as_str().unwrap_or_default(), "", "{most}: {cut}");
        }
        for stop in [json!({"stop": "Par"}), json!({"stop_regex": "Par"}), json!({"stop": "get_"})] {
            let mut extra = stop.clone();
            extra["tool_choice"] = choice.into();
            let cut = call(extra);
            assert_eq!(cut["finish_reason"], "stop", "{stop}: {cut}");
            assert_eq!(cut["message"]["content"].as_str().unwrap_or_default(), "", "{stop}: {cut}");
        }
    }
}

#[test]
fn a_call_that_a_stop_cuts_is_incomplete_in_responses() {
    let server = server("incomplete", &[], &[]);
    let mut tools = tools();
    for tool in tools.as_array_mut().unwrap() {
        let mut function = tool["function"].take();
        function["type"] = "function".into();
        *tool = function;
    }
    for (stop, status) in [(json!("Par"), "incomplete"), (Value::Null, "completed")] {
        let body = json!({"input": QUESTIONS[0], "tools": tools, "temperature": 0, "stop": stop});
        let (code, answer) = server.post("/v1/responses", &body);
        let call = answer["output"].as_array().and_then(|output| output.last()).cloned().unwrap_or_default();
        let found = (code, &call["type"], &call["status"]);
        assert_eq!(found, (200, &json!("function_call"), &json!(status)), "{answer}");
    }
}

#[test]
fn greedy_answers_do_not_change() {
    let (free, constrained) =
        (server("free", &["--constrain-tool-calls", "off"], &[]), server("bound", &[], &[]));
    for question in QUESTIONS.into_iter().chain(["Hello!", "What is the capital of France?", "Sort 3, 1, 2"])
    {
        let body = tool_request(question, json!({"temperature": 0}));
        let message = |server: &Server| {
            let mut message = server.post(CHAT, &body).1["choices"][0]["message"].clone();
            // Call ids are random.
            message["tool_calls"]
                .as_array_mut()
                .into_iter()
                .flatten()
                .for_each(|call| call["id"] = Value::Null);
            message
        };
        assert_eq!(message(&free), message(&constrained), "{question}");
    }
}

#[test]
fn only_a_strict_schema_that_cannot_be_compiled_is_refused() {
    let server = server("strict", &[], &[]);
    let no_object =
        json!([tool("ping", json!({"type": "object"})), tool("clock", json!({"type": "string"}))]);
    let extra = json!({"tools": no_object, "temperature": 0});
    let (_, answer) = server.post(CHAT, &tool_request("What time is it in Oslo?", extra));
    let (_, arguments) = calls(&answer["choices"][0]["message"]).next().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{answer}");
    let offered = |strict: Value| {
        let mut broken =
            tool("clock", json!({"type": "object", "properties": {"city": {"type": "nonsense"}}}));
        broken["function"]["strict"] = strict;
        tool_request(
            "What time is it in Oslo?",
            json!({"tools": [tool("ping", json!({"type": "object"})), broken], "temperature": 0}),
        )
    };
    let (status, answer) = server.post(CHAT, &offered(json!(false)));
    let (name, arguments) = calls(&answer["choices"][0]["message"]).next().unwrap();
    assert!(status == 200 && name == "clock", "{answer}");
    assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{answer}");
    let (status, answer) = server.post(CHAT, &offered(json!(true)));
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("tools[1].function.parameters")),
        "{answer}"
    );
}

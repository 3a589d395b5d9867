//! Tools beside a response format in all APIs: an answer of the built-in model is either a call or in the
//! format, streamed or not.

use super::server::{CHAT, JSON, Server};
use serde_json::{Value, json};

const WEATHER: &str = "What is the weather in Paris?";
const CAPITAL: &str = "Give me France with the keys country and capital as JSON.";

fn server() -> Server {
    Server::built_in(&[]).0
}

fn city() -> Value {
    json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
}

fn format() -> Value {
    let name = json!({"type": "string", "maxLength": 40});
    let properties = json!({"country": name, "capital": name});
    json!({"type": "object", "properties": properties, "required": ["country", "capital"]})
}

/// Whether the text is in the format.
fn fits(text: &str) -> bool {
    let Ok(Value::Object(value)) = serde_json::from_str(text) else { return false };
    value.len() == 2 && ["country", "capital"].iter().all(|key| value.get(*key).is_some_and(Value::is_string))
}

fn is_city(arguments: &str) -> bool {
    serde_json::from_str::<Value>(arguments).is_ok_and(|arguments| arguments["city"].is_string())
}

fn with(body: &Value, extra: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The events of a stream of any of the APIs.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let (status, text) = server.send("POST", path, JSON, &body.to_string());
    assert_eq!(status, 200, "{text}");
    let lines = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    lines.filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn chat(question: &str) -> Value {
    let tool = json!({"name": "get_weather", "description": "A tool", "parameters": city()});
    json!({
        "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120,
        "tools": [{"type": "function", "function": tool}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": format()}},
    })
}

fn choice(server: &Server, body: &Value) -> Value {
    let (status, answer) = server.post(CHAT, body);
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0].clone()
}

fn is_call(choice: &Value) -> bool {
    let call = &choice["message"]["tool_calls"][0]["function"];
    choice["finish_reason"] == "tool_calls"
        && choice["message"]["content"].as_str().unwrap_or_default().is_empty()
        && call["name"] == "get_weather"
        && is_city(call["arguments"].as_str().unwrap())
}

fn is_formatted(choice: &Value) -> bool {
    choice["finish_reason"] == "stop"
        && choice["message"]["tool_calls"].is_null()
        && fits(choice["message"]["content"].as_str().unwrap())
}

#[test]
fn a_chat_calls_or_answers_in_the_format() {
    let server = server();
    let called = choice(&server, &chat(WEATHER));
    assert!(is_call(&called), "{called}");
    let answered = choice(&server, &chat(CAPITAL));
    assert!(is_formatted(&answered), "{answered}");

    // The turn behind a call's result.
    let id = &called["message"]["tool_calls"][0]["id"];
    let messages = json!([
        {"role": "user", "content": WEATHER}, called["message"],
        {"role": "tool", "tool_call_id": id, "content": "{\"temperature\": 21}"},
    ]);
    let answered = choice(&server, &with(&chat(WEATHER), json!({"messages": messages})));
    assert!(is_formatted(&answered) || is_call(&answered), "{answered}");

    for choice_of_tool in
        [json!("required"), json!({"type": "function", "function": {"name": "get_weather"}})]
    {
        let called = choice(&server, &with(&chat(CAPITAL), json!({"tool_choice": choice_of_tool})));
        assert!(is_call(&called), "{called}");
    }
    let answered = choice(&server, &with(&chat(WEATHER), json!({"tool_choice": "none"})));
    assert!(is_formatted(&answered), "{answered}");
}

#[test]
fn answers_at_high_temperature_are_calls_or_in_the_format() {
    let server = server();
    let formats = [
        chat(WEATHER)["response_format"].clone(),
        json!({"type": "json_object"}),
        json!({"type": "regex", "regex": "it is (warm|cold)"}),
        json!({"type": "grammar", "grammar": "root ::= \"it is \" (\"warm\" | \"cold\")"}),
    ];
    let (mut called, mut answered) = (0, 0);
    for (seed, format) in formats.iter().enumerate() {
        for question in [WEATHER, CAPITAL] {
            let hot = json!({"response_format": format, "temperature": 1.5, "n": 8, "seed": seed});
            let (status, answer) = server.post(CHAT, &with(&chat(question), hot));
            assert_eq!(status, 200, "{answer}");
            for choice in answer["choices"].as_array().unwrap() {
                let message = &choice["message"];
                let text = message["content"].as_str().unwrap_or_default();
                match choice["finish_reason"].as_str() {
                    Some("tool_calls") => {
                        called += 1;
                        assert!(is_call(choice), "{choice}");
                    }
                    Some("stop") => {
                        answered += 1;
                        let is_in_format = match seed {
                            0 => fits(text),
                            1 => serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object()),
                            _ => ["it is warm", "it is cold"].contains(&text),
                        };
                        assert!(is_in_format && message["tool_calls"].is_null(), "{format}: {choice}");
                    }
                    reason => assert_eq!(reason, Some("length"), "{choice}"),
                }
            }
        }
    }
    assert!(called > 5 && answered > 5, "{called} calls, {answered} answers");
}

#[test]
fn a_streamed_chat_streams_the_call_or_the_format() {
    let server = server();
    for question in [WEATHER, CAPITAL] {
        let whole = choice(&server, &chat(question));
        let chunks = events(&server, CHAT, &with(&chat(question), json!({"stream": true})));
        let deltas = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        let text: String = deltas().filter_map(|delta| delta["content"].as_str()).collect();
        let call = |key: &str| -> String {
            let parts = deltas().filter_map(|delta| delta["tool_calls"][0]["function"][key].as_str());
            parts.collect()
        };
        assert_eq!(text, whole["message"]["content"].as_str().unwrap_or_default());
        let wanted = &whole["message"]["tool_calls"][0]["function"];
        assert_eq!(call("name"), wanted["name"].as_str().unwrap_or_default());
        assert_eq!(call("arguments"), wanted["arguments"].as_str().unwrap_or_default());
        let reason = chunks.iter().rev().find_map(|chunk| chunk["choices"][0]["finish_reason"].as_str());
        assert_eq!(reason, whole["finish_reason"].as_str());
        // The format is streamed, not sent as a whole.
        let pieces = deltas().filter(|delta| delta["content"].as_str().is_some_and(|text| !text.is_empty()));
        assert!(question == WEATHER || pieces.count() > 1);
    }
}

#[test]
fn a_response_calls_or_answers_in_the_format() {
    let server = server();
    let body = |question: &str| {
        json!({
            "input": question, "temperature": 0, "max_output_tokens": 120,
            "tools": [{"type": "function", "name": "get_weather", "description": "A tool", "parameters": city()}],
            "text": {"format": {"type": "json_schema", "name": "answer", "schema": format()}},
        })
    };
    let path = "/v1/responses";
    let whole = |body: &Value| {
        let (status, answer) = server.post(path, body);
        assert_eq!((status, &answer["status"]), (200, &json!("completed")), "{answer}");
        let output = answer["output"].as_array().unwrap();
        assert_eq!(output.len(), 1, "{answer}");
        output[0].clone()
    };
    let called =
        |item: &Value| item["type"] == "function_call" && is_city(item["arguments"].as_str().unwrap());
    let answered =
        |item: &Value| item["type"] == "message" && fits(item["content"][0]["text"].as_str().unwrap());
    let item = whole(&body(WEATHER));
    assert!(called(&item), "{item}");
    let item = whole(&body(CAPITAL));
    assert!(answered(&item), "{item}");
    for tool_choice in [json!("required"), json!({"type": "function", "name": "get_weather"})] {
        let one = json!({"tool_choice": tool_choice, "parallel_tool_calls": false});
        let item = whole(&with(&body(CAPITAL), one));
        assert!(called(&item), "{item}");
    }
    for (question, kind) in [(WEATHER, "response.function_call_arguments"), (CAPITAL, "response.output_text")]
    {
        let events = events(&server, path, &with(&body(question), json!({"stream": true})));
        let all = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
        let text: String =
            all(&format!("{kind}.delta")).iter().filter_map(|event| event["delta"].as_str()).collect();
        let item = whole(&body(question));
        let wanted = item["arguments"].as_str().or(item["content"][0]["text"].as_str());
        assert_eq!(Some(text.as_str()), wanted);
        assert_eq!((all(&format!("{kind}.done")).len(), all("response.completed").len()), (1, 1));
    }
}

#[test]
fn a_message_calls_or_answers_in_the_format() {
    let server = server();
    let form = json!({"type": "json_schema", "schema": format()});
    let body = |question: &str| {
        json!({
            "model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120,
            "tools": [{"name": "get_weather", "description": "A tool", "input_schema": city()}],
            "output_format": form,
        })
    };
    let path = "/v1/messages";
    let whole = |body: &Value| {
        let (status, answer) = server.post(path, body);
        assert_eq!(status, 200, "{answer}");
        let content = answer["content"].as_array().unwrap();
        assert_eq!(content.len(), 1, "{answer}");
        (answer["stop_reason"].clone(), content[0].clone())
    };
    let called = |(reason, block): &(Value, Value)| {
        reason == "tool_use" && block["type"] == "tool_use" && block["input"]["city"].is_string()
    };
    let answered = |(reason, block): &(Value, Value)| {
        reason == "end_turn" && block["type"] == "text" && fits(block["text"].as_str().unwrap())
    };
    let found = whole(&body(WEATHER));
    assert!(called(&found), "{found:?}");
    let found = whole(&body(CAPITAL));
    assert!(answered(&found), "{found:?}");
    let mut newer = body(WEATHER);
    newer.as_object_mut().unwrap().remove("output_format");
    let found = whole(&with(&newer, json!({"output_config": {"format": form}})));
    assert!(called(&found), "{found:?}");
    for tool_choice in [
        json!({"type": "any", "disable_parallel_tool_use": true}),
        json!({"type": "tool", "name": "get_weather"}),
    ] {
        let found = whole(&with(&body(CAPITAL), json!({"tool_choice": tool_choice})));
        assert!(called(&found), "{found:?}");
    }
    for (question, kind) in [(WEATHER, "partial_json"), (CAPITAL, "text")] {
        let events = events(&server, path, &with(&body(question), json!({"stream": true})));
        let text: String = events.iter().filter_map(|event| event["delta"][kind].as_str()).collect();
        let (reason, block) = whole(&body(question));
        assert!(if kind == "text" { block["text"] == text.as_str() } else { is_city(&text) }, "{text}");
        assert!(events.iter().any(|event| event["delta"]["stop_reason"] == reason), "{events:?}");
    }
}

#[test]
fn ollama_calls_or_answers_in_the_format() {
    let server = server();
    let tool = json!({"name": "get_weather", "description": "A tool", "parameters": city()});
    let body = |question: &str, stream: bool| {
        json!({
            "model": "tiny", "messages": [{"role": "user", "content": question}], "stream": stream,
            "options": {"temperature": 0, "num_predict": 120}, "format": format(),
            "tools": [{"type": "function", "function": tool}],
        })
    };
    for stream in [false, true] {
        let parts = events(&server, "/api/chat", &body(WEATHER, stream));
        let calls: Vec<&Value> =
            parts.iter().filter_map(|part| part["message"]["tool_calls"].get(0)).collect();
        assert_eq!(calls.len(), 1, "{parts:?}");
        assert!(calls[0]["function"]["arguments"]["city"].is_string(), "{parts:?}");
        let parts = events(&server, "/api/chat", &body(CAPITAL, stream));
        let text: String = parts.iter().filter_map(|part| part["message"]["content"].as_str()).collect();
        assert!(fits(&text), "{parts:?}");
        assert!(parts.iter().all(|part| part["message"]["tool_calls"].is_null()), "{parts:?}");
    }
}

#[test]
fn schemas_of_tools_are_loosened_beside_a_format_unless_strict() {
    let server = server();
    let broken = |strict: bool| {
        let parameters = json!({"type": "object", "properties": {"city": {"type": "nonsense"}}});
        let tool = json!({"name": "get_weather", "description": "A tool", "parameters": parameters, "strict": strict});
        with(&chat(WEATHER), json!({"tools": [{"type": "function", "function": tool}]}))
    };
    let called = choice(&server, &broken(false));
    let arguments = called["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap().is_object(), "{called}");
    let (status, answer) = server.post(CHAT, &broken(true));
    let param = &answer["error"]["param"];
    assert_eq!((status, param), (400, &json!("tools[0].function.parameters")), "{answer}");
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nonsense"}}});
    let (status, answer) = server.post(CHAT, &with(&chat(WEATHER), json!({"response_format": format})));
    let param = &answer["error"]["param"];
    assert_eq!((status, param), (400, &json!("response_format.json_schema.schema")), "{answer}");
}

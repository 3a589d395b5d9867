//! Sessions over HTTP: fork, rewind, chat turns, errors, isolation by key, and disconnects.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_sim::Toy;
use serde_json::{Value, json};

fn id(session: &Value) -> String {
    assert!(session["id"].is_string(), "no session: {session}");
    session["id"].as_str().unwrap().to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// Greedy sampling with a fixed length.
fn greedy(extra: Value) -> Value {
    let mut body = json!({"temperature": 0, "ignore_eos": true, "max_tokens": 6});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

impl Server {
    fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, &body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    fn show(&self, id: &str) -> Value {
        let (status, shown) = self.send("GET", &format!("/v1/sessions/{id}"), "", "");
        assert_eq!(status, 200, "{shown}");
        shown
    }

    fn text(&self, body: Value) -> (String, u64) {
        let answer = self.ok("/v1/completions", greedy(body));
        let cached = number(&answer["usage"]["prompt_tokens_details"]["cached_tokens"]);
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
    }

    fn error(&self, path: &str, body: Value) -> (u16, String) {
        let (status, answer) = self.post(path, &body);
        (status, answer["error"]["param"].as_str().unwrap_or_default().to_owned())
    }
}

fn trunk() -> Vec<u32> {
    (0..64).map(|i| 5 + i * 7 % 90).collect()
}

#[test]
fn forks_answer_as_without_a_session() {
    for cache in [CacheKind::Radix, CacheKind::Cells, CacheKind::Contiguous] {
        let server = Server::start(cache, 1024, &[]);
        let session = server.ok("/v1/sessions", json!({"model": "tiny", "prompt": trunk(), "ttl": 600}));
        assert_eq!((number(&session["length"]), number(&session["cached"])), (64, 64), "{session}");
        assert!(session["messages"].is_null() && number(&session["ttl"]) == 600);
        let trunk_id = id(&session);
        let forks = server.ok(&format!("/v1/sessions/{trunk_id}/fork"), json!({"n": 3}));
        for (n, fork) in (20..).zip(forks["data"].as_array().unwrap()) {
            let shared = if cache == CacheKind::Contiguous { 0 } else { 64 };
            assert_eq!((number(&fork["length"]), number(&fork["cached"])), (64, shared), "{cache}");
            let (answered, cached) = server.text(json!({"session": id(fork), "prompt": [n, n + 1]}));
            assert_eq!(cached, shared, "{cache}");
            let whole: Vec<u32> = trunk().into_iter().chain([n, n + 1]).collect();
            assert_eq!(server.text(json!({"prompt": whole})).0, answered, "{cache}");
            assert_eq!(number(&server.show(&id(fork))["length"]), 64 + 2 + 6);
        }
        // The trunk is unchanged: rewound, continued, and its output is reproduced.
        let path = format!("/v1/sessions/{trunk_id}/rewind");
        let cut = server.ok(&path, json!({"to": 40}));
        assert_eq!(number(&cut["length"]), 40);
        // `cached` reports the state after the rewind.
        assert_eq!(cut["cached"], server.show(&trunk_id)["cached"], "{cache}");
        let first = server.text(json!({"session": trunk_id, "prompt": ""})).0;
        assert_eq!(server.text(json!({"prompt": trunk()[..40]})).0, first, "{cache}");
        server.ok(&path, json!({"to": 40}));
        assert_eq!(server.text(json!({"session": trunk_id, "prompt": ""})).0, first, "{cache}");
    }
}

#[test]
fn keep_ends_the_other_forks_of_a_trunk() {
    let server = Server::start(CacheKind::Radix, 1024, &[]);
    let trunk = id(&server.ok("/v1/sessions", json!({"prompt": trunk()})));
    let other = id(&server.ok("/v1/sessions", json!({"prompt": [5, 6]})));
    let fork = |from: &str| {
        let forks = server.ok(&format!("/v1/sessions/{from}/fork"), json!({"n": 2}));
        forks["data"].as_array().unwrap().iter().map(id).collect::<Vec<_>>()
    };
    let forks = fork(&trunk);
    let leaves = fork(&forks[0]);
    let kept = server.ok(&format!("/v1/sessions/{}/keep", leaves[1]), json!({}));
    assert_eq!((id(&kept), number(&kept["cached"])), (leaves[1].clone(), 64));
    let mut deleted = [trunk, forks[0].clone(), forks[1].clone(), leaves[0].clone()];
    deleted.sort();
    assert_eq!(kept["deleted"], json!(deleted));
    for gone in &deleted {
        assert_eq!(server.send("GET", &format!("/v1/sessions/{gone}"), "", "").0, 404);
    }
    assert_eq!(number(&server.show(&other)["length"]), 2);
    let again = server.ok(&format!("/v1/sessions/{}/keep", leaves[1]), json!({}));
    assert_eq!(again["deleted"], json!([]));
    assert_eq!(server.error("/v1/sessions/sess_0000000000000000/keep", json!({})).0, 404);
}

#[test]
fn chats_send_only_new_messages() {
    let server = Server::start(CacheKind::Radix, 1024, &[]);
    let session = id(&server.ok("/v1/sessions", json!({"messages": [user(&"hello ".repeat(30))]})));
    let say = |session: &str, extra: Value| {
        let mut body = greedy(json!({"session": session}));
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        server.ok("/v1/chat/completions", body)
    };
    let first = say(&session, json!({}));
    let message = &first["choices"][0]["message"];
    assert!(number(&first["usage"]["prompt_tokens_details"]["cached_tokens"]) >= 16);
    let second = say(&session, json!({"messages": [user("and now?")]}));
    let mut whole = vec![user(&"hello ".repeat(30))];
    let mut answered = json!({"role": "assistant", "content": message["content"]});
    if !message["reasoning_content"].is_null() {
        answered["reasoning_content"] = message["reasoning_content"].clone();
    }
    whole.extend([answered, user("and now?")]);
    let without = server.ok("/v1/chat/completions", greedy(json!({"messages": whole})));
    assert_eq!(second["choices"], without["choices"], "as if all had been sent");
    assert_eq!(second["usage"]["prompt_tokens"], without["usage"]["prompt_tokens"]);
    assert_eq!(number(&server.show(&session)["messages"]), 4);

    // Fork before the second question; a streamed answer appends like a whole one.
    let fork = server.ok(&format!("/v1/sessions/{session}/fork"), json!({"at": {"message": 2}}));
    let fork = id(&fork["data"][0]);
    assert_eq!(number(&server.show(&fork)["messages"]), 2);
    let body = greedy(json!({"session": fork, "messages": [user("and now?")], "stream": true}));
    let events = server.events("/v1/chat/completions", &body);
    let text = |events: &[Value], what: &str| -> String {
        events.iter().filter_map(|event| event["choices"][0]["delta"][what].as_str()).collect()
    };
    let message = &second["choices"][0]["message"];
    assert_eq!(text(&events, "content"), message["content"].as_str().unwrap_or_default());
    assert_eq!(server.show(&fork)["messages"], server.show(&session)["messages"]);
    let rewound = server.ok(&format!("/v1/sessions/{session}/rewind"), json!({"to": {"message": 0}}));
    assert_eq!((number(&rewound["length"]), number(&rewound["cached"])), (0, 0));
}

#[test]
fn responses_continue_a_session_as_chats_do() {
    let server = Server::start(CacheKind::Radix, 1024, &[]);
    let tool = json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}});
    let call = json!({"role": "assistant", "content": null, "tool_calls": [tool]});
    let begun = json!({"messages": [user("hello there"), call]});
    let [chats, responses] = [(); 2].map(|()| id(&server.ok("/v1/sessions", begun.clone())));
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "42"});
    let output = json!({"type": "function_call_output", "call_id": "c1", "output": "42"});
    let next = || user("and another question?");
    for (message, item) in [(result, output.clone()), (next(), next())] {
        let chat =
            json!({"session": chats, "messages": [message], "temperature": 0, "max_tokens": 6, "seed": 1});
        let chat = server.ok("/v1/chat/completions", chat);
        let response = json!({
            "session": responses, "input": [item], "temperature": 0, "max_output_tokens": 6, "seed": 1,
            "timings_per_token": true,
        });
        let response = server.ok("/v1/responses", response);
        assert_eq!(response["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
        let cached = &response["usage"]["input_tokens_details"]["cached_tokens"];
        // The response may also hit blocks of the chat.
        assert!(number(cached) >= number(&chat["usage"]["prompt_tokens_details"]["cached_tokens"]).max(1));
        assert_eq!(&response["timings"]["cache_n"], cached);
        assert_eq!(response["session"], json!(responses));
        let [shown, other] = [&responses, &chats].map(|id| server.show(id));
        assert_eq!((&shown["messages"], &shown["length"]), (&other["messages"], &other["length"]));
        // The session holds its conversation; the response store does not.
        let later = json!({"input": "x", "previous_response_id": response["id"]});
        assert_eq!(server.error("/v1/responses", later), (400, "previous_response_id".into()));
    }
    let length = server.show(&responses)["length"].clone();
    let count = |body| number(&server.ok("/v1/responses/input_tokens", body)["input_tokens"]);
    assert!(count(json!({"session": responses, "input": "x"})) > count(json!({"input": "x"})) + 20);
    let messages = json!([user("hi"), {"role": "assistant", "content": "so"}]);
    for (body, expected) in [
        (json!({"session": "sess_0", "input": "x"}), (404, "session")),
        (json!({"session": responses, "input": [{"role": "king", "content": "x"}]}), (400, "input[0].role")),
        (
            json!({"session": responses, "input": [{"type": "function_call_output", "call_id": "c2", "output": ""}]}),
            (400, "input[0].call_id"),
        ),
        (
            json!({"session": responses, "input": messages, "continue_final_message": true}),
            (400, "continue_final_message"),
        ),
    ] {
        assert_eq!(server.error("/v1/responses", body), (expected.0, expected.1.to_owned()));
    }
    assert_eq!(server.show(&responses)["length"], length, "refused requests change nothing");
    // A background response commits its turn, too.
    let body = json!({"session": responses, "input": "x", "max_output_tokens": 4, "background": true, "stream": true});
    let events = server.events("/v1/responses", &body);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert!(deltas.clone().all(|event| event["timings"].is_null()), "none were requested");
    assert!(number(&server.show(&responses)["length"]) > number(&length));
}

#[test]
fn a_final_message_is_continued_by_a_response() {
    let server = Server::start(CacheKind::Radix, 1024, &[]);
    let messages = json!([user("hi there"), {"role": "assistant", "content": "well then"}]);
    let mut chat = json!({"messages": messages, "temperature": 0, "max_tokens": 6});
    let mut response = json!({"input": messages, "temperature": 0, "max_output_tokens": 6});
    let answers = |chat: &Value, response: &Value| {
        let chat = server.ok("/v1/chat/completions", chat.clone());
        let response = server.ok("/v1/responses", response.clone());
        let tokens = (&response["usage"]["input_tokens"], &chat["usage"]["prompt_tokens"]);
        assert_eq!(tokens.0, tokens.1);
        assert_eq!(response["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
        number(tokens.0)
    };
    let turn = answers(&chat, &response);
    chat["continue_final_message"] = true.into();
    response["continue_final_message"] = true.into();
    assert!(answers(&chat, &response) < turn, "no generation prompt is added");
    // Streamed deltas report the times and tokens so far.
    response["stream"] = true.into();
    response["timings_per_token"] = true.into();
    let events = server.events("/v1/responses", &response);
    let deltas: Vec<_> =
        events.iter().filter(|event| event["type"] == "response.output_text.delta").collect();
    let (last, before) = deltas.split_last().unwrap();
    assert!(before.iter().all(|event| number(&event["timings"]["predicted_n"]) >= 1), "{before:?}");
    assert!(last["timings"].is_null() || number(&last["timings"]["predicted_n"]) <= 6);
    let usage = &events.last().unwrap()["response"];
    assert_eq!(usage["timings"]["predicted_n"], usage["usage"]["output_tokens"]);
}

#[test]
fn invalid_requests_leave_the_session_unchanged() {
    let server = Server::start(CacheKind::Radix, 256, &[]);
    let text = id(&server.ok("/v1/sessions", json!({"prompt": trunk()})));
    let chat = id(&server.ok("/v1/sessions", json!({"messages": [user("hello")]})));
    let empty = id(&server.ok("/v1/sessions", json!({})));
    let at = |id: &str, verb: &str| format!("/v1/sessions/{id}/{verb}");
    let cases = [
        ("/v1/sessions".into(), json!({"prompt": "a", "messages": []}), 400, "prompt"),
        (
            "/v1/sessions".into(),
            json!({"messages": [{"role": "nobody", "content": "x"}]}),
            400,
            "messages[0].role",
        ),
        ("/v1/sessions".into(), json!({"prompt": vec![5; 5000]}), 400, "prompt"),
        ("/v1/sessions".into(), json!({"model": "huge"}), 404, "model"),
        ("/v1/sessions".into(), json!({"ttl": 0}), 400, "ttl"),
        (at(&text, "fork"), json!({"at": 65}), 400, "at"),
        (at(&text, "fork"), json!({"at": {"message": 1}}), 400, "at"),
        (at(&text, "fork"), json!({"n": 129}), 400, "n"),
        (at(&chat, "fork"), json!({"at": {"message": 2}}), 400, "at"),
        (at(&chat, "rewind"), json!({"to": 3}), 400, "to"),
        (at(&text, "rewind"), json!({}), 400, "to"),
        (at(&text, "rewind"), json!({"to": 65}), 400, "to"),
        (at("sess_0000000000000000", "fork"), json!({}), 404, "session"),
        ("/v1/completions".into(), json!({"session": chat, "prompt": "x"}), 400, "session"),
        ("/v1/completions".into(), json!({"session": text, "prompt": ["x", "y"]}), 400, "prompt"),
        ("/v1/completions".into(), json!({"session": text, "prompt": "x", "n": 2}), 400, "n"),
        ("/v1/completions".into(), json!({"session": 7, "prompt": "x"}), 400, "session"),
        ("/v1/completions".into(), json!({"session": "sess_x", "prompt": "x"}), 404, "session"),
        (
            "/v1/completions".into(),
            json!({"session": text, "prompt": "x", "min_tokens": 5000}),
            400,
            "min_tokens",
        ),
        ("/v1/chat/completions".into(), json!({"session": text, "messages": [user("x")]}), 400, "session"),
        ("/v1/chat/completions".into(), json!({"session": empty}), 400, "messages"),
        // Errors count from the client's own messages, which exclude the session's.
        (
            "/v1/chat/completions".into(),
            json!({"session": chat, "messages": [user("x"), {"role": "king"}]}),
            400,
            "messages[1].role",
        ),
        ("/v1/chat/completions".into(), json!({"session": chat, "n": 2}), 400, "n"),
    ];
    for (path, body, status, param) in cases {
        assert_eq!(server.error(&path, body.clone()), (status, param.to_owned()), "{path} {body}");
    }
    assert_eq!(number(&server.show(&text)["length"]), 64);
    assert_eq!(number(&server.show(&chat)["messages"]), 1);
    let (_, list) = server.send("GET", "/v1/sessions", "", "");
    assert_eq!(list["data"].as_array().unwrap().len(), 3, "those that failed left nothing");

    // Under memory pressure K/V is evicted, and the session remains.
    server.ok("/v1/completions", greedy(json!({"prompt": vec![9; 230]})));
    let shown = server.show(&text);
    assert_eq!((number(&shown["length"]), number(&shown["cached"])), (64, 0));
    let first = server.text(json!({"session": text, "prompt": [3]})).0;
    let whole: Vec<u32> = trunk().into_iter().chain([3]).collect();
    assert_eq!(server.text(json!({"prompt": whole})).0, first);

    for session in [&text, &chat, &empty] {
        let (status, gone) = server.send("DELETE", &format!("/v1/sessions/{session}"), "", "");
        assert!(status == 200 && gone["deleted"] == true, "{gone}");
        assert_eq!(server.send("GET", &format!("/v1/sessions/{session}"), "", "").0, 404);
    }
}

#[test]
fn a_key_sees_its_own_sessions_only() {
    let server = Server::start(CacheKind::Paged, 256, &["one", "two"]);
    let (status, made) = server.send("POST", "/v1/sessions", "one", r#"{"prompt": [5, 6, 7]}"#);
    assert_eq!(status, 200, "{made}");
    let session = id(&made);
    let body = json!({"session": session, "prompt": "x", "max_tokens": 1}).to_string();
    for (name, status) in [("two", 404), ("one", 200)] {
        assert_eq!(server.send("POST", "/v1/completions", name, &body).0, status, "{name}");
        assert_eq!(server.send("GET", &format!("/v1/sessions/{session}"), name, "").0, status, "{name}");
        let fork = format!("/v1/sessions/{session}/fork");
        assert_eq!(server.send("POST", &fork, name, "{}").0, status, "{name}");
        let listed = server.send("GET", "/v1/sessions", name, "").1;
        assert_eq!(listed.to_string().contains(&session), status == 200, "{listed}");
    }
    assert_eq!(server.send("DELETE", &format!("/v1/sessions/{session}"), "two", "").0, 404);
    assert_eq!(server.send("GET", "/v1/sessions", "", "").0, 401);
}

#[test]
fn sessions_of_disconnected_creators_are_removed() {
    let mut device = Toy::new();
    let release = device.hang_next();
    let server = Server::on(device, CacheKind::Radix, 512, &[]);
    server.leave("/v1/sessions", vec![(json!({"prompt": trunk()}), 0)]);
    release.send(()).unwrap();
    let (_, list) = server.send("GET", "/v1/sessions", "", "");
    assert_eq!(list["data"], json!([]));
}

#[test]
fn cuts_keep_what_follows_and_count_it_as_cached() {
    for cache in [CacheKind::Radix, CacheKind::Cells] {
        let server = Server::start(cache, 1024, &[]);
        let session = id(&server.ok("/v1/sessions", json!({"prompt": trunk()})));
        let path = format!("/v1/sessions/{session}/cut");
        let cut = server.ok(&path, json!({"from": 16, "to": 32}));
        assert_eq!((number(&cut["length"]), number(&cut["cached"])), (48, 48), "{cache}: {cut}");
        let (_, cached) = server.text(json!({"session": session, "prompt": [20, 21]}));
        assert_eq!(cached, 48, "{cache}");
        assert_eq!(number(&server.show(&session)["length"]), 48 + 2 + 6);
        // Errors change nothing.
        for (body, param) in [
            (json!({"from": 5, "to": 5}), "to"),
            (json!({"from": 5, "to": 57}), "to"),
            (json!({"from": {"message": 0}, "to": {"message": 1}}), "to"),
            (json!({"from": 1}), "to"),
        ] {
            assert_eq!(server.error(&path, body.clone()), (400, param.to_owned()), "{body}");
        }
        assert_eq!(number(&server.show(&session)["length"]), 56);
        let rest = server.ok(&path, json!({"from": 10, "to": 56}));
        assert_eq!(number(&rest["length"]), 10, "a range up to the end is a truncation");
    }
    let server = Server::start(CacheKind::Contiguous, 1024, &[]);
    let session = id(&server.ok("/v1/sessions", json!({"prompt": trunk()})));
    let (status, answer) =
        server.post(&format!("/v1/sessions/{session}/cut"), &json!({"from": 16, "to": 32}));
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().contains("a contiguous cache"), "{answer}");
    assert_eq!(number(&server.show(&session)["length"]), 64);
}

#[test]
fn messages_can_be_cut_out_of_a_conversation() {
    let server = Server::start(CacheKind::Cells, 2048, &[]);
    let messages: Vec<Value> = (0..6).map(|n| user(&format!("{n} {}", "hello ".repeat(20)))).collect();
    let session = id(&server.ok("/v1/sessions", json!({"messages": messages})));
    let whole = number(&server.show(&session)["length"]);
    let body = json!({"from": {"message": 1}, "to": {"message": 3}});
    let cut = server.ok(&format!("/v1/sessions/{session}/cut"), body);
    let left: Vec<Value> = messages[..1].iter().chain(&messages[3..]).cloned().collect();
    let other = server.ok("/v1/sessions", json!({"messages": left}));
    assert_eq!((number(&cut["messages"]), &cut["length"]), (4, &other["length"]));
    assert_eq!(cut["cached"], cut["length"], "{cut} of {whole}");
    let answer =
        server.ok("/v1/chat/completions", greedy(json!({"session": session, "messages": [user("so?")]})));
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], cut["length"], "{answer}");
    // After an answer, whose tokens are those that were sampled.
    let retained = number(&server.show(&session)["cached"]);
    let cut = server
        .ok(&format!("/v1/sessions/{session}/cut"), json!({"from": {"message": 2}, "to": {"message": 3}}));
    assert_eq!(number(&cut["messages"]), 5);
    let (cached, length) = (number(&cut["cached"]), number(&cut["length"]));
    assert!(cached + 12 > length && cached < retained, "{cut}, {retained} before");
}

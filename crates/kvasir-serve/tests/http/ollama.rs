//! Ollama's API: lines, errors, aliases of the model, and bodies as `curl -d` sends them.

use super::server::{Server, with_facts};
use kvasir_kv::CacheKind;
use kvasir_serve::model::{Facts, Model};
use serde_json::{Value, json};

fn generate(extra: Value) -> Value {
    let mut body = json!({
        "model": "tiny:latest", "prompt": "one two", "raw": true,
        "options": {"temperature": 0, "num_predict": 12, "seed": 1},
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn streamed_lines_join_to_the_whole_answer() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let lines = server.lines("/api/generate", &generate(json!({})));
    let (last, pieces) = lines.split_last().unwrap();
    assert!(!pieces.is_empty() && pieces.iter().all(|line| line["done"] == false), "{lines:?}");
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["eval_count"]),
        (&json!(true), &json!("length"), &json!(12))
    );
    let streamed: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    let (status, whole) = server.post("/api/generate", &generate(json!({"stream": false})));
    assert_eq!((status, whole["response"].as_str()), (200, Some(streamed.as_str())));
    assert_eq!((&whole["model"], &whole["eval_count"]), (&json!("tiny:latest"), &json!(12)));
}

#[test]
fn durations_are_positive_even_of_one_token() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let one = generate(json!({"stream": false, "options": {"num_predict": 1}}));
    let (_, whole) = server.post("/api/generate", &one);
    assert_eq!(whole["eval_count"], 1);
    assert!(whole["eval_duration"].as_u64().unwrap() > 0, "{whole}");
}

#[test]
fn only_models_that_reason_think() {
    let chat = |server: &Server, think: Value| {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let body = json!({
            "model": "tiny", "messages": messages, "prompt": "hi", "think": think, "stream": false,
            "options": {"num_predict": 1},
        });
        ["/api/chat", "/api/generate"].map(|path| server.post(path, &body))
    };
    let plain = Server::serving(|model| {
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        Model::new(model.name, model.chat.with_template(template).unwrap(), model.facts)
    });
    let reasoning = Server::serving(|model| model);
    for think in [json!(true), json!("low"), json!("high")] {
        for (status, error) in chat(&plain, think.clone()) {
            assert_eq!((status, &error["error"]), (400, &json!("\"tiny\" does not support thinking")));
        }
        assert!(chat(&reasoning, think).iter().all(|(status, _)| *status == 200));
    }
    for think in [json!(false), json!(""), json!(null)] {
        for server in [&plain, &reasoning] {
            assert!(chat(server, think.clone()).iter().all(|(status, _)| *status == 200), "{think}");
        }
    }
}

#[test]
fn options_without_effect_on_embeddings_are_named() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = json!({"options": {"temperature": 0, "num_ctx": 9, "seed": null}});
    for path in ["/api/embed", "/api/embeddings"] {
        let names = server.ignored(path, &body).unwrap();
        assert_eq!(names, "options.temperature, options.num_ctx", "{path}");
    }
}

#[test]
fn without_a_limit_the_answer_ends_with_the_context() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let body = generate(json!({"stream": false, "options": {"temperature": 0}}));
    let (status, whole) = server.post("/api/generate", &body);
    assert_eq!(status, 200, "{whole}");
    assert!(whole["eval_count"].as_u64().unwrap() > 16, "{whole}");
}

#[test]
fn errors_are_one_text() {
    let server = Server::start(CacheKind::Radix, 512, &["secret"]);
    let (status, error) = server.send("POST", "/api/generate", "", "{}");
    assert_eq!((status, error["error"].is_string()), (401, true), "{error}");
    let other = generate(json!({"model": "other"})).to_string();
    let (status, error) = server.send("POST", "/api/generate", "secret", &other);
    assert_eq!(status, 404);
    assert!(is_not_found(&error, "other"), "{error}");
    let (status, error) = server.send("POST", "/api/none", "secret", "{}");
    assert_eq!((status, error["error"].is_string()), (404, true), "{error}");
}

/// Whether an error has Ollama's words, and says which model there is.
fn is_not_found(error: &Value, name: &str) -> bool {
    let text = error["error"].as_str().unwrap();
    text.starts_with(&format!("model '{name}' not found")) && text.contains("`tiny`")
}

/// Sends a request about models.
fn manage(server: &Server, method: &str, path: &str, body: Value) -> (u16, Value) {
    server.send(method, path, "", &body.to_string())
}

#[test]
fn requests_that_change_no_model_succeed() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for (path, body) in [
        ("/api/pull", json!({"model": "tiny"})),
        ("/api/pull", json!({"name": "tiny:latest", "insecure": true})),
        ("/api/create", json!({"model": "tiny", "from": "tiny"})),
    ] {
        let lines = server.lines(path, &body);
        assert_eq!(lines.last(), Some(&json!({"status": "success"})), "{path}");
        let mut whole = body;
        whole["stream"] = false.into();
        assert_eq!(server.post(path, &whole), (200, json!({"status": "success"})), "{path}");
    }
    let same = json!({"source": "tiny", "destination": "tiny:latest"});
    assert_eq!(manage(&server, "POST", "/api/copy", same), (200, json!("")));
}

#[test]
fn requests_that_change_models_say_what_to_do() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for (method, path, body, status, part) in [
        (
            "POST",
            "/api/pull",
            json!({"model": "llama3.2"}),
            403,
            "--allow-pull, or run `kvasir pull llama3.2`",
        ),
        ("POST", "/api/create", json!({"model": "mario", "from": "tiny"}), 400, "--model-name mario"),
        ("POST", "/api/create", json!({"model": "mario", "from": "tiny", "system": "x"}), 400, "`system`"),
        ("POST", "/api/create", json!({"model": "tiny", "quantize": "q4_K_M"}), 400, "kvasir convert"),
        ("POST", "/api/copy", json!({"source": "tiny", "destination": "mine"}), 400, "--model-name mine"),
        ("POST", "/api/push", json!({"model": "tiny"}), 501, "hf upload"),
        ("DELETE", "/api/delete", json!({"model": "tiny"}), 409, "kvasir models --json"),
        ("POST", "/api/pull", json!({}), 400, "`model` is missing"),
    ] {
        let (got, error) = manage(&server, method, path, body);
        let text = error["error"].as_str().unwrap();
        assert!(got == status && text.contains(part), "{path}: {got} {text}");
    }
    for (method, path, body) in [
        ("POST", "/api/create", json!({"model": "tiny", "from": "other"})),
        ("POST", "/api/copy", json!({"source": "other", "destination": "tiny"})),
        ("POST", "/api/push", json!({"model": "other"})),
        ("DELETE", "/api/delete", json!({"model": "other"})),
    ] {
        let (status, error) = manage(&server, method, path, body);
        assert!(status == 404 && is_not_found(&error, "other"), "{path}: {error}");
    }
}

/// Continuing by `context` gives the same answer as a chat with all turns.
#[test]
fn a_context_continues_its_conversation() {
    // The ids of control tokens follow those of words.
    let server = Server::serving(|mut model| {
        model.facts.vocab = 600;
        model
    });
    let options = json!({"temperature": 0, "num_predict": 9, "seed": 1});
    let first = json!({"prompt": "one two", "system": "three", "stream": false, "options": options});
    let (status, whole) = server.post("/api/generate", &first);
    assert_eq!(status, 200, "{whole}");
    let context = whole["context"].as_array().unwrap();
    let counted = whole["prompt_eval_count"].as_u64().unwrap() + whole["eval_count"].as_u64().unwrap();
    assert_eq!(context.len() as u64, counted);
    let mut streamed = first;
    streamed["stream"] = true.into();
    assert_eq!(server.lines("/api/generate", &streamed).last().unwrap()["context"], whole["context"]);

    let next = json!({"prompt": "four", "context": context, "stream": false, "options": options});
    let (status, second) = server.post("/api/generate", &next);
    assert_eq!(status, 200, "{second}");
    let messages = json!([
        {"role": "system", "content": "three"}, {"role": "user", "content": "one two"},
        {"role": "assistant", "content": whole["response"]}, {"role": "user", "content": "four"},
    ]);
    let chat = json!({"messages": messages, "stream": false, "options": options});
    let (_, expected) = server.post("/api/chat", &chat);
    assert_eq!(second["prompt_eval_count"], expected["prompt_eval_count"]);
    assert_eq!(second["response"], expected["message"]["content"]);
    let text = second["context"].as_array().unwrap();
    assert_eq!(&text[..context.len()], context);

    // The context holds its system prompt.
    let mut again = next;
    again["system"] = "three".into();
    assert_eq!(server.post("/api/generate", &again).1["response"], second["response"]);
    assert_eq!(server.ignored("/api/generate", &again).as_deref(), Some("system"));
}

/// The template writes a newline after an answer, and the truncated answer ends with one.
#[test]
fn a_context_keeps_a_last_token_that_the_template_repeats() {
    let server = Server::serving(|model| {
        let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
        Model::new(model.name, model.chat.with_template(template).unwrap(), model.facts)
    });
    let newline = server.post("/tokenize", &json!({"content": "\n"})).1["tokens"][0].clone();
    let evaluated = |context: Value| {
        let options = json!({"num_predict": 1});
        let body = json!({"prompt": "four", "context": context, "stream": false, "options": options});
        let (status, whole) = server.post("/api/generate", &body);
        assert_eq!(status, 200, "{whole}");
        whole["prompt_eval_count"].as_u64().unwrap()
    };
    assert_eq!(evaluated(json!([7, newline])), evaluated(json!([7, 8])));
}

#[test]
fn a_context_goes_with_the_template_only() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let raw = generate(json!({"stream": false, "context": [1, 2]}));
    let (status, whole) = server.post("/api/generate", &raw);
    assert_eq!((status, whole.get("context")), (200, None), "{whole}");
    assert_eq!(server.ignored("/api/generate", &raw).as_deref(), Some("context"));
    let (_, chat) = server.post("/api/chat", &json!({"messages": [{"role": "user", "content": "one"}], "stream": false, "options": {"num_predict": 2}}));
    assert_eq!(chat.get("context"), None);
    for context in [json!([500]), json!([-1]), json!(["1"]), json!("1"), json!([1.5])] {
        let (status, error) =
            server.post("/api/generate", &json!({"prompt": "one", "context": context, "stream": false}));
        let text = error["error"].as_str().unwrap();
        assert!(status == 400 && text.contains("`context`"), "{context}: {text}");
    }
    let long = json!({"prompt": "one", "context": vec![1; 600], "stream": false});
    let (status, error) = server.post("/api/generate", &long);
    let text = error["error"].as_str().unwrap();
    assert!(status == 400 && text.contains("context size"), "{text}");
}

#[test]
fn the_version_is_one_of_ollama_with_ours_beside_it() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let (status, version) = server.send("GET", "/api/version", "", "");
    let numbers: Vec<u32> =
        version["version"].as_str().unwrap().split('.').map(|number| number.parse().unwrap()).collect();
    // What VS Code's Copilot demands.
    assert!(status == 200 && numbers >= vec![0, 6, 4], "{version}");
    assert_eq!(version["kvasir"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn an_empty_request_loads_the_model() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for path in ["/api/chat", "/api/generate"] {
        for (body, reason) in [
            (json!({"model": "tiny"}), "load"),
            (json!({"model": "tiny", "keep_alive": "5m"}), "load"),
            (json!({"model": "tiny", "keep_alive": 0}), "unload"),
        ] {
            let (status, line) = server.post(path, &body);
            assert_eq!(
                (status, &line["done"], &line["done_reason"]),
                (200, &json!(true), &json!(reason)),
                "{path}"
            );
        }
    }
    for (path, input, vectors) in [
        ("/api/embed", json!({"input": ""}), "embeddings"),
        ("/api/embed", json!({"input": []}), "embeddings"),
        ("/api/embed", json!({}), "embeddings"),
        ("/api/embeddings", json!({"prompt": ""}), "embedding"),
        ("/api/embeddings", json!({}), "embedding"),
    ] {
        let (status, answer) = server.post(path, &input);
        assert_eq!((status, &answer[vectors]), (200, &json!([])), "{path} {input}");
        let mut other = input;
        other["model"] = "other".into();
        let (status, error) = server.post(path, &other);
        assert!(status == 404 && is_not_found(&error, "other"), "{path}: {error}");
    }
}

#[test]
fn the_model_is_listed_and_described() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    for path in ["/api/tags", "/api/ps"] {
        let (status, list) = server.send("GET", path, "", "");
        assert_eq!((status, &list["models"][0]["name"]), (200, &json!("tiny")), "{path}");
        let model = &list["models"][0];
        let digest = model["digest"].as_str().unwrap();
        assert!(
            digest.len() == 64 && digest.as_bytes().chunks(12).all(|part| part.iter().any(|c| *c != b'0'))
        );
        assert!(!model["modified_at"].as_str().unwrap().starts_with("1970"), "{model}");
    }
    let (status, shown) = server.post("/api/show", &json!({"model": "tiny:latest"}));
    assert_eq!((status, &shown["capabilities"][0]), (200, &json!("completion")));
}

#[test]
fn bodies_of_any_type_pass_unless_a_page_sends_them() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = generate(json!({"stream": false}));
    assert_eq!(server.post_with("/api/generate", &[form], &body), 200);
    assert_eq!(server.post_with("/api/generate", &[form, ("origin", "https://a.example")], &body), 415);
    assert_eq!(server.post_with("/v1/completions", &[form], &json!({"prompt": "a"})), 415);
}

#[test]
fn errors_name_the_field_as_sent() {
    let server = Server::serving(|model| with_facts(Facts { hidden: Some(8), ..model.facts }));
    let messages = json!([{"role": "user", "content": "hi"}]);
    for (extra, field) in [
        (json!({"options": {"repeat_penalty": 0}}), "options.repeat_penalty"),
        (json!({"options": {"temperature": "warm"}}), "options.temperature"),
        (json!({"options": {"stop": [1]}}), "options.stop"),
        (json!({"format": {"type": "nonsense"}}), "format"),
    ] {
        for mut body in [json!({"messages": messages}), generate(json!({})), generate(json!({"raw": false}))]
        {
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let path = if body.get("prompt").is_some() { "/api/generate" } else { "/api/chat" };
            let (status, error) = server.post(path, &body);
            let text = error["error"].as_str().unwrap();
            assert!(status == 400 && text.contains(&format!("`{field}`")), "{path}: {text}");
        }
    }
}

#[test]
fn the_last_message_of_the_assistant_is_continued() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let messages = json!([{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]);
    let request = json!({
        "messages": messages, "continue_final_message": true, "max_tokens": 12, "temperature": 0, "seed": 1,
    });
    let (_, expected) = server.post("/v1/chat/completions", &request);
    let options = json!({"temperature": 0, "num_predict": 12, "seed": 1});
    let (status, whole) =
        server.post("/api/chat", &json!({"messages": messages, "stream": false, "options": options}));
    assert_eq!(status, 200, "{whole}");
    assert_eq!(whole["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    assert_eq!(whole["message"]["content"], expected["choices"][0]["message"]["content"]);
}

#[test]
fn unknown_fields_of_calls_are_named() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let call = json!({"id": "x", "bar": 1, "function": {"name": "f", "arguments": {}, "baz": 2}});
    let body = json!({
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "x", "content": "two"},
        ],
        "options": {"num_predict": 2},
    });
    let names = server.ignored("/api/chat", &body).unwrap();
    assert_eq!(names, "messages[].tool_calls[].bar, messages[].tool_calls[].function.baz");
    let mut stray = body;
    stray["messages"][2]["tool_call_id"] = "y".into();
    let (status, error) = server.post("/api/chat", &stray);
    let text = error["error"].as_str().unwrap();
    assert!(status == 400 && text.contains("`messages[2].tool_call_id`"), "{text}");
}

//! Sampling of requests: defaults of the server, llama.cpp's samplers, probabilities after sampling, and
//! prefill progress.

use crate::server::{CHAT, Server, chat};
use serde_json::{Value, json};

/// Body of a completion with a fixed seed that ignores end-of-sequence tokens.
fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "n_predict": 12, "seed": 7, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn text(server: &Server, extra: Value) -> String {
    let (status, answer) = server.post("/completion", &completion(extra));
    assert_eq!(status, 200, "{answer}");
    answer["content"].as_str().unwrap().to_owned()
}

#[test]
fn the_command_line_sets_defaults_that_requests_replace() {
    let flags = [
        "--temperature",
        "0.5",
        "--top-k",
        "7",
        "--top-p",
        "0.75",
        "--min-p",
        "0.125",
        "--repetition-penalty",
        "1.25",
        "--presence-penalty",
        "0.5",
        "--frequency-penalty",
        "0.25",
        "--seed",
        "5",
    ];
    let (server, _log) = Server::built_in(&flags);
    let expected = json!({
        "temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.125, "repeat_penalty": 1.25,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 5,
    });
    let props = server.exchange("GET", "/props", "", "").json();
    assert_eq!(props["default_generation_settings"]["params"], expected);
    let mut body = completion(json!({"temperature": 5, "top_k": 0, "min_p": 0, "top_p": 1}));
    body.as_object_mut().unwrap().remove("seed");
    let [once, again] = [(); 2].map(|()| server.post("/completion", &body).1);
    assert_eq!(once["content"], again["content"], "the seed is a default, too");
    let settings = &once["generation_settings"];
    assert_eq!((&settings["temperature"], &settings["presence_penalty"]), (&json!(5.0), &json!(0.5)));
    body["seed"] = 6.into();
    assert_ne!(server.post("/completion", &body).1["content"], once["content"]);
}

#[test]
fn samplers_of_llama_cpp_change_answers_on_every_route() {
    let (server, _log) = Server::built_in(&[]);
    let plain = text(&server, json!({"temperature": 4}));
    let neutral =
        json!({"temperature": 4, "typical_p": 1, "mirostat": 0, "dry_multiplier": 0, "min_keep": 0});
    assert_eq!(text(&server, neutral), plain);
    for extra in [
        json!({"temperature": 4, "typical_p": 0.01}),
        json!({"temperature": 4, "top_n_sigma": 0.01}),
        json!({"temperature": 4, "mirostat": 1, "mirostat_tau": 0.1}),
        json!({"temperature": 4, "mirostat": 2, "mirostat_tau": 0.1}),
        json!({"temperature": 4, "dynatemp_range": 3.9}),
        json!({"temperature": 4, "xtc_probability": 1, "xtc_threshold": 0.0001}),
    ] {
        assert_ne!(text(&server, extra.clone()), plain, "{extra}");
    }
    // On `/completion` the temperature comes last, unless the request names another order: top-p
    // sees other probabilities.
    let last = json!({"temperature": 4, "top_p": 0.5, "min_keep": 2});
    let first = json!({"temperature": 4, "top_p": 0.5, "min_keep": 2, "samplers": ["temperature", "top_p"]});
    assert_ne!(text(&server, last.clone()), text(&server, first.clone()));
    let completions = |mut extra: Value| {
        extra["prompt"] = "Once upon a time".into();
        extra
            .as_object_mut()
            .unwrap()
            .extend(json!({"max_tokens": 12, "seed": 7, "ignore_eos": true}).as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/completions", &extra);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(completions(last), text(&server, first), "other routes have the temperature first");

    let chat_text =
        |extra: Value| server.post(CHAT, &chat(extra)).1["choices"][0]["message"]["content"].clone();
    let hot = json!({"temperature": 4, "seed": 1, "max_tokens": 8});
    let mut typical = hot.clone();
    typical["typical_p"] = 0.01.into();
    assert_ne!(chat_text(hot), chat_text(typical));
    let ollama = |options: Value| {
        let body = json!({"model": "tiny", "prompt": "hi", "stream": false, "options": options});
        server.post("/api/generate", &body)
    };
    let hot = json!({"temperature": 4, "seed": 1, "num_predict": 8});
    let mut mirostat = hot.clone();
    mirostat["mirostat"] = 2.into();
    mirostat["mirostat_tau"] = 0.1.into();
    assert_ne!(ollama(hot).1["response"], ollama(mirostat).1["response"]);
    let (status, error) = ollama(json!({"mirostat": 7}));
    assert!(status == 400 && error["error"].as_str().unwrap().contains("options.mirostat"), "{error}");
}

#[test]
fn dry_ends_a_repetition_unless_a_breaker_interrupts_it() {
    let (server, _log) = Server::built_in(&[]);
    // Only two letters are allowed, of which the model repeats one.
    let repeat = |extra: Value| {
        let mut body = json!({"prompt": "1", "regex": "[ab]{60}", "max_tokens": 12, "temperature": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let plain = repeat(json!({}));
    assert!(plain.starts_with("aaaaaaaa"), "{plain}");
    assert!(!repeat(json!({"dry_multiplier": 100})).starts_with("aaaaaaaa"));
    let broken = repeat(json!({"dry_multiplier": 100, "dry_sequence_breakers": ["a", "b"]}));
    assert_eq!(broken, plain);
    let common = json!({"prompt": "1", "dry_multiplier": 1, "dry_sequence_breakers": [""]});
    let (status, error) = server.post("/v1/completions", &common);
    assert_eq!((status, &error["error"]["param"]), (400, &json!("dry_sequence_breakers")), "{error}");
}

#[test]
fn probabilities_after_sampling_are_those_of_the_candidates() {
    let (server, _log) = Server::built_in(&[]);
    let entries = |extra: Value| {
        let (status, answer) = server.post("/completion", &completion(extra));
        assert_eq!(status, 200, "{answer}");
        answer["completion_probabilities"].as_array().unwrap().clone()
    };
    let greedy = entries(json!({"temperature": 0, "n_probs": 10, "post_sampling_probs": true}));
    assert_eq!(greedy.len(), 12);
    for entry in &greedy {
        assert_eq!((entry["prob"].as_f64(), entry["top_probs"].as_array().unwrap().len()), (Some(1.0), 1));
        assert!(entry["id"].is_u64() && entry.get("logprob").is_none(), "{entry}");
    }
    let cut = json!({"temperature": 1, "top_k": 3, "n_probs": 10, "post_sampling_probs": true});
    for entry in entries(cut) {
        let top = entry["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|one| one["prob"].as_f64().unwrap()).sum();
        assert!((1..=3).contains(&top.len()) && (sum - 1.0).abs() < 1e-3, "{entry}");
        assert!(top.iter().any(|one| one["id"] == entry["id"]), "what was sampled is a candidate");
    }
    let chat_body = chat(json!({
        "temperature": 0, "max_tokens": 2, "logprobs": true, "top_logprobs": 3, "post_sampling_probs": true,
    }));
    let answer = server.post(CHAT, &chat_body).1;
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["prob"], json!(1.0), "{answer}");
}

#[test]
fn a_stream_reports_prefill_progress() {
    let (server, _log) = Server::built_in(&["--max-num-batched-tokens", "64"]);
    let prompt = "one two three four five six seven eight nine ten. ".repeat(20);
    let check = |events: &[Value], cached: bool| {
        let reports: Vec<&Value> = events.iter().filter_map(|event| event.get("prompt_progress")).collect();
        let number = |one: &Value, name: &str| one[name].as_u64().unwrap();
        let (first, last) = (reports[0], reports[reports.len() - 1]);
        assert_eq!(first["cache"], first["processed"], "{first}");
        assert_eq!((&last["processed"], number(first, "cache") > 0), (&first["total"], cached), "{last}");
        assert!(cached || reports.len() > 3, "{reports:?}");
        let rises = |pair: &[&Value]| number(pair[1], "processed") > number(pair[0], "processed");
        assert!(reports.windows(2).all(rises), "{reports:?}");
        assert!(reports.iter().all(|one| one["total"] == first["total"] && one["time_ms"].is_u64()));
        let timings = events
            .iter()
            .find_map(|event| event.get("timings").filter(|_| event["prompt_progress"].is_object()));
        let is_empty = |timings: &Value| timings["prompt_n"] == 0 && timings["prompt_ms"] == 0.0;
        assert!(timings.is_none_or(is_empty), "nothing is read yet: {timings:?}");
    };
    let stream = json!({"stream": true, "return_progress": true, "prompt": prompt, "n_predict": 3, "timings_per_token": true});
    let raw = |server: &Server| {
        let body = completion(stream.clone()).to_string();
        let (status, text) = server.send("POST", "/completion", crate::server::JSON, &body);
        assert_eq!(status, 200, "{text}");
        let events = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        events.map(|event| serde_json::from_str(event).unwrap()).collect::<Vec<Value>>()
    };
    check(&raw(&server), false);
    check(&raw(&server), true);
    let mut body = chat(json!({"stream": true, "return_progress": true, "max_tokens": 2}));
    body["messages"][0]["content"] = "One two three four five six. ".repeat(30).into();
    check(&server.events(CHAT, &body), false);
    body["return_progress"] = false.into();
    let events = server.events(CHAT, &body);
    assert!(events.iter().all(|event| event.get("prompt_progress").is_none()));
}

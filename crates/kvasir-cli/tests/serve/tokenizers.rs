//! `kvasir serve --tokenizer-processes`: answers equal those of the server's own tokenizer, also
//! when tokenizer processes are killed or suspended. No process outlives the server.

use super::fleet::{answer_all, is_running, kill_count, request, signal, wait_for_exit};
use super::server::{CHAT, COMPLETIONS, Server, model};
use kvasir_testkit::{Random, paths};
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

fn status(server: &Server) -> Vec<Value> {
    let (status, answer) = server.send("GET", "/v1/admin/tokenizers", "", "");
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["data"].as_array().unwrap().clone()
}

/// Ids of the tokenizer processes that are ready.
fn processes(server: &Server) -> Vec<u64> {
    let status = status(server);
    let ready = status.iter().filter(|tokenizer| tokenizer["is_ready"] == true);
    ready.filter_map(|tokenizer| tokenizer["process"].as_u64()).collect()
}

fn wait_until(what: &str, server: &Server, holds: impl Fn(&[Value]) -> bool) {
    let begin = Instant::now();
    while !holds(&status(server)) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {:?}", status(server));
        thread::sleep(Duration::from_millis(20));
    }
}

/// The folder of the tiny model, with another tokenizer.
fn model_with(tokenizer: &str, name: &str) -> PathBuf {
    let folder = model(&format!("tokenizers-{name}"));
    for file in fs::read_dir(paths::tokenizer(tokenizer)).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    folder
}

/// A random text of words, emoji, accents and the texts of control tokens.
fn text(random: &mut Random) -> String {
    let parts = [
        "hello ",
        "wörld",
        "🦀",
        "👩‍👩‍👧 ",
        "<|im_end|>",
        "e\u{301}",
        "日本語",
        "\n\n",
        "  x",
        "<think>",
        "\u{a0}",
    ];
    (0..random.between(1, 50)).map(|_| random.pick(&parts)).collect()
}

/// All responses to a fixed set of requests, without random ids and times.
fn answers(server: &Server, tokenizer: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let tool = json!({"type": "function", "function": {"name": "get", "parameters": {
        "type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}}});
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let text = text(&mut random);
        let tokens = server.post("/tokenize", &json!({"prompt": text, "return_token_strs": true}));
        let ids = tokens.1["tokens"].clone();
        all.push(tokens.1);
        all.push(server.post("/detokenize", &json!({"tokens": &ids})).1);
        // The tiny model generates random tokens, so most characters are split over several tokens.
        let mut body = json!({"model": "tiny", "seed": seed, "max_tokens": 48, "temperature": 1.3,
            "prompt": text, "logprobs": 2, "echo": seed % 2 == 0});
        body["skip_special_tokens"] = json!(seed % 3 == 0);
        all.push(server.post(COMPLETIONS, &body).1);
        // llama.cpp's answer repeats the prompt as text.
        let completion =
            json!({"prompt": ids, "n_predict": 8, "seed": seed, "response_fields": ["content", "prompt"]});
        all.push(server.post("/completion", &completion).1);
        body["stop"] = json!(["e", "\u{fffd}", "9"]);
        body["include_stop_str_in_output"] = json!(seed % 4 == 0);
        body["ignore_eos"] = json!(true);
        all.push(server.post(COMPLETIONS, &body).1);
        if tokenizer == "qwen" {
            let chat = json!({"model": "tiny", "seed": seed, "max_tokens": 48, "temperature": 1.1, "logprobs": true,
                "messages": [{"role": "user", "content": text}], "tools": [tool],
                "tool_choice": if seed % 2 == 0 { "required" } else { "auto" }});
            all.push(server.post(CHAT, &chat).1);
        }
    }
    for answer in &mut all {
        let Value::Object(fields) = answer else { panic!("{answer}") };
        assert!(!fields.contains_key("error"), "{fields:?}");
        fields.remove("created");
        remove_ids(answer);
    }
    all
}

/// Removes the random ids of responses and tool calls.
fn remove_ids(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("id");
            fields.values_mut().for_each(remove_ids);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_ids),
        _ => {}
    }
}

#[test]
fn answers_equal_those_of_the_servers_own_tokenizer() {
    let options = ["--threads", "1", "--max-model-len", "512"];
    let remote = [&options[..], &["--tokenizer-processes", "2"]].concat();
    for tokenizer in ["qwen", "sp", "llama3", "o200k", "glm", "deepseek"] {
        let [own, other] = [&options[..], &remote].map(|options| {
            answers(&Server::of_model(model_with(tokenizer, tokenizer), options, &[]), tokenizer)
        });
        for (own, other) in own.iter().zip(&other) {
            assert_eq!(own, other, "{tokenizer}");
        }
    }
    // The vocabulary of a GGUF file, with an engine in a worker process.
    let gguf = |options: &[&str]| {
        let folder = super::fleet::converted("tokenizers-gguf", "q8_0");
        answers(&Server::of_model(folder, options, &[]), "qwen")
    };
    assert_eq!(gguf(&options), gguf(&[&remote[..], &["--dp", "1"]].concat()));
}

#[test]
fn killing_tokenizer_processes_changes_no_answer() {
    let requests: Vec<_> = (0..64).map(|number| request(number, 100)).collect();
    let options = ["--threads", "1", "--max-model-len", "512", "--tokenizer-processes", "2"];
    let server = Server::start("tokenizers-killed", &options);
    let expected = answer_all(&server, &requests, |_| {});
    let (mut killed, mut seed) = (Vec::new(), 0);
    while killed.len() < kill_count() as usize {
        let got = answer_all(&server, &requests, |done: &AtomicBool| {
            let mut random = Random::new(seed);
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(random.between(20, 300).into()));
                let running = processes(&server);
                if !running.is_empty() {
                    let process = random.pick(&running);
                    signal(process, "-KILL");
                    killed.push(process);
                }
            }
        });
        for ((request, expected), got) in requests.iter().zip(&expected).zip(&got) {
            assert_eq!(got, expected, "round {seed}: {request:?}");
        }
        seed += 1;
    }
    // The server may still report a killed process as ready: only one that runs is its successor.
    wait_for_exit(&killed);
    wait_until("ready", &server, |all| {
        all.iter().all(|tokenizer| tokenizer["is_ready"] == true)
            && all.iter().all(|tokenizer| tokenizer["process"].as_u64().is_some_and(is_running))
    });
    wait_until("idle", &server, |all| all.iter().all(|tokenizer| tokenizer["jobs"] == 0));
    let restarts: u64 = status(&server).iter().filter_map(|tokenizer| tokenizer["restarts"].as_u64()).sum();
    assert!(restarts > 0, "{:?}", status(&server));
    let page = server.send("GET", "/metrics", "", "").1;
    assert!(page.contains("kvasir:tokenizer_ready{model_name=\"tiny\",tokenizer=\"1\"} 1"), "{page}");
}

/// With a single tokenizer process, nothing is tokenized while it is suspended.
#[test]
fn suspending_a_tokenizer_process_changes_no_answer() {
    let requests: Vec<_> = (0..32).map(|number| request(number, 60)).collect();
    let options = ["--threads", "1", "--max-model-len", "512", "--tokenizer-processes", "1"];
    let server = Server::start("tokenizers-suspended", &options);
    let expected = answer_all(&server, &requests, |_| {});
    let process = processes(&server)[0];
    let got = answer_all(&server, &requests, |_| {
        signal(process, "-STOP");
        thread::sleep(Duration::from_secs(5));
        signal(process, "-CONT");
    });
    assert_eq!(got, expected);
    assert_eq!(processes(&server), [process]);
    // A process that stays suspended is killed.
    let got = answer_all(&server, &requests, |_| signal(process, "-STOP"));
    assert_eq!(got, expected);
    let status = status(&server);
    assert_eq!((&status[0]["hangs"], &status[0]["restarts"]), (&json!(1), &json!(1)), "{status:?}");
}

#[test]
fn tokenizer_processes_end_with_the_server() {
    let start = |name: &str| Server::start(name, &["--threads", "1", "--tokenizer-processes", "2"]);
    let mut server = start("tokenizers-front");
    let all = processes(&server);
    assert_eq!(all.len(), 2);
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    wait_for_exit(&all);
    let mut server = start("tokenizers-again");
    let all = processes(&server);
    assert_eq!(server.post(CHAT, &super::server::chat(json!({}))).0, 200);
    server.terminate();
    assert!(server.process.wait().unwrap().success());
    assert!(!all.iter().any(|process| is_running(*process)), "{all:?}");
    let none = Server::start("tokenizers-none", &["--threads", "1"]);
    assert_eq!(none.send("GET", "/v1/admin/tokenizers", "", "").0, 404);
}

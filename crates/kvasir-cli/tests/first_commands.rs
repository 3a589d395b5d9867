//! What users of other engines type first: it works, or one line says what to type instead.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Output, Stdio},
    thread,
};

const MINI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvasir/kvasir-mini.gguf");

fn kvasir(args: &[&str], stdin: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.args(args).env("HF_HUB_OFFLINE", "1").env("HF_HUB_CACHE", "/nowhere").env_remove("OLLAMA_HOST");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that reads no input may have ended.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(out: &Output) -> String {
    String::from_utf8(out.stdout.clone()).unwrap()
}

fn stderr(out: &Output) -> String {
    String::from_utf8(out.stderr.clone()).unwrap()
}

/// The one line of a usage error.
fn refused(args: &[&str]) -> String {
    let out = kvasir(args, "");
    let why = stderr(&out);
    assert_eq!((out.status.code(), why.lines().count()), (Some(2), 1), "{args:?}: {why}");
    why
}

#[test]
fn a_question_needs_no_model() {
    let whole = kvasir(&["run", "kvasir-mini", "What is 23 + 58?", "--temperature", "0"], "");
    assert!(stdout(&whole).contains("81"), "{}", stderr(&whole));
    for words in [&["What is 23 + 58?"][..], &["What", "is", "23", "+", "58?"]] {
        let out = kvasir(&[&["run"], words, &["--temperature", "0"]].concat(), "");
        assert_eq!((stdout(&out), stderr(&out).as_str()), (stdout(&whole), ""), "{words:?}");
    }
    let out = kvasir(&["run", "hello"], "");
    assert!(out.status.success() && !stdout(&out).is_empty() && stderr(&out).is_empty(), "{}", stderr(&out));
    let out = kvasir(&["run", "llama9"], "");
    assert!(out.status.success() && stderr(&out).contains("similar: `llama3`"), "{}", stderr(&out));
    assert!(refused(&["run", "llama9", "hi"]).contains("kvasir run kvasir-mini 'llama9 hi'"));
}

#[test]
fn unknown_models_and_missing_files_have_different_errors() {
    assert!(refused(&["chat", "llama9"]).contains("OWNER/NAME-GGUF:TYPE"));
    for args in [&["chat", "none.gguf"][..], &["run", "none.gguf", "hi"], &["none.gguf"]] {
        let out = kvasir(args, "");
        assert_eq!((out.status.code(), stderr(&out).lines().count()), (Some(1), 1), "{}", stderr(&out));
        assert!(stderr(&out).contains("none.gguf: no such file or directory"), "{}", stderr(&out));
    }
    let why = refused(&["run", "llama3.2:1b", "hi"]);
    assert!(why.contains("llama3.2:1b is bartowski/") && why.contains("HF_HUB_OFFLINE"), "{why}");
    assert!(refused(&["pull", "llama3.2:2b"]).contains("llama3.2:3b, llama3.2:1b"));
}

#[test]
fn models_that_cannot_chat_are_answered_with_what_to_do() {
    let folder = kvasir_testkit::paths::scratch(env!("CARGO_TARGET_TMPDIR"), "first-commands");
    let path = |name: &str| folder.join(name).display().to_string();
    let whole = std::fs::read(MINI).unwrap();
    std::fs::write(path("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    let out = kvasir(&["chat", &path("cut.gguf")], "");
    let part = format!("truncated: {} of {} bytes are there", whole.len() / 2, whole.len());
    assert!(stderr(&out).contains(&part) && stderr(&out).lines().count() == 1, "{}", stderr(&out));
    std::fs::copy(MINI, path("whole.gguf")).unwrap();
    let why = refused(&["chat", &path("")]);
    assert!(why.contains("name one: ") && why.contains("cut.gguf") && why.contains("whole.gguf"), "{why}");
    std::fs::remove_dir_all(&folder).unwrap();
    let bare = kvasir_testkit::paths::model("qwen3").display().to_string();
    let tokenizer = "../kvasir-formats/tests/data/tokenizers/qwen/tokenizer.json";
    let folder = kvasir_testkit::paths::scratch(env!("CARGO_TARGET_TMPDIR"), "first-commands");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(format!("{bare}/{file}"), folder.join(file)).unwrap();
    }
    std::fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/").to_owned() + tokenizer,
        folder.join("tokenizer.json"),
    )
    .unwrap();
    let why = refused(&["run", folder.to_str().unwrap(), "hi"]);
    assert!(why.contains("--chat-template FILE") && why.contains("kvasir generate"), "{why}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn commands_of_other_engines_are_answered() {
    assert_eq!(stdout(&kvasir(&["list"], "")), stdout(&kvasir(&["models"], "")));
    assert!(refused(&["show", "llama3.2"]).contains("kvasir inspect llama3.2"));
    assert!(refused(&["-m", "f.gguf", "-p", "hi"]).contains("kvasir chat f.gguf -p hi"));
    assert!(refused(&["chat", "-ngl", "99"]).contains("`-ngl`: there is no GPU backend"));
    assert!(refused(&["serve", "--gpu-memory-utilization", "0.9"]).contains("--memory-utilization"));
    let ours = ["chat", MINI, "--prompt", "What is 2 + 2?", "--temperature", "0", "--max-tokens", "9"];
    let theirs = ["-p", "What is 2 + 2?", "--temp", "0", "-n", "9", "-c", "512", "-t", "1"];
    let wanted = kvasir(&ours, "");
    assert!(wanted.status.success(), "{}", stderr(&wanted));
    for command in [&["chat", "-m", MINI][..], &["run", "--model", MINI], &[MINI]] {
        let out = kvasir(&[command, &theirs].concat(), "");
        assert_eq!(stdout(&out), stdout(&wanted), "{command:?}: {}", stderr(&out));
    }
}

/// Commands of the first pages of Ollama's, llama.cpp's and vLLM's documentation that do not run here, each with what to
/// type instead. `FILE` is a model.
#[test]
fn first_commands_of_other_engines_say_what_to_type() {
    for (line, instead) in [
        ("show llama3.2", "kvasir inspect llama3.2"),
        ("rm llama3.2", "kvasir models --json"),
        ("cp llama3.2 mine", "name them by their path"),
        ("stop llama3.2", "Ctrl-C"),
        ("create mario -f Modelfile", "--system"),
        ("push me/mario", "models are files"),
        ("run FILE hi --verbose", "prints its speed"),
        ("run FILE hi --format json", "kvasir generate has --json-schema"),
        ("run FILE hi --think=false", "/set enable_thinking false"),
        ("signin", "HF_TOKEN"),
        ("-v", "kvasir --version"),
        ("-m FILE -cnv", "kvasir chat FILE"),
        ("-m FILE -p hi -n 9 -no-cnv", "kvasir generate FILE -p hi -n 9"),
        ("llama-cli -m FILE", "kvasir chat FILE"),
        ("llama-server -m FILE --port 8080", "kvasir serve FILE"),
        ("-m FILE --port 8080 -c 512", "kvasir serve FILE --port 8080 -c 512"),
        ("serve -m FILE -c 512 -ngl 99", "leave it out"),
        ("serve -m FILE -fa on", "leave it out"),
        ("serve -m FILE -md draft.gguf", "--spec draft:MODEL"),
        ("serve FILE --pipeline-parallel-size 2", "leave it out"),
        ("serve FILE --dtype auto", "leave it out"),
        ("serve FILE --gpu-memory-utilization 0.9", "--memory-utilization"),
        ("serve FILE --kv-cache-dtype auto", "leave it out"),
        ("serve FILE --load-format auto", "leave it out"),
        ("serve FILE --enable-auto-tool-choice", "leave it out"),
        ("run-batch -i in.jsonl", "kvasir serve"),
        ("collect-env", "kvasir doctor"),
    ] {
        let (line, instead) = (line.replace("FILE", MINI), instead.replace("FILE", MINI));
        let why = refused(&line.split(' ').collect::<Vec<_>>());
        assert!(why.contains(&instead), "{line}: {why}");
    }
}

#[test]
fn a_host_may_be_a_name() {
    let out = kvasir(&["serve", "--host", "localhost", "--print-config"], "");
    assert!(stdout(&out).contains("host = \"localhost\""), "{}", stderr(&out));
    assert!(refused(&["serve", "--host", "127.0.0.1:8000"]).contains("--host 127.0.0.1 --port 8000"));
}

#[test]
fn ps_lists_what_a_server_has_loaded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1024];
        let len = stream.read(&mut request).unwrap();
        let body = r#"{"models": [{"name": "mine", "size": 5000000, "context_length": 4096}]}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        String::from_utf8_lossy(&request[..len]).into_owned()
    });
    let out = kvasir(&["ps", &url, "--api-key", "k"], "");
    let request = server.join().unwrap();
    assert!(request.starts_with("GET /api/ps ") && request.contains("Bearer k"), "{request}");
    assert_eq!(stdout(&out), "mine  5 MB  4096 tokens\n");
    assert!(stderr(&out).contains(&url), "{}", stderr(&out));
    let none = kvasir(&["ps", "http://127.0.0.1:9"], "");
    assert_eq!(none.status.code(), Some(1));
    assert!(stderr(&none).contains("start one with kvasir serve MODEL"), "{}", stderr(&none));
}

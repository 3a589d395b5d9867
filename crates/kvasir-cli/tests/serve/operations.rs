//! Server operation: option precedence, TLS, CORS, graceful shutdown, traces.

use super::server::{COMPLETIONS, JSON, Server, model};
use serde_json::json;
use std::{
    fs,
    io::Read,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
};

/// Runs the command with these arguments and environment.
pub(crate) fn kvasir(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.args(args).envs(environment.iter().copied()).output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    text
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let folder = std::env::temp_dir().join(format!("kvasir-serve-{}-config", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("kvasir.toml");
    let path = file.to_str().unwrap();
    let text = "grace = 3\nmax-requests = 7\nport = 1\nmixed = \"on\"\napi-key = [\"k1\", \"k2\"]\n";
    fs::write(&file, text).unwrap();
    let environment = [("KVASIR_MAX_REQUESTS", "8"), ("KVASIR_PORT", "2")];
    let args = ["serve", "--config", path, "--port", "3", "--print-config"];
    let printed = kvasir(&args, &environment);
    assert!(printed.status.success());
    let printed = out(&printed);
    for line in ["grace = 3", "max-requests = 8", "port = 3", "mixed = \"on\"", "host = \"127.0.0.1\""] {
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
    assert!(printed.contains("# api-key: 2 given") && !printed.contains("k1"), "{printed}");
    // The printed file can be read back and yields the same options.
    fs::write(&file, &printed).unwrap();
    let again = out(&kvasir(&["serve", "--config", path, "--print-config"], &[]));
    let told = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(told(&again), told(&printed));
    for (text, named) in [("prot = 1", "`prot`"), ("port = {}", "`port`"), ("port = ", "line 1, column 8")] {
        fs::write(&file, text).unwrap();
        let why = complaint(&kvasir(&["serve", "--config", path], &[]));
        assert!(why.contains(named) && why.contains("kvasir.toml"), "{why}");
    }
    let why = complaint(&kvasir(&["serve", "--config", folder.join("none").to_str().unwrap()], &[]));
    assert!(why.contains("none"), "{why}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_and_the_environment_set_up_a_server() {
    let folder = model("file");
    let file = folder.join("kvasir.toml");
    fs::write(&file, "max-model-len = 96\nmetrics-alias = \"vllm\"\nallowed-origins = [\"http://a.example\", \"http://b.example\"]\n").unwrap();
    let options = ["--config", file.to_str().unwrap()];
    let server = Server::start_with("file", &options, &[("KVASIR_API_KEY", "secret")]);
    assert_eq!(server.send("GET", "/health", "", "").0, 401);
    let page = |origin: &str| server.exchange("GET", "/live", &format!("Origin: {origin}\r\n"), "");
    let allowed = |origin| page(origin).header("access-control-allow-origin").map(str::to_owned);
    assert_eq!(allowed("http://b.example").as_deref(), Some("http://b.example"));
    assert_eq!(allowed("http://c.example"), None);
    let key = "Authorization: Bearer secret\r\n";
    let models = server.send("GET", "/v1/models", key, "").1;
    assert!(models.contains("\"max_model_len\":96") && !models.contains("\"created\":0"), "{models}");
    assert!(
        server
            .send("GET", "/metrics", key, "")
            .1
            .contains("vllm:num_requests_waiting{model_name=\"tiny\"} 0\n")
    );
}

#[test]
fn dummy_rows_of_a_padded_batch_are_counted() {
    let server = Server::start("padded", &["--backend", "plain", "--batch-sizes", "4"]);
    assert_eq!(server.send("GET", "/health", "", "").0, 200);
    let body = r#"{"model": "tiny", "prompt": "a", "max_tokens": 6, "ignore_eos": true}"#;
    assert_eq!(server.send("POST", COMPLETIONS, JSON, body).0, 200);
    let page = server.send("GET", "/metrics", "", "").1;
    let padding = page.lines().find_map(|line| line.strip_prefix("kvasir:padding_tokens_total{")).unwrap();
    // Three dummy rows in each of five decode steps; the last step may not be counted yet.
    assert!(padding.ends_with(" 12") || padding.ends_with(" 15"), "{padding}");
}

#[test]
fn contradictory_options_are_refused_at_start_by_name() {
    let folder = model("contradictory");
    let (twice, alice) = (folder.join("twice.txt"), folder.join("alice.txt"));
    fs::write(&twice, "alice: sesame\n# a comment\nbob: sesame admin\n").unwrap();
    fs::write(&alice, "alice: sesame\n").unwrap();
    let (twice, alice) = (twice.to_str().unwrap(), alice.to_str().unwrap());
    let cases: [(&[&str], &[&str]); 18] = [
        (&["--api-key", "sesame", "--admin-key", "sesame"], &["--admin-key: ", "--api-key "]),
        (&["--api-key-file", twice], &["twice.txt line 3", "twice.txt line 1"]),
        (&["--api-key-file", alice, "--admin-key", "sesame"], &["--admin-key", "alice.txt line 1"]),
        (&["--api-key-file", alice, "--api-key", "sesame"], &["--api-key", "alice.txt line 1"]),
        (&["--metrics-key", "sesame", "--api-key", "sesame"], &["--metrics-key", "--api-key"]),
        (&["--metrics-key", " ", "--api-key", "a"], &["--metrics-key"]),
        (&["--rate-limit", "alice:1,1"], &["--rate-limit alice: no key has this name"]),
        (
            &["--rate-limit", "1:1,1", "--api-key", "sesame"],
            &["--rate-limit 1: ", "--api-key-file names keys"],
        ),
        (&["--rate-limit", "bob:1,1", "--api-key-file", alice], &["--rate-limit bob: "]),
        (&["--rate-limit", "alice:1,1", "--rate-limit", "alice:2,2"], &["--rate-limit", "`alice` has two"]),
        (&["--rate-limit", "a:1,1,b:1,1"], &["--rate-limit: `a:1,1,b:1,1`", "white space or `;`"]),
        (&["--rate-limit", ""], &["--rate-limit: "]),
        (&["--model-name", ""], &["--model-name", "the name is empty"]),
        (&["--model-name", "a,"], &["--model-name", "the name is empty"]),
        (&["--grace", "-1"], &["--grace"]),
        (&["--tls-cert", "nope.pem", "--tls-key", "nope.pem"], &["--tls-cert nope.pem"]),
        (&["--chat-template", "nope.jinja"], &["--chat-template nope.jinja"]),
        (&["--health-port", "-1"], &["--health-port"]),
    ];
    for (options, parts) in cases {
        let output = kvasir(&[&["serve", "--port", "0", "--log-level", "off"], options].concat(), &[]);
        let text = String::from_utf8(output.stderr).unwrap();
        let why = text.lines().last().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {text}");
        assert!(parts.iter().all(|part| why.contains(part)), "{options:?}: {text}");
        assert!(!text.contains("sesame"), "{text}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_limit_that_lost_its_key_is_warned_of_after_sighup() {
    use std::io::BufRead;
    let folder = model("lost-limit");
    let file = folder.join("keys.txt");
    fs::write(&file, "alice: one\nbob: two\n").unwrap();
    let options = ["--api-key-file", file.to_str().unwrap(), "--rate-limit", "alice:1,1000"];
    let (server, stderr) = Server::built_in(&options);
    fs::write(&file, "bob: two # alice has left\n").unwrap();
    Command::new("kill").args(["-HUP", &server.process.id().to_string()]).status().unwrap();
    let mut lines = stderr.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("1 API key reloaded")));
    let warning = lines.next().unwrap();
    assert!(warning.contains("warning: --rate-limit alice: no key has this name"), "{warning}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn flags_are_set_by_the_environment() {
    let set = [("KVASIR_OPEN_HEALTH", "1"), ("KVASIR_API_KEY", "secret")];
    let server = Server::start_with("open-health", &[], &set);
    assert_eq!(
        (server.send("GET", "/health", "", "").0, server.send("GET", "/metrics", "", "").0),
        (200, 401)
    );
    let printed = out(&kvasir(&["serve", "--print-config"], &set));
    assert!(printed.contains("open-health = true\n"), "{printed}");
    let printed = out(&kvasir(&["serve", "--print-config"], &[("KVASIR_OPEN_HEALTH", "off")]));
    assert!(printed.contains("open-health = false\n"), "{printed}");
}

#[test]
fn malformed_origins_are_refused_at_start() {
    let why = complaint(&kvasir(&["serve", "--allowed-origins", "*,page.example/"], &[]));
    assert!(why.contains("--allowed-origins") && why.contains("`page.example/`"), "{why}");
}

#[test]
fn tls_is_spoken_or_refused_at_the_start() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-serve/tests/data");
    let (cert, secret) = (data.join("test-cert.pem"), data.join("test-key.pem"));
    let (cert, secret) = (cert.to_str().unwrap(), secret.to_str().unwrap());
    assert!(complaint(&kvasir(&["serve", "--tls-cert", cert], &[])).contains("--tls-key"));
    let why = complaint(&kvasir(&["serve", "--tls-cert", cert, "--tls-key", "none.pem"], &[]));
    assert!(why.contains("none.pem"), "{why}");
    let server = Server::start("tls", &["--tls-cert", cert, "--tls-key", secret]);
    // Plain HTTP is not answered; at most a TLS alert comes back.
    let mut stream = server.connect();
    let _ = std::io::Write::write_all(&mut stream, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
}

#[test]
fn an_answer_that_outlasts_the_grace_is_cut() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let slow =
        ["--backend", "sim", "--sim-preset", "fixed:50ms", "--grace", "1", "--otlp-endpoint", &endpoint];
    let mut server = Server::start("grace", &slow);
    let mut stream = server.streaming("", json!({"max_tokens": 2000}));
    server.terminate();
    assert!(server.process.wait().unwrap().success());
    // The trace was exported before the process exited.
    collector.set_nonblocking(true).unwrap();
    let (told, _) = collector.accept().unwrap();
    let mut traces = String::new();
    let _ = told.take(200).read_to_string(&mut traces);
    assert!(traces.starts_with("POST /v1/traces"), "{traces}");
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(!rest.contains("\"finish_reason\":\"length\""), "it should have taken a minute and a half");
}

#[test]
fn a_second_signal_cuts_answers_and_says_so() {
    let slow = ["--backend", "sim", "--sim-preset", "fixed:50ms", "--grace", "600"];
    let mut server = Server::start("second", &slow);
    let mut stream = server.streaming("", json!({"max_tokens": 2000}));
    server.terminate();
    while server.process.try_wait().unwrap().is_none() {
        server.terminate();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(rest.contains("the server is stopping"), "{rest}");
    assert!(!rest.contains("[DONE]"), "an error is the last event: {rest}");
}

#[test]
fn the_file_of_keys_is_read_again_on_sighup() {
    let folder = model("keys");
    let file = folder.join("keys.txt");
    fs::write(&file, "alice: one\n").unwrap();
    let server = Server::start("keys", &["--api-key-file", file.to_str().unwrap()]);
    let status =
        |key: &str| server.send("GET", "/v1/models", &format!("Authorization: bearer {key}\r\n"), "").0;
    assert_eq!((status("one"), status("two")), (200, 401));
    let hang_up = || {
        Command::new("kill").args(["-HUP", &server.process.id().to_string()]).status().unwrap();
    };
    fs::write(&file, "alice: one\nbob: two\n").unwrap();
    hang_up();
    while status("two") == 401 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // A file that cannot be read changes nothing.
    fs::write(&file, "no: good key\n").unwrap();
    hang_up();
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!((status("one"), status("two")), (200, 200));
    let why = complaint(&kvasir(&["serve", "--api-key-file", file.to_str().unwrap()], &[]));
    assert!(why.contains("line 1"), "{why}");
}

#[test]
fn the_start_tells_what_to_expect_and_which_files_are_exposed() {
    use std::{
        io::{BufRead, BufReader},
        os::unix::fs::PermissionsExt,
        process::Stdio,
    };
    let folder = model("start");
    let (config, keys) = (folder.join("kvasir.toml"), folder.join("keys.txt"));
    fs::write(&config, "api-key = [\"secret\"]\n").unwrap();
    fs::write(&keys, "alice: one\nops: two admin\n").unwrap();
    for (mode, is_exposed) in [(0o644, true), (0o640, false)] {
        for file in [&config, &keys] {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let files = ["--config", config.to_str().unwrap(), "--api-key-file", keys.to_str().unwrap()];
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args([
                "serve",
                folder.to_str().unwrap(),
                "--port",
                "0",
                "--kv-capacity",
                "2048",
                "--threads",
                "1",
            ])
            .args(files)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
        let expected = 4 + if is_exposed { 2 } else { 0 };
        let told: Vec<String> = lines.by_ref().take(expected).collect();
        process.kill().unwrap();
        process.wait().unwrap();
        let told = told.join("\n");
        let parts = [
            "fit into",
            "first token of a",
            "://",
            "1 thread, f32 activations; K and V as f32, 0.00 GB",
            "no TLS, 3 API keys with an admin's; at most 1024 requests with 16384 tokens",
            "2048 per peer",
        ];
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
        let warnings = told.lines().filter(|line| line.starts_with("kvasir: warning: "));
        assert_eq!(warnings.clone().count(), expected - 4, "{told}");
        assert!(
            warnings.clone().all(|line| line.contains("every user of this machine can read it")),
            "{told}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A collector of logs reads lines of one format, the last of a server that cannot start included.
#[test]
fn a_start_that_fails_is_logged_as_json() {
    for (option, value, part) in
        [("--host", "127.0.0.1", "no such file"), ("--tls-cert", "none.pem", "none.pem")]
    {
        let key = ["--tls-key", "none.pem"];
        let options = ["serve", "none.gguf", "--log-format", "json", option, value];
        let more = if option == "--tls-cert" { &key[..] } else { &[] };
        let output = Command::new(env!("CARGO_BIN_EXE_kvasir")).args(options).args(more).output().unwrap();
        assert!(!output.status.success());
        let text = String::from_utf8(output.stderr).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line["level"], "error");
        assert!(line["message"].as_str().unwrap().contains(part), "{text}");
    }
}

#[test]
fn requests_have_one_host() {
    use std::io::Write;
    let server = Server::start("host", &[]);
    for (hosts, status) in [("", 400), ("Host: a\r\n", 200), ("Host: a\r\nHost: b\r\n", 400)] {
        let mut stream = server.connect();
        write!(stream, "GET /live HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n").unwrap();
        assert_eq!(super::server::Answer::read(stream).status, status, "{hosts:?}");
    }
}

//! Test harness: a server process, and an HTTP client that exposes the raw response.

use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    time::Duration,
};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
/// Header of a JSON body.
pub(crate) const JSON: &str = "Content-Type: application/json\r\n";

pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) address: String,
    /// Address of the probe listener, if any.
    pub(crate) probes: Option<String>,
    pub(crate) folder: PathBuf,
}

/// A raw response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Status line and headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads the rest of a connection; a reset after the response is fine.
    pub(crate) fn read(mut stream: impl Read) -> Self {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let head = head.to_lowercase();
        let body =
            if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Self { status: head.split(' ').nth(1).unwrap().parse().unwrap(), head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The error's `param`.
    pub(crate) fn param(&self) -> String {
        self.json()["error"]["param"].as_str().unwrap_or_default().to_owned()
    }
}

impl Server {
    /// Serves the tiny Qwen3 with its tokenizer on a free port.
    pub(crate) fn start(name: &str, options: &[&str]) -> Self {
        Self::start_with(name, options, &[])
    }

    /// A server, with what it writes to stderr after its first line.
    pub(crate) fn start_logged(name: &str, options: &[&str]) -> (Self, BufReader<ChildStderr>) {
        let folder = model(name);
        let model = folder.to_str().unwrap().to_owned();
        Self::of(&model, folder, options, &[])
    }

    /// Starts a server with environment variables.
    pub(crate) fn start_with(name: &str, options: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::of_model(model(name), options, environment)
    }

    /// Serves the model in this folder, a checkpoint or `model.gguf`. The folder is removed on
    /// drop.
    pub(crate) fn of_model(folder: PathBuf, options: &[&str], environment: &[(&str, &str)]) -> Self {
        let file = folder.join("model.gguf");
        let model = if file.exists() { &file } else { &folder };
        let model = model.to_str().unwrap().to_owned();
        Self::of(&model, folder, options, environment).0
    }

    /// Serves the built-in model; with what it writes to stderr from here on.
    pub(crate) fn built_in(options: &[&str]) -> (Self, BufReader<ChildStderr>) {
        let folder = std::env::temp_dir().join(format!("kvasir-serve-{}-none", std::process::id()));
        Self::of("kvasir-mini", folder, options, &[])
    }

    fn of(
        model: &str,
        folder: PathBuf,
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> (Self, BufReader<ChildStderr>) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(["serve", model, "--port", "0", "--model-name", "tiny"])
            .args(options)
            .envs(environment.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        // The prediction of `serve` comes first.
        while !line.contains("://") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server has not started");
        }
        let address = line.split("://").nth(1).unwrap_or_else(|| panic!("{line}"));
        let address = address.split(',').next().unwrap().to_owned();
        let probes = line.split(", probes at http://").nth(1).map(|address| address.trim().to_owned());
        (Self { process, address, probes, folder }, stderr)
    }

    /// A connection with a read timeout.
    pub(crate) fn connect(&self) -> TcpStream {
        connect(&self.address)
    }

    pub(crate) fn exchange(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = self.connect();
        // A server may reject before it has read everything, so a write may fail.
        let _ = write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        Answer::read(stream)
    }

    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let answer = self.exchange(method, path, headers, body);
        (answer.status, answer.body)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.exchange("POST", path, JSON, &body.to_string());
        (answer.status, answer.json())
    }

    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, text) = self.send("POST", path, JSON, &body.to_string());
        assert_eq!(status, 200, "{text}");
        let lines = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        let (done, events): (Vec<&str>, Vec<&str>) = lines.partition(|line| *line == "[DONE]");
        assert_eq!(done.len(), 1, "exactly one end");
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// A streamed chat whose first tokens have arrived, with what was read so far.
    pub(crate) fn streaming(&self, headers: &str, extra: Value) -> BufReader<TcpStream> {
        streaming(&self.address, headers, extra).0
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
    }
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream
}

/// A streamed chat whose first tokens have arrived, with what was read so far.
pub(crate) fn streaming(address: &str, headers: &str, extra: Value) -> (BufReader<TcpStream>, String) {
    let mut body = chat(json!({"stream": true, "ignore_eos": true, "seed": 1}));
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let mut stream = connect(address);
    write!(stream, "{}{body}", head(CHAT, headers, body.to_string().len())).unwrap();
    let mut stream = BufReader::new(stream);
    let (mut read, mut events) = (String::new(), 0);
    // The first event carries the role, before anything is computed.
    while events < 2 {
        let start = read.len();
        assert!(stream.read_line(&mut read).unwrap() > 0, "it has begun: {read}");
        events += usize::from(read[start..].starts_with("data: "));
    }
    (stream, read)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A folder with the tiny Qwen3 and its tokenizer.
pub(crate) fn model(name: &str) -> PathBuf {
    model_of(name, "qwen3")
}

/// A folder with a test checkpoint and Qwen's tokenizer.
pub(crate) fn model_of(name: &str, checkpoint: &str) -> PathBuf {
    let root = kvasir_testkit::paths::repository();
    let folder = std::env::temp_dir().join(format!("kvasir-serve-{}-{name}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let checkpoint = root.join("testdata/models").join(checkpoint);
    for from in [checkpoint, root.join("crates/kvasir-formats/tests/data/tokenizers/qwen")] {
        for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    folder
}

/// Request head for a JSON body.
pub(crate) fn head(path: &str, headers: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{JSON}{headers}Content-Length: {length}\r\n\r\n"
    )
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        whole.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
        if size == 0 {
            break;
        }
    }
    whole
}

/// A chat body, extended or overridden by `extra`.
pub(crate) fn chat(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "hello"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

//! Models by their hub name: found in the hub's cache; fetched into it from a hub of our own on loopback.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/models/qwen3")
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kvasir-hub-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A cache with one model, the model's folder in it, and its files.
fn cached(name: &str) -> (PathBuf, PathBuf, PathBuf) {
    let cache = folder(name);
    let of_model = cache.join("models--acme--tiny");
    let snapshot = of_model.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(of_model.join("refs")).unwrap();
    fs::write(of_model.join("refs/main"), COMMIT).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model().join(file), snapshot.join(file)).unwrap();
    }
    (cache, of_model, snapshot)
}

fn inspect(cache: &Path, endpoint: &str, name: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    command.args(["inspect", name]).env("HF_HUB_CACHE", cache).env("HF_ENDPOINT", endpoint);
    command.env("NO_PROXY", "127.0.0.1").output().unwrap()
}

#[test]
fn a_model_in_the_cache_is_used_without_a_network() {
    let (cache, of_model, snapshot) = cached("cache");
    // Nobody listens there.
    let nowhere = "http://127.0.0.1:9";
    for name in ["acme/tiny", "acme/tiny@main", &format!("acme/tiny@{COMMIT}")] {
        let out = inspect(&cache, nowhere, name);
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(String::from_utf8_lossy(&out.stdout).contains("Qwen3ForCausalLM"));
    }
    for name in ["acme/other", "acme/tiny@v2"] {
        let out = inspect(&cache, nowhere, name);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success());
        assert!(said.lines().count() == 1 && said.contains(name.split('@').next().unwrap()), "{said}");
    }
    // What is missing is said: a revision, a tag, a shard. A fetch says what the hub says.
    if cfg!(not(feature = "hub")) {
        let index = r#"{"weight_map": {"a": "model.safetensors", "b": "more.safetensors"}}"#;
        fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
        fs::write(snapshot.join("m-Q4_0-00002-of-00002.gguf"), "").unwrap();
        for (name, missing) in [
            ("acme/tiny@v2", "revision v2"),
            ("acme/tiny:Q8", "\"q8\""),
            ("acme/tiny", "more.safetensors"),
            ("acme/tiny:Q4_0", "m-Q4_0-00001-of-00002.gguf"),
        ] {
            let said = String::from_utf8(inspect(&cache, nowhere, name).stderr).unwrap();
            assert!(said.lines().count() == 1 && said.contains(missing), "{name}: {said}");
        }
    }
    fs::create_dir_all(cache.join("outside")).unwrap();
    fs::write(of_model.join("refs/main"), "../../../outside").unwrap();
    let said = String::from_utf8(inspect(&cache, nowhere, "acme/tiny").stderr).unwrap();
    assert!(said.contains("refs/main: holds no commit's name"), "{said}");
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn every_command_finds_a_model_by_its_name() {
    let (cache, _, snapshot) = cached("commands");
    let tokenizer = "../kvasir-formats/tests/data/tokenizers/qwen";
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(tokenizer)).unwrap() {
        let file = file.unwrap().path();
        fs::copy(&file, snapshot.join(file.file_name().unwrap())).unwrap();
    }
    let out = cache.join("out.gguf");
    for args in [
        vec!["tokenize", "acme/tiny"],
        vec!["template", "acme/tiny", "--json"],
        vec!["convert", "acme/tiny", out.to_str().unwrap(), "--dtype", "f16"],
        vec!["bench", "pp", "acme/tiny", "--tokens", "4", "--reps", "1"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(&args).env("HF_HUB_CACHE", &cache).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
        running.stdin.take().unwrap().write_all(b"[]").unwrap();
        let said = running.wait_with_output().unwrap();
        assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
    }
    let _ = fs::remove_dir_all(cache);
}

#[cfg(feature = "hub")]
mod fetched {
    use super::*;
    use std::{
        io::{BufRead, BufReader},
        net::{TcpListener, TcpStream},
        thread,
    };

    /// A hub with one repository, `acme/tiny`, of the test model's files. One that `breaks` ends every transfer of weights half way.
    fn hub(breaks: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                thread::spawn(move || answer(stream, breaks));
            }
        });
        format!("http://{address}")
    }

    fn answer(stream: TcpStream, breaks: bool) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut first = String::new();
        reader.read_line(&mut first).ok()?;
        let mut line = String::new();
        while reader.read_line(&mut line).ok()? > 2 {
            line.clear();
        }
        let mut words = first.split(' ');
        let (method, path) = (words.next()?, words.next()?.split('?').next()?);
        let (kind, body) = reply(path);
        let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
        let body = body.unwrap_or_default();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nETag: \"{:x}\"\r\nX-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
            body.len(),
            body.len(),
        );
        let mut stream = stream;
        stream.write_all(head.as_bytes()).ok()?;
        if method != "HEAD" {
            let sent = if breaks && path.ends_with(".safetensors") { body.len() / 2 } else { body.len() };
            stream.write_all(&body[..sent]).ok()?;
        }
        Some(())
    }

    fn reply(path: &str) -> (&'static str, Option<Vec<u8>>) {
        let files = ["config.json", "model.safetensors"];
        let json = |value: serde_json::Value| ("application/json", Some(value.to_string().into_bytes()));
        if path.starts_with("/api/models/acme/tiny/tree/") {
            let entry = |file: &&str| {
                let size = fs::metadata(model().join(file)).unwrap().len();
                serde_json::json!({"type": "file", "path": file, "oid": "0", "size": size})
            };
            return json(
                files
                    .iter()
                    .map(entry)
                    .chain([serde_json::json!(
                        {"type": "file", "path": "README.md", "oid": "0", "size": 1}
                    )])
                    .collect(),
            );
        }
        if path.starts_with("/api/models/acme/tiny") {
            return json(serde_json::json!({"id": "acme/tiny", "sha": COMMIT}));
        }
        let asked = path.strip_prefix("/acme/tiny/resolve/").and_then(|rest| rest.split_once('/'));
        let file = asked.and_then(|(_, file)| files.iter().find(|f| **f == file));
        ("application/octet-stream", file.map(|file| fs::read(model().join(file)).unwrap()))
    }

    #[test]
    fn a_model_is_fetched_once() {
        let (cache, hub) = (folder("fetch"), hub(false));
        let out = inspect(&cache, &hub, "acme/tiny");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let again = inspect(&cache, "http://127.0.0.1:9", "acme/tiny");
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        assert_eq!(out.stdout, again.stdout);
        assert!(!cache.join("models--acme--tiny/snapshots").join(COMMIT).join("README.md").exists());
        let none = inspect(&cache, &hub, "acme/none");
        assert_eq!(none.status.code(), Some(1));
        let _ = fs::remove_dir_all(cache);
    }
    #[test]
    fn what_was_interrupted_is_fetched_when_asked_again() {
        let (cache, broken, whole) = (folder("broken"), hub(true), hub(false));
        for name in ["acme/tiny".to_owned(), format!("acme/tiny@{COMMIT}")] {
            let out = inspect(&cache, &broken, &name);
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(1), "{said}");
            assert!(said.lines().last().unwrap().contains("asking again"), "{said}");
        }
        let out = inspect(&cache, &whole, &format!("acme/tiny@{COMMIT}"));
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let _ = fs::remove_dir_all(cache);
    }
}

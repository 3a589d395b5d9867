//! `/api/pull` of a server with `--allow-pull`: models that it fetches for its clients.

use super::{
    COMMIT, TOKEN, folder,
    loopback::{Hub, Wrong},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Serves the built-in model with `--allow-pull`.
    fn start(cache: &Path, endpoint: &str, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(["serve", "--backend", "sim", "--port", "0", "--allow-pull"]).args(options);
        command.env("HF_HUB_CACHE", cache).env("HF_ENDPOINT", endpoint).env("HF_TOKEN", TOKEN);
        command.env("NO_PROXY", "127.0.0.1").env_remove("HF_HUB_OFFLINE");
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        while !line.contains("http://") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the server has not started");
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        let address = line.split("http://").nth(1).unwrap().split(',').next().unwrap().to_owned();
        Self { process, address }
    }

    /// Sends a pull; returns status and lines of the answer. HTTP/1.0 has no chunked encoding.
    fn pull(&self, key: &str, body: &Value) -> (u16, Vec<Value>) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!(
            "POST /api/pull HTTP/1.0\r\nHost: x\r\nX-Api-Key: {key}\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, lines) = text.split_once("\r\n\r\n").unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        (head.split(' ').nth(1).unwrap().parse().unwrap(), lines.collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_pull_streams_the_progress_of_each_file() {
    let (cache, hub) = (folder("pull"), Hub::new(Wrong::Nothing));
    let server = Server::start(&cache, &hub.endpoint, &[]);
    let (status, lines) = server.pull("", &json!({"model": "acme/tiny"}));
    assert_eq!(status, 200, "{lines:?}");
    assert_eq!(lines[0], json!({"status": "pulling manifest"}));
    let (last, lines) = lines.split_last().unwrap();
    let (hint, lines) = lines.split_last().unwrap();
    assert_eq!(last, &json!({"status": "success"}));
    assert!(hint["status"].as_str().unwrap().ends_with("kvasir serve acme/tiny"), "{hint}");
    for file in ["config.json", "model.safetensors"] {
        let size =
            fs::metadata(cache.join("models--acme--tiny/snapshots").join(COMMIT).join(file)).unwrap().len();
        let status = format!("pulling {file}");
        let of_file: Vec<&Value> = lines.iter().filter(|line| line["status"] == status.as_str()).collect();
        let whole = of_file.last().unwrap();
        assert_eq!((&whole["completed"], &whole["total"]), (&json!(size), &json!(size)));
        assert_eq!(whole["digest"], format!("sha256:{size:064x}"));
    }
    // A cached model is not fetched again.
    assert!(!hub.began().is_empty());
    let whole = server.pull("", &json!({"name": "acme/tiny", "stream": false}));
    assert_eq!((whole, hub.began()), ((200, vec![json!({"status": "success"})]), Vec::new()));
    let _ = fs::remove_dir_all(cache);
}

#[test]
fn a_pull_that_fails_says_why() {
    let (cache, hub) = (folder("pull-fails"), Hub::new(Wrong::Nothing));
    let server = Server::start(&cache, &hub.endpoint, &["--api-key", "user", "--admin-key", "boss"]);
    for (name, part) in
        [("acme/none", "no such model"), ("nonsense", "is no hub name"), ("../x", "is no hub name")]
    {
        let (status, lines) = server.pull("boss", &json!({"model": name}));
        let error = lines.last().unwrap()["error"].as_str().unwrap();
        assert!(status == 200 && error.contains(part), "{name}: {error}");
        let (status, whole) = server.pull("boss", &json!({"model": name, "stream": false}));
        assert!(status >= 400 && whole[0]["error"] == error, "{name}: {whole:?}");
    }
    let (status, error) = server.pull("user", &json!({"model": "acme/tiny"}));
    assert!(status == 403 && error[0]["error"].as_str().unwrap().contains("admin"), "{error:?}");
    let _ = fs::remove_dir_all(cache);
}

//! A fake hub on loopback with two repositories: `acme/tiny`, with injectable faults, and one that a short name stands
//! for.

use super::{COMMIT, TOKEN, model};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// Injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    Nothing,
    /// Weight transfers break off halfway.
    Breaks,
    /// Listed sizes differ from the files.
    Lies,
    /// Lists a path outside the repository.
    LeadsOutside,
    /// Requires another token.
    Locked,
}

/// A running fake hub; records the weight transfers.
pub(crate) struct Hub {
    pub(crate) endpoint: String,
    ranges: Arc<Mutex<Vec<usize>>>,
}

impl Hub {
    pub(crate) fn new(wrong: Wrong) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let range_starts = ranges.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, range_starts) = (stream.unwrap(), range_starts.clone());
                thread::spawn(move || answer(stream, wrong, &range_starts));
            }
        });
        Self { endpoint, ranges }
    }

    /// Start offsets of weight transfers since the last call.
    pub(crate) fn began(&self) -> Vec<usize> {
        std::mem::take(&mut self.ranges.lock().unwrap())
    }
}

fn answer(stream: TcpStream, wrong: Wrong, range_starts: &Mutex<Vec<usize>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut lines = std::iter::from_fn(|| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned()).filter(|line| !line.is_empty())
    });
    let first = lines.next()?;
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let header = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let path = first.split(' ').nth(1)?.split('?').next()?;
    let token = if wrong == Wrong::Locked { "hf_theirs" } else { TOKEN };
    let known = header("authorization") == Some(&format!("Bearer {token}"));
    let body = if known { reply(path, wrong) } else { None };

    let mut stream = stream;
    let Some(body) = body else {
        let status = if known { "404 Not Found" } else { "401 Unauthorized" };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return stream.write_all(head.as_bytes()).ok();
    };
    let range = header("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let start: usize = range.map_or(0, |(start, _)| start.parse().unwrap());
    let end = range.and_then(|(_, end)| end.parse::<usize>().ok()).map_or(body.len(), |end| end + 1);
    let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\nETag: \"{:x}\"\r\n\
         X-Repo-Commit: {COMMIT}\r\nConnection: close\r\n\r\n",
        end - start,
        end - 1,
        body.len(),
        body.len(),
    );
    stream.write_all(head.as_bytes()).ok()?;
    let weights = path.ends_with(".safetensors") && end == body.len();
    if weights {
        range_starts.lock().unwrap().push(start);
    }
    let sent = if weights && wrong == Wrong::Breaks { start + (end - start) / 2 } else { end };
    stream.write_all(&body[start..sent]).ok()
}

fn reply(path: &str, wrong: Wrong) -> Option<Vec<u8>> {
    let files = ["config.json", "model.safetensors"];
    let listing = ["main", COMMIT].map(|revision| format!("/api/models/acme/tiny/revision/{revision}"));
    if listing.iter().any(|listing| listing == path) {
        let mut entries: Vec<_> = files
            .iter()
            .map(|file| {
                let size = fs::metadata(model().join(file)).unwrap().len();
                serde_json::json!({"rfilename": file, "size": size + u64::from(wrong == Wrong::Lies),
                    "lfs": {"sha256": format!("{size:064x}")}})
            })
            .collect();
        entries.push(serde_json::json!({"rfilename": "README.md", "size": 1}));
        if wrong == Wrong::LeadsOutside {
            entries = vec![serde_json::json!({"rfilename": "../../../outside.gguf", "size": 1})];
        }
        let listing = serde_json::json!({"id": "acme/tiny", "sha": COMMIT, "siblings": entries});
        return Some(listing.to_string().into_bytes());
    }
    if path.contains("/Qwen/Qwen3-0.6B-GGUF/") {
        let gguf =
            fs::read(kvasir_testkit::paths::repository().join("crates/kvasir/kvasir-mini.gguf")).unwrap();
        if path.ends_with("/Qwen3-0.6B-Q8_0.gguf") {
            return Some(gguf);
        }
        let files = serde_json::json!([{"rfilename": "Qwen3-0.6B-Q8_0.gguf", "size": gguf.len()}]);
        let listing = serde_json::json!({"id": "Qwen/Qwen3-0.6B-GGUF", "sha": COMMIT, "siblings": files});
        return Some(listing.to_string().into_bytes());
    }
    let (_, file) = path.strip_prefix("/acme/tiny/resolve/")?.split_once('/')?;
    files.contains(&file).then(|| fs::read(model().join(file)).unwrap())
}

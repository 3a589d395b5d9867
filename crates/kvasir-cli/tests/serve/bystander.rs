//! A concurrent stream as a control: its text and inter-token steps must not change while other
//! clients misbehave.

use super::server::{Server, streaming};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

/// Records the engine's steps while it lives.
pub(crate) struct Steps {
    stream: TcpStream,
    reader: JoinHandle<Vec<Value>>,
}

impl Steps {
    pub(crate) fn follow(server: &Server) -> Self {
        let stream = server.connect();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let request = format!("GET /v1/engine/steps HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
        std::io::Write::write_all(&mut &stream, request.as_bytes()).unwrap();
        let mut line = String::new();
        while !line.starts_with("event: begin") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "it has begun");
        }
        let reader = thread::spawn(move || {
            let lines = reader.lines().map_while(Result::ok);
            let data = lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
            data.collect()
        });
        Self { stream, reader }
    }

    /// All steps in order; a `begin` event marks a gap.
    pub(crate) fn end(self) -> Vec<Value> {
        let _ = self.stream.shutdown(Shutdown::Both);
        self.reader.join().unwrap()
    }
}

/// Back-to-back streams of one prompt, from before the other clients start until they are done.
pub(crate) struct Bystander {
    over: Arc<AtomicBool>,
    talk: JoinHandle<usize>,
    steps: Steps,
}

impl Bystander {
    /// A `max_tokens` value that identifies its requests.
    const TOKENS: u64 = 397;
    /// Maximum steps between two of its tokens: 1 when alone, 2 with a prefill step in between.
    const PATIENCE: usize = 8;

    pub(crate) fn begin(server: &Server) -> Self {
        let alone = printed(streaming(&server.address, "", Self::wish()));
        let steps = Steps::follow(server);
        let mut stream = streaming(&server.address, "", Self::wish());
        let over = Arc::new(AtomicBool::new(false));
        let (seen, address) = (over.clone(), server.address.clone());
        let talk = thread::spawn(move || {
            for answers in 1.. {
                assert_eq!(printed(stream), alone, "answer {answers}: whoever else is there");
                if seen.load(Ordering::Relaxed) {
                    return answers;
                }
                stream = streaming(&address, "", Self::wish());
            }
            0
        });
        Self { over, talk, steps }
    }

    fn wish() -> Value {
        json!({"max_tokens": Self::TOKENS})
    }

    /// Asserts that every answer was unaffected and no token was delayed.
    pub(crate) fn went_on(self) {
        self.over.store(true, Ordering::Relaxed);
        let answers = self.talk.join().unwrap();
        let gaps = gaps(&self.steps.end(), Self::TOKENS);
        assert!(answers > 0 && gaps.len() > 100, "{answers} answers, {} gaps seen", gaps.len());
        let longest = gaps.iter().max().copied().unwrap_or(0);
        assert!(longest <= Self::PATIENCE, "{longest} steps between two tokens");
    }
}

/// The text of a streamed chat, including the part already read.
fn printed((mut stream, mut all): (BufReader<TcpStream>, String)) -> String {
    stream.read_to_string(&mut all).unwrap();
    assert!(!all.contains("\"error\""), "{all}");
    assert!(all.contains("\"finish_reason\":\"length\"") && all.contains("[DONE]"), "{all}");
    let events = all.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = events.filter_map(|event| serde_json::from_str::<Value>(event).ok());
    events.filter_map(|event| Some(event["choices"][0]["delta"]["content"].as_str()?.to_owned())).collect()
}

/// Steps between consecutive tokens of requests whose output limit is `most`.
fn gaps(steps: &[Value], most: u64) -> Vec<usize> {
    let mut gaps = Vec::new();
    let (mut id, mut last) = (None, None);
    for (number, step) in steps.iter().enumerate() {
        if step["title"].is_string() {
            // Steps were missed.
            last = None;
            continue;
        }
        let list = |key: &str| step[key].as_array().cloned().unwrap_or_default();
        if let Some(arrived) = list("arrived").into_iter().find(|arrived| arrived[2] == most) {
            (id, last) = (arrived[0].as_u64(), None);
        }
        let Some(id) = id else { continue };
        let has = |run: &Value| {
            run[0].as_u64().zip(run[1].as_u64()).is_some_and(|(from, n)| (from..from + n).contains(&id))
        };
        let spoke = list("spoke").iter().any(has) || list("outputs").iter().any(|one| one[0] == id);
        if spoke {
            gaps.extend(last.map(|last| number - last));
            last = Some(number);
        }
    }
    gaps
}

//! Runs invocations of the command line, each in a folder of its own, and compares their outcomes.

use super::{BASES, REPEATING, ROWS};
use kvasir_testkit::paths;
use serde_json::{Value as Json, json};
use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, OnceLock, atomic::AtomicUsize, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

/// Keys of reports whose values differ between equal runs.
const VOLATILE: [&str; 5] = ["timings", "id", "created", "bound", "seconds"];

/// Keys of benchmark reports that hold no measured number.
const EXACT: [&str; 3] = ["setup", "prompt_tokens", "output_tokens"];

/// Observable results of an invocation, without values that differ between equal runs.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    code: Option<i32>,
    stdout: Json,
    stderr: String,
    /// Names and sizes of the output files.
    files: Vec<(String, u64)>,
}

/// Removes volatile keys from a report. Of a benchmark (`is_measured`), also sets measured numbers
/// to 0.
fn comparable(json: Json, is_measured: bool) -> Json {
    match json {
        Json::Object(fields) => {
            let kept = fields.into_iter().filter(|(key, _)| !VOLATILE.contains(&key.as_str()));
            let one = |(key, value): (String, Json)| {
                let is_measured = is_measured && !EXACT.contains(&key.as_str());
                let value = comparable(value, is_measured);
                (key, value)
            };
            Json::Object(kept.map(one).collect())
        }
        Json::Array(items) => items.into_iter().map(|item| comparable(item, is_measured)).collect(),
        Json::Number(_) | Json::Null if is_measured => json!(0),
        other => other,
    }
}

/// A simulated server with the key `k`.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(["serve", "--backend", "sim", "--port", "0", "--log-level", "off", "--api-key", "k"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let at = line.find("http://").unwrap();
        Self { process, url: line[at..].split([',', '\n']).next().unwrap().to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A tokenizer that begins a text with `<s>`.
const SPECIAL: &str = r#"{"version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "single_word": false,
    "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1, "?": 2}, "unk_token": "?"}}"#;

/// Input files in the folder of every invocation.
const FILES: [(&str, &str); 7] = [
    ("text.txt", "Ask and it is given. Ask again, and it is given again. Ask and it is given. Ask again."),
    ("board.toml", "bandwidth = 2e11\nmemory = 16e9\n[arithmetic]\nbf16 = 2e13\n"),
    ("chat.jinja", "{{ messages[0].content }}"),
    ("chat.json", r#"{"messages": [{"role": "user", "content": "hi"}]}"#),
    ("chats.json", r#"[{"messages": [{"role": "user", "content": "hi"}]}]"#),
    ("list.json", r#"["a", "b"]"#),
    ("special.json", SPECIAL),
];

/// Runs the invocations of a test, and the server that some of them use.
pub(crate) struct Invocations {
    server: Server,
    folder: PathBuf,
    runs: AtomicUsize,
    /// Outcomes by command line.
    outcomes: Mutex<HashMap<String, Arc<OnceLock<Outcome>>>>,
}

impl Invocations {
    pub(crate) fn new(folder: &str) -> Self {
        let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), folder);
        Self { server: Server::start(), folder, runs: AtomicUsize::new(0), outcomes: Mutex::default() }
    }

    /// The outcome of an invocation; equal ones run once.
    fn outcome(&self, line: &str) -> Arc<OnceLock<Outcome>> {
        let cell = Arc::clone(self.outcomes.lock().unwrap().entry(line.to_owned()).or_default());
        cell.get_or_init(|| self.run(line));
        cell
    }

    /// Runs an invocation in a new folder, for at most 60 seconds.
    pub(crate) fn run(&self, line: &str) -> Outcome {
        let folder = self.folder.join(self.runs.fetch_add(1, Ordering::Relaxed).to_string());
        fs::create_dir(&folder).unwrap();
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        for (name, text) in FILES {
            fs::write(folder.join(name), text).unwrap();
        }
        fs::copy(format!("{root}/crates/kvasir-conformance/cases/own.json"), folder.join("own.json"))
            .unwrap();
        let line =
            line.replace("MODELS", &format!("{root}/testdata/models")).replace("SERVER", &self.server.url);
        let line = line.replace("REPEATING", REPEATING);
        // Arguments may follow the redirection.
        let (mut args, mut stdin) = (line.split_whitespace().collect::<Vec<_>>(), Stdio::null());
        if let Some(at) = args.iter().position(|word| *word == "<") {
            stdin = fs::File::open(folder.join(args[at + 1])).unwrap().into();
            args.drain(at..at + 2);
        }
        let (out, err) =
            (fs::File::create(folder.join("1")).unwrap(), fs::File::create(folder.join("2")).unwrap());
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(args)
            .current_dir(&folder)
            .env("HF_HUB_OFFLINE", "1")
            .env_remove("SSL_CERT_FILE")
            .env("XDG_STATE_HOME", &folder)
            .stdin(stdin)
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap();
        let started = Instant::now();
        let code = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status.code();
            }
            if started.elapsed() > Duration::from_secs(60) {
                child.kill().unwrap();
                break child.wait().unwrap().code();
            }
            thread::sleep(Duration::from_millis(2));
        };
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let (mut stdout, stderr) = (read("1"), read("2"));
        if line.starts_with("doctor") {
            // Digits depend on the machine, for example on its free memory.
            stdout = stdout.chars().map(|c| if c.is_ascii_digit() { '1' } else { c }).collect();
        }
        let is_measured = line.starts_with("bench") && !line.contains("fidelity");
        let stdout = match serde_json::from_str(&stdout) {
            Ok(json) => comparable(json, is_measured),
            Err(_) => stdout.into(),
        };
        let stderr = stderr.lines().filter(|line| !line.starts_with("simulated in")).collect();
        let files = fs::read_dir(&folder).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
        });
        let mut files: Vec<_> = files.filter(|(name, _)| name.contains("out.")).collect();
        files.sort();
        Outcome { code, stdout, stderr, files }
    }

    /// Checks that the option has the effect that its row states; returns why not.
    pub(crate) fn check_option(&self, command: &str, option: &str) -> Result<(), String> {
        let flag = format!("--{option}");
        let hyphenated = command.replace(' ', "-");
        let row = ROWS.iter().find(|(commands, name, _)| {
            commands.split(' ').any(|one| one == hyphenated) && (*name == option || *name == "*")
        });
        let Some((_, _, effect)) = row else { return Err("has no row".into()) };
        if let Some(file) = effect.strip_prefix('@') {
            return check_tested(file.trim(), &flag);
        }
        let base = BASES.iter().find(|(name, _)| *name == command).map(|(_, base)| *base);
        let base = base.ok_or("its command has no base")?;
        let (before, after, expected_name) = if let Some((a, b)) = effect.split_once("||") {
            let whole = |part: &str| match part.trim().strip_prefix("--") {
                Some(_) => format!("{base} {}", part.trim()),
                None => part.trim().to_owned(),
            };
            (Some(whole(a)), whole(b), flag)
        } else {
            let (beside, args) = effect.split_once('|').ok_or("its row has no |")?;
            let (beside, expected_name) = match beside.trim().strip_prefix('?') {
                Some(text) => ("", text.trim().to_owned()),
                None => (beside.trim(), flag),
            };
            let before = format!("{base} {beside}");
            let after = format!("{before} {}", args.trim());
            // A server that starts does not exit, so only refusals of `serve` are observed.
            ((command != "serve").then_some(before), after, expected_name)
        };
        let after_outcome = self.outcome(&after);
        let outcome = after_outcome.get().unwrap();
        if outcome.code == Some(2) && !outcome.stderr.contains(&expected_name) {
            return Err(format!("`{after}` is refused without {expected_name}: {}", outcome.stderr));
        }
        match before {
            None if outcome.code != Some(2) && outcome.code != Some(1) => Err(format!("`{after}` runs")),
            None => Ok(()),
            Some(before) if self.outcome(&before).get().unwrap() == outcome => {
                Err(format!("`{after}` does what `{before}` does: {outcome:?}"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Checks that a test file passes the option `flag`; without a name, any test of `serve` may do so.
fn check_tested(file: &str, flag: &str) -> Result<(), String> {
    let tests = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests"));
    let files = match file {
        "" => fs::read_dir(tests.join("serve")).unwrap().map(|entry| entry.unwrap().path()).collect(),
        file => vec![tests.join(file)],
    };
    let quoted = [format!("\"{flag}\""), format!("{flag} "), format!("{flag}=")];
    let passes = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        quoted.iter().any(|quoted| text.contains(quoted))
    };
    if files.iter().any(passes) { Ok(()) } else { Err(format!("no test in {file:?} passes {flag}")) }
}

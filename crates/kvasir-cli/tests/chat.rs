//! `kvasir chat` in scripts: input on stdin, answers on stdout, notes on stderr.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use serde_json::{Value, json};
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A folder with the tiny Qwen3 and its tokenizer; removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let root = kvasir_testkit::paths::repository();
        let folder = std::env::temp_dir().join(format!("kvasir-chat-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for from in ["testdata/models/qwen3", "crates/kvasir-formats/tests/data/tokenizers/qwen"] {
            for file in fs::read_dir(root.join(from)).unwrap().map(Result::unwrap) {
                fs::copy(file.path(), folder.join(file.file_name())).unwrap();
            }
        }
        Self(folder)
    }

    /// Runs a chat with these input lines; returns exit code, stdout and stderr.
    fn chat(&self, options: &[&str], lines: &str) -> (Option<i32>, String, String) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(["chat", self.0.to_str().unwrap(), "--max-tokens", "6"])
            .args(if options.is_empty() { &["--temperature", "0"] } else { options })
            .env("HOME", &self.0)
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The process may have exited with a usage error.
        let _ = process.stdin.take().unwrap().write_all(lines.as_bytes());
        let output = process.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn roles(file: &Path) -> Vec<String> {
    let saved: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_branch_hits_the_cache_on_its_shared_prefix() {
    let folder = Folder::new("branch");
    let question = "hello ".repeat(40);
    let (code, printed, beside) =
        folder.chat(&[], &format!("{question}\n/fork 1\n{question}\n/branch\n/stats\n"));
    assert_eq!(code, Some(0), "{beside}");
    let (first, second) = printed.split_at(printed.len() / 2);
    assert_eq!(first, second, "the same question in another branch has the same answer");
    assert!(!first.trim().is_empty() && first.ends_with('\n'));
    let cached: Vec<u32> = beside
        .lines()
        .filter_map(|line| line.split_once(" of ")?.0.rsplit(' ').next()?.parse().ok())
        .collect();
    assert!(cached[0] == 0 && cached[1] >= 32, "{beside}");
    assert!(
        beside.contains("→ 2  1 question, the last “hello") && beside.contains("  1  1 question"),
        "{beside}"
    );
    assert!(beside.contains("answers    2"), "{beside}");
    assert!(!printed.contains('\x1b') && !beside.contains('\x1b'), "no colors in a pipe");
    assert!(!beside.contains('›'), "no prompts in a pipe");
    assert!(!folder.0.join(".local").exists(), "nothing of a pipe is remembered");
}

#[test]
fn statistics_are_those_of_the_rewound_branch() {
    let folder = Folder::new("stats");
    let lines = "one\n/stats\ntwo\n/stats\n/rewind\n/stats\n/rewind\n/stats\n/system Be brief.\n/stats\n";
    let (code, _, beside) = folder.chat(&[], lines);
    assert_eq!(code, Some(0), "{beside}");
    let contexts: Vec<u32> = beside
        .lines()
        .filter_map(|line| line.strip_prefix("context    ")?.split_once(" of ")?.0.parse().ok())
        .collect();
    let [one, two, rewound, empty, still_empty] = contexts[..] else { panic!("{beside}") };
    assert!(0 < one && one < two, "{contexts:?}");
    assert_eq!((rewound, empty, still_empty), (one, 0, 0));
    let (code, _, beside) = folder.chat(&[], "one\n/rewind 0\n/rewind\n");
    assert_eq!(code, Some(1));
    assert!(beside.contains("/rewind takes a number from 1, not `0`"), "{beside}");
    assert!(beside.contains("taken back from “one” on"), "the refused one took nothing back: {beside}");
}

#[test]
fn a_saved_chat_rewinds_and_loads() {
    let folder = Folder::new("save");
    let (all, less, again) =
        (folder.0.join("all.json"), folder.0.join("less.json"), folder.0.join("again.json"));
    let lines = format!(
        "/system Be brief.\none\\\ntwo\nthree\n/save {}\n/rewind\n/save {}\n/load {}\n/save {}\n/quit\nnever\n",
        all.display(),
        less.display(),
        all.display(),
        again.display()
    );
    let (code, _, beside) = folder.chat(&[], &lines);
    assert_eq!(code, Some(0), "{beside}");
    assert_eq!(roles(&all), ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(roles(&less), ["system", "user", "assistant"]);
    assert_eq!(fs::read_to_string(&all).unwrap(), fs::read_to_string(&again).unwrap());
    let saved: Value = serde_json::from_str(&fs::read_to_string(&all).unwrap()).unwrap();
    assert_eq!(saved["messages"][1], json!({"role": "user", "content": "one\ntwo"}));
    assert!(beside.contains("taken back from “three” on"), "{beside}");
}

#[test]
fn command_errors_do_not_end_the_chat() {
    let folder = Folder::new("wrong");
    let lines = "/nothing\n/rewind\n/fork 1\n/save nowhere.json\n/set temperature 900\n/load nowhere.json\n/branch 7\n/set stream true\nhello\n";
    let (code, printed, beside) = folder.chat(&[], lines);
    assert_eq!(code, Some(1), "a script learns that something was wrong");
    assert!(!printed.trim().is_empty(), "it answers all the same");
    for wrong in [
        "/nothing",
        "nothing has been asked",
        "the conversation is empty",
        "temperature",
        "nowhere.json",
        "no branch 7",
        "stream is not",
    ] {
        assert!(beside.contains(wrong), "{wrong}: {beside}");
    }
    let (code, _, beside) = folder.chat(&["--temperature", "900"], "hello\n");
    assert_eq!((code, beside.lines().count()), (Some(2), 1), "{beside}");
    let (code, _, beside) = folder.chat(&["--top-p", "-1"], "hello\n");
    assert!(code == Some(2) && beside.contains("top_p"), "{beside}");
    let (code, _, beside) = folder.chat(&["--seed", "-1"], "hello\n");
    assert_eq!(code, Some(0), "{beside}");
    let (code, _, beside) = folder.chat(&["--tools", "nowhere.json"], "hello\n");
    assert!(code == Some(2) && beside.contains("nowhere.json"), "{beside}");
}

#[test]
fn one_question_is_answered_and_the_chat_ends() {
    let folder = Folder::new("one-shot");
    let chat = |more: &[&str], stdin: &str| {
        let options = [&["--temperature", "0", "--prompt", "hi"], more].concat();
        folder.chat(&options, stdin)
    };
    let (code, text, notes) = chat(&[], "");
    assert_eq!((code, notes.as_str()), (Some(0), ""), "{text}");
    let json = |stdin: &str| -> Value { serde_json::from_str(&chat(&["--json"], stdin).1).unwrap() };
    let whole = json("");
    assert_eq!(whole["content"].as_str().unwrap().trim(), text.trim());
    assert_eq!(
        (&whole["finish_reason"], &whole["usage"]["completion_tokens"]),
        (&json!("length"), &json!(6))
    );
    // Text on stdin belongs to the question.
    let tokens = |whole: &Value| whole["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&json("a longer text")) > tokens(&whole));
    let (code, _, notes) = folder.chat(&["--prompt", ""], "");
    assert_eq!((code, notes.lines().count()), (Some(2), 1), "{notes}");
}

#[test]
fn a_full_context_is_no_dead_end() {
    let folder = Folder::new("full");
    let saved = folder.0.join("left.json");
    let long = "hello ".repeat(30);
    let lines = format!("{long}\n{long}\n{long}\n/save {}\n/clear\n{long}\n/new\n/branch\n", saved.display());
    let options = ["--temperature", "0", "--max-model-len", "112"];
    let (code, _, beside) = folder.chat(&options, &lines);
    assert_eq!(code, Some(1), "{beside}");
    let full: Vec<&str> = beside.lines().filter(|line| line.contains("of 112 tokens")).collect();
    assert!(!full.is_empty() && full.iter().all(|line| line.contains("/clear begins anew")), "{beside}");
    let kept = roles(&saved);
    assert!(
        !kept.is_empty() && kept.last().unwrap() == "assistant",
        "the refused question is not kept: {kept:?}"
    );
    assert!(beside.contains("messages forgotten") && beside.contains("branch 2 is empty"), "{beside}");
    assert!(beside.contains("  1  1 question"), "the question after /clear was answered: {beside}");
    let (code, _, beside) = folder.chat(&options, &format!("{}\n/?\n", long.repeat(9)));
    assert!(code == Some(1) && beside.contains("the question alone has"), "{beside}");
    assert!(beside.contains("/rewind [N]"), "/? is /help: {beside}");
}

#[test]
fn saving_overwrites_a_file_on_request_only() {
    let folder = Folder::new("save");
    let file = folder.0.join("talk.json");
    let name = file.display();
    fs::write(&file, "mine").unwrap();
    let (code, _, notes) = folder.chat(&[], &format!("hello\n/save {name}\n"));
    assert_eq!(code, Some(1));
    assert!(notes.contains(&format!("{name} exists; /save {name}! overwrites it")), "{notes}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    let (code, _, notes) = folder.chat(&[], &format!("hello\n/save {name}!\n/set\n"));
    assert_eq!((code, roles(&file)), (Some(0), vec!["user".to_owned(), "assistant".to_owned()]));
    assert!(notes.contains("overwritten with 2 messages") && notes.contains("max_tokens"), "{notes}");
}

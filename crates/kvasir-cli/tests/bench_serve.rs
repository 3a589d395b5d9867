//! `kvasir bench serve` against a simulated server with the built-in model's tokenizer, template
//! and context.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStderr, Command, Stdio},
};

/// A simulated server: arbitrary words, no delay.
struct Server {
    process: Child,
    printed: BufReader<ChildStderr>,
}

impl Server {
    fn start() -> (Self, String) {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(["serve", "--backend", "sim", "--port", "0", "--log-level", "off"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut server = Self { printed: BufReader::new(process.stderr.take().unwrap()), process };
        let mut line = String::new();
        server.printed.read_line(&mut line).unwrap();
        let url = line.find("http://").map(|at| line[at..].split(',').next().unwrap().to_owned());
        (server, url.unwrap_or_else(|| panic!("{line}")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn bench(url: &str, args: &[&str]) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_kvasir"))
        .args(["bench", "serve", url, "--json"])
        .args(args)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Regression: agents requested up to 4,096 words and more, of which a small vocabulary makes twice
/// as many tokens.
#[test]
fn workload_prompts_fit_the_served_context() {
    let (_server, url) = Server::start();
    let agents = bench(&url, &["--workload", "agents", "--requests", "80", "--rate", "100"]);
    assert_eq!(agents["server"]["context"], 4096);
    assert_eq!((&agents["completed"], &agents["failed"]), (&80.into(), &0.into()), "{}", agents["faults"]);
    let large = ["--prompt-tokens", "3000", "--output-tokens", "3000"];
    let large =
        bench(&url, &[&["--workload", "agents", "--requests", "20", "--rate", "1000"], &large[..]].concat());
    assert_eq!(large["failed"], 0, "{}", large["faults"]);
}

#[test]
fn a_word_is_a_token() {
    let (_server, url) = Server::start();
    let sizes = ["--requests", "4", "--prompt-tokens", "500", "--output-tokens", "2"];
    let steady = bench(&url, &[&["--workload", "steady", "--route", "completions"], &sizes[..]].concat());
    let tokens = steady["prompt_tokens"].as_u64().unwrap();
    // The first word lacks a leading space, which may split it into two tokens.
    assert!((2000..=2004).contains(&tokens), "{tokens}");
}

//! Shell completions and manual pages cover the commands and their options.

#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_testkit::paths;
use std::fs;
use std::process::{Command, Output, Stdio};

fn kvasir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvasir")).args(args).output().unwrap()
}

#[test]
fn completions_name_commands_and_options() {
    for shell in ["bash", "zsh", "fish"] {
        let out = kvasir(&["completions", shell]);
        let script = String::from_utf8(out.stdout).unwrap();
        assert!(
            out.status.success() && script.contains("serve") && script.contains("kv-capacity"),
            "{shell}"
        );
    }
    assert_eq!(kvasir(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn a_closed_pipe_ends_completions_silently() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    let mut process =
        command.args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(process.stdout.take());
    assert_eq!(String::from_utf8_lossy(&process.wait_with_output().unwrap().stderr), "");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "manual");
    let out = kvasir(&["manual", folder.to_str().unwrap()]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for (page, option) in
        [("kvasir.1", "config"), ("kvasir-serve.1", "health"), ("kvasir-bench-pp.1", "shape")]
    {
        let text = fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains(option), "{page}");
    }
    assert_eq!(kvasir(&["manual", "/dev/null"]).status.code(), Some(1));
}

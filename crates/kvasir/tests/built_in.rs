//! The built-in model answers, through the command that a person would type.
#![allow(clippy::unwrap_used)]

use std::process::Command;

fn says(prompt: &str) -> String {
    let prompt = format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    let out = command.args(["generate", "--max-tokens", "60", "--prompt", &prompt]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

#[test]
fn it_knows_its_small_world() {
    assert_eq!(says("What is 23 + 58?"), "23 + 58 = 81");
    assert!(says("What is the capital of France?").contains("Paris"));
}

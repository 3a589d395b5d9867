//! The built-in model through the command line: greedy answers, and its chat template.
#![allow(clippy::unwrap_used)]

use std::{
    io::Write,
    process::{Command, Stdio},
};

fn says(prompt: &str) -> String {
    let prompt = format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    let out = command.args(["generate", "--max-tokens", "60", "--prompt", &prompt]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().trim().to_owned()
}

/// Without sampling parameters, decoding is greedy: at temperature 1 a model this small is often
/// wrong.
#[test]
fn chat_with_the_built_in_model_is_greedy() {
    for _ in 0..5 {
        let mut chat = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .arg("chat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        chat.stdin.take().unwrap().write_all(b"Sort 5, 3, 9, 1\nSort these numbers: 17, 3, 25, 8\n").unwrap();
        let printed = String::from_utf8(chat.wait_with_output().unwrap().stdout).unwrap();
        assert_eq!(printed, "1, 3, 5, 9\n3, 8, 17, 25\n");
    }
}

/// The first argument of `run` is the model, unless it names none.
#[test]
fn run_takes_the_built_in_model_by_its_name() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.arg("run").args(args).stdin(Stdio::null()).output().unwrap()
    };
    let out = run(&["kvasir-mini", "What", "is", "23 + 58?"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "23 + 58 = 81");
    let out = run(&["kvasir-mini", "What is 23 + 58?", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(answer["content"], "23 + 58 = 81");
    assert_eq!(run(&["kvasir-mini", "--json"]).status.code(), Some(2));
    let out = run(&["What is 23 + 58?"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "23 + 58 = 81");
}

/// Every command and option that takes a model takes it by its name.
#[test]
fn commands_find_the_built_in_model_by_its_name() {
    let folder = kvasir_testkit::paths::scratch(env!("CARGO_TARGET_TMPDIR"), "built-in");
    let (file, text) = (folder.join("mini.gguf"), folder.join("text.txt"));
    std::fs::write(&text, "The quick brown fox jumps over the lazy dog. ".repeat(40)).unwrap();
    let (file, text) = (file.to_str().unwrap(), text.to_str().unwrap());
    let run = |args: &[&str], stdin: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvasir"))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A command that reads no input may have ended.
        let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(run(&["tokenize", "kvasir-mini"], "Hi"), run(&["tokenize"], "Hi"));
    let chat = r#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
    assert_eq!(run(&["template", "kvasir-mini"], chat), run(&["template"], chat));
    run(&["convert", "kvasir-mini", file, "--dtype", "q8_0"], "");
    assert_eq!(run(&["tokenize", file], "Hi"), run(&["tokenize"], "Hi"));
    for (kind, more) in [("pp", "--tokens"), ("tg", "--tokens"), ("batch", "--prompt")] {
        run(&["bench", kind, "kvasir-mini", more, "2", "--reps", "1", "--json"], "");
    }
    let few = ["--tokens", "16", "--reps", "1", "--json"];
    run(&[&["bench", "spec", "kvasir-mini", "--file", text], &few[..]].concat(), "");
    let draft = ["--spec", "draft:kvasir-mini", "--prompt", "The capital of France is", "--max-tokens", "4"];
    let generate = |more: &[&str]| run(&[&["generate", "kvasir-mini"], more].concat(), "");
    assert_eq!(generate(&draft), generate(&draft[2..]));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn it_knows_its_small_world() {
    assert_eq!(says("What is 23 + 58?"), "23 + 58 = 81");
    assert!(says("What is the capital of France?").contains("Paris"));
}

/// Without the chat template a question yields an empty completion; the user is told why.
#[test]
fn generate_on_a_chat_model_hints_at_chat() {
    let generate = |prompt: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        let out = command.args(["generate", "--max-tokens", "8", "--prompt", prompt]).output().unwrap();
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (printed, beside) = generate("What is 2 + 2?");
    assert!(printed.trim().is_empty() && beside.contains("kvasir chat"), "{printed}{beside}");
    let (printed, beside) = generate("The capital of France is");
    assert!(printed.contains("Paris") && beside.is_empty(), "{printed}{beside}");
}

/// The template renders exactly the training format. Regression: line breaks after template blocks.
#[test]
fn the_built_in_template_renders_the_training_format() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvasir/kvasir-mini.gguf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
    let mut child = command
        .args(["template", file, "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let tool = r#"{"type": "function", "function": {"name": "clock"}}"#;
    let call = r#"{"type": "function", "function": {"name": "clock", "arguments": {"city": "Oslo"}}}"#;
    let chat = format!(
        r#"[{{"add_generation_prompt": true, "tools": [{tool}, {tool}], "messages": [
            {{"role": "system", "content": "Be brief."}}, {{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "Hello!"}},
            {{"role": "user", "content": "The time?"}}, {{"role": "assistant", "content": "", "tool_calls": [{call}]}}, {{"role": "tool", "content": "12:00"}}]}}]"#
    );
    child.stdin.take().unwrap().write_all(chat.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let rendered: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let expected = format!(
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions. Their signatures stand between \
         <tools></tools>:\n<tools>\n{tool}\n{tool}\n</tools>\n\nFor each call answer with a JSON object between <tool_call></tool_call>:\n\
         <tool_call>\n{{\"name\": <function-name>, \"arguments\": <arguments-object>}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nThe time?<|im_end|>\n\
         <|im_start|>assistant\n<tool_call>\n{{\"name\": \"clock\", \"arguments\": {{\"city\": \"Oslo\"}}}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n12:00\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(rendered[0]["text"], expected);
}

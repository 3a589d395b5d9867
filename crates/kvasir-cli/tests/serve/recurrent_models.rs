//! `kvasir serve` of a model with recurrent layers: the turns of a conversation, edited and branched
//! messages, and prompts with a common beginning compute no more than their new tokens.

use super::server::{CHAT, COMPLETIONS, Server};
use kvasir_testkit::paths;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Blocks of 8 tokens: the tiny model's messages are short.
const BLOCK: u64 = 8;

/// A copy of the tiny Qwen3.5, which the server removes.
fn copy(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kvasir-serve-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir(paths::model("qwen3_5")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    folder
}

fn server(name: &str, options: &[&str]) -> Server {
    let options = [&["--threads", "1", "--max-model-len", "4096", "--block-size", "8"], options].concat();
    Server::of_model(copy(name), &options, &[])
}

/// Usage of one answer.
struct Usage {
    text: String,
    prompt: u64,
    /// Prompt tokens that were computed.
    computed: u64,
    cache_end: Option<String>,
}

fn answer(server: &Server, path: &str, body: &Value) -> Usage {
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{answer}");
    let (usage, choice) = (&answer["usage"], &answer["choices"][0]);
    let details = &usage["prompt_tokens_details"];
    let text = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{usage}"));
    let prompt = count(&usage["prompt_tokens"]);
    Usage {
        text: text.to_owned(),
        prompt,
        computed: prompt - count(&details["cached_tokens"]),
        cache_end: details["cache_end"].as_str().map(str::to_owned),
    }
}

fn chat(server: &Server, messages: &[Value]) -> Usage {
    let body = json!({"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, "seed": 1,
        "ignore_eos": true});
    answer(server, CHAT, &body)
}

/// A message whose text depends on the number.
fn message(role: &str, number: usize) -> Value {
    json!({"role": role, "content": format!("the line {number} of file {} is read", number * 7)})
}

/// Twenty turns with tool results: no turn computes more than the newest messages, rounded to
/// blocks. A message's own tokens are those by which the prompt has grown.
#[test]
fn turns_compute_their_newest_messages_only() {
    let server = server("recurrent-turns", &[]);
    let mut messages = vec![message("system", 0), message("user", 1)];
    let mut known = 0;
    let mut lengths = Vec::new();
    for turn in 0..20 {
        let usage = chat(&server, &messages);
        // The template may render the last answer otherwise than it was generated.
        assert!(
            usage.computed <= usage.prompt - known + 2 * BLOCK,
            "turn {turn}: {} of {} computed",
            usage.computed,
            usage.prompt
        );
        known = usage.prompt;
        lengths.push(usage.prompt);
        messages.push(json!({"role": "assistant", "content": usage.text}));
        messages.push(message("tool", turn + 2));
    }
    // Any message is edited, or continued otherwise.
    for at in (3..messages.len()).step_by(4) {
        let mut edited = messages[..at].to_vec();
        edited.push(message("tool", 1000 + at));
        let usage = chat(&server, &edited);
        // Of the messages before, the one that the edited one follows is the answer of this turn.
        let before = lengths[(at - 3) / 2];
        assert!(
            usage.computed <= usage.prompt - before + 2 * BLOCK,
            "message {at} edited: {} of {} computed",
            usage.computed,
            usage.prompt
        );
    }
}

/// A shared prefix that ends earlier than before: once, the tokens behind the last checkpoint are
/// computed again, and none from then on.
#[test]
fn a_shorter_shared_prefix_is_computed_once() {
    let server = server("recurrent-prefix", &["--state-interval", "64"]);
    let complete = |shared: u32, own: u32| {
        let prompt: Vec<u32> = (0..shared).map(|i| 3 + i * 7 % 480).chain((0..20).map(|i| own + i)).collect();
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0});
        answer(&server, COMPLETIONS, &body)
    };
    assert_eq!(complete(600, 10).computed, 620);
    let shorter = complete(500, 40);
    assert!(shorter.computed <= 20 + 64 + BLOCK, "{}", shorter.computed);
    assert_eq!(shorter.cache_end.as_deref(), Some("no_checkpoint"));
    for own in [70, 100] {
        let again = complete(500, own);
        assert!(again.computed <= 20 + BLOCK, "{}", again.computed);
    }
}

/// The answers of the conversation do not depend on what is cached.
#[test]
fn cached_turns_give_the_answers_of_computed_ones() {
    let cached = server("recurrent-cached", &[]);
    let computed = server("recurrent-computed", &["--prefix-cache", "off", "--max-num-batched-tokens", "48"]);
    let mut messages = vec![message("user", 1)];
    for turn in 0..8 {
        let [cached, computed] = [&cached, &computed].map(|server| chat(server, &messages).text);
        assert_eq!(cached, computed, "turn {turn}");
        messages.push(json!({"role": "assistant", "content": cached}));
        messages.push(message("user", turn + 2));
    }
}

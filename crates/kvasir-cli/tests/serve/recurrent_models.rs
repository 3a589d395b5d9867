//! `kvasir serve` of a model with recurrent layers: turns of a conversation, edited and branched
//! messages, and prompts with a shared prefix compute only their new tokens.

use super::server::{CHAT, COMPLETIONS, Server, model_of};
use serde_json::{Value, json};

/// Tokens per block; few, since the messages of the test are short.
const BLOCK: u64 = 8;

fn server(name: &str, options: &[&str]) -> Server {
    let options = [&["--threads", "1", "--max-model-len", "4096", "--block-size", "8"], options].concat();
    Server::of_model(model_of(name, "qwen3_5"), &options, &[])
}

/// Text and token usage of one answer.
struct Answer {
    text: String,
    prompt: u64,
    /// Prompt tokens that were computed.
    computed: u64,
    cache_end: Option<String>,
}

fn answer(server: &Server, path: &str, body: &Value) -> Answer {
    let (status, answer) = server.post(path, body);
    assert_eq!(status, 200, "{answer}");
    let (usage, choice) = (&answer["usage"], &answer["choices"][0]);
    let details = &usage["prompt_tokens_details"];
    let text = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
    let count = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{usage}"));
    let prompt = count(&usage["prompt_tokens"]);
    Answer {
        text: text.to_owned(),
        prompt,
        computed: prompt - count(&details["cached_tokens"]),
        cache_end: details["cache_end"].as_str().map(str::to_owned),
    }
}

fn chat(server: &Server, messages: &[Value]) -> Answer {
    let body = json!({"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, "seed": 1,
        "ignore_eos": true});
    answer(server, CHAT, &body)
}

/// A message whose text depends on the number.
fn message(role: &str, number: usize) -> Value {
    json!({"role": role, "content": format!("the line {number} of file {} is read", number * 7)})
}

/// The result of a tool call, whose text depends on the number.
fn tool_result(number: usize) -> Value {
    let mut result = message("tool", number);
    result["tool_call_id"] = "call".into();
    result
}

/// Twenty turns with tool results: no turn computes more than its new tokens, rounded to blocks.
/// The new tokens of a turn are those by which the prompt has grown.
#[test]
fn turns_compute_only_their_new_messages() {
    let server = server("recurrent-turns", &[]);
    let mut messages = vec![message("system", 0), message("user", 1)];
    let mut previous_prompt = 0;
    let mut prompts = Vec::new();
    for turn in 0..20 {
        let answer = chat(&server, &messages);
        // The template may render the previous answer differently from how it was generated.
        assert!(
            answer.computed <= answer.prompt - previous_prompt + 2 * BLOCK,
            "turn {turn}: {} of {} computed",
            answer.computed,
            answer.prompt
        );
        previous_prompt = answer.prompt;
        prompts.push(answer.prompt);
        let call = json!({"id": "call", "type": "function", "function": {"name": "read", "arguments": "{}"}});
        messages.push(json!({"role": "assistant", "content": answer.text, "tool_calls": [call]}));
        messages.push(tool_result(turn + 2));
    }
    // A conversation that branches at an earlier tool result reuses the turns before it.
    for at in (3..messages.len()).step_by(4) {
        let mut edited = messages[..at].to_vec();
        edited.push(tool_result(1000 + at));
        let answer = chat(&server, &edited);
        // The edited message follows the answer to the prompt of this turn.
        let cached_prompt = prompts[(at - 3) / 2];
        assert!(
            answer.computed <= answer.prompt - cached_prompt + 2 * BLOCK,
            "message {at} edited: {} of {} computed",
            answer.computed,
            answer.prompt
        );
    }
}

/// The first prompt with a shorter shared prefix computes the tokens after the last checkpoint
/// again. Later ones find a checkpoint near the end of the prefix.
#[test]
fn a_shorter_shared_prefix_is_computed_once() {
    let server = server("recurrent-prefix", &["--state-interval", "64"]);
    let complete = |shared: u32, first_own: u32| {
        let prefix = (0..shared).map(|i| 3 + i * 7 % 480);
        let prompt: Vec<u32> = prefix.chain((0..20).map(|i| first_own + i)).collect();
        let body = json!({"model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0});
        answer(&server, COMPLETIONS, &body)
    };
    assert_eq!(complete(600, 10).computed, 620);
    let shorter = complete(500, 40);
    assert!(shorter.computed <= 20 + 64 + BLOCK, "{}", shorter.computed);
    assert_eq!(shorter.cache_end.as_deref(), Some("no_checkpoint"));
    for first_own in [70, 100] {
        let again = complete(500, first_own);
        assert!(again.computed <= 20 + BLOCK, "{}", again.computed);
    }
}

#[test]
fn prefix_caching_does_not_change_the_answers() {
    let cached = server("recurrent-cached", &[]);
    let uncached = server("recurrent-uncached", &["--prefix-cache", "off", "--max-num-batched-tokens", "48"]);
    let mut messages = vec![message("user", 1)];
    for turn in 0..8 {
        let [cached, uncached] = [&cached, &uncached].map(|server| chat(server, &messages).text);
        assert_eq!(cached, uncached, "turn {turn}");
        messages.push(json!({"role": "assistant", "content": cached}));
        messages.push(message("user", turn + 2));
    }
}

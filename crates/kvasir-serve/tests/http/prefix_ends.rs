//! Why prefix hits end: `usage` of the responses, and `/metrics`.

use super::server::Server;
use kvasir_kv::CacheKind;
use kvasir_serve::http::{AccessControl, ApiKey, Keys};
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::time::Duration;

const KINDS: [CacheKind; 2] = [CacheKind::Paged, CacheKind::Radix];

/// A prompt of 97 tokens: six whole blocks and one token.
fn prompt(first: u32) -> Vec<u32> {
    (0..97).map(|i| first + i % 7).collect()
}

/// Completes a prompt; returns the prompt details of its usage.
fn complete(server: &Server, key: &str, body: Value) -> Value {
    let mut request = json!({"max_tokens": 2, "ignore_eos": true});
    request.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
    let (status, answer) = server.send("POST", "/v1/completions", key, &request.to_string());
    assert_eq!(status, 200, "{answer}");
    answer["usage"]["prompt_tokens_details"].clone()
}

/// Metrics of short hits with this reason: their number, and the number of tokens after them.
fn short_hits(server: &Server, key: &str, reason: &str) -> (u32, u32) {
    let page = server.send("GET", "/metrics", key, "").1.as_str().unwrap().to_owned();
    let value = |family: &str| {
        let label = format!("kvasir:{family}{{model_name=\"tiny\",reason=\"{reason}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&label)).unwrap().parse().unwrap()
    };
    (value("prefix_ends_total"), value("prefix_end_tokens_total"))
}

#[test]
fn short_hits_name_eviction_or_new_tokens() {
    for kind in KINDS {
        let server = Server::start(kind, 256, &[]);
        let prompt_a = || json!({"prompt": prompt(10)});
        let never = |matched: u32| json!({"cached_tokens": matched, "matched_tokens": matched, "cache_end": "never_computed"});
        assert_eq!(complete(&server, "", prompt_a()), never(0), "{kind}");
        let all = json!({"cached_tokens": 96, "matched_tokens": 96});
        assert_eq!(complete(&server, "", prompt_a()), all, "{kind}");
        let mut diverging = prompt(10);
        diverging[40] = 99;
        assert_eq!(complete(&server, "", json!({"prompt": diverging})), never(32), "{kind}");
        for first in [30, 50, 70] {
            complete(&server, "", json!({"prompt": prompt(first)}));
        }
        let evicted = complete(&server, "", prompt_a());
        assert_eq!(evicted["cache_end"], "evicted", "{kind}: {evicted}");
        let missing = 97 - evicted["cached_tokens"].as_u64().unwrap() as u32;
        assert_eq!(short_hits(&server, "", "evicted"), (1, missing), "{kind}");
        assert_eq!(short_hits(&server, "", "never_computed"), (5, 97 + 65 + 3 * 97), "{kind}");
        assert_eq!(short_hits(&server, "", "other_key"), (0, 0), "{kind}");
    }
}

#[test]
fn clients_see_other_salts_of_their_own_key_only() {
    for kind in KINDS {
        let key = |secret: &str, is_admin| ApiKey { name: None, secret: secret.into(), is_admin };
        let secrets = [("sk-one", false), ("sk-two", false), ("sk-admin", true)];
        let keys = Keys::new(secrets.map(|(secret, is_admin)| key(secret, is_admin)).to_vec());
        let access = AccessControl { keys, ..AccessControl::default() };
        let server = Server::behind(Toy::new(), kind, 512, access, Duration::MAX);
        let end = |key: &str, body: Value| complete(&server, key, body)["cache_end"].clone();
        assert_eq!(end("sk-one", json!({"prompt": prompt(10)})), "never_computed", "{kind}");
        assert_eq!(end("sk-two", json!({"prompt": prompt(10)})), "never_computed", "{kind}");
        assert_eq!(short_hits(&server, "sk-admin", "other_key"), (1, 97), "shown to admins only");
        let salted = |salt: &str| json!({"prompt": prompt(30), "cache_salt": salt});
        assert_eq!(end("sk-one", salted("a")), "never_computed", "{kind}");
        assert_eq!(end("sk-one", salted("b")), "other_key", "{kind}");
        assert_eq!(end("sk-one", salted("b")), Value::Null, "{kind}");
        assert_eq!(short_hits(&server, "sk-admin", "other_key"), (2, 2 * 97), "{kind}");

        // Without an admin key, clients read the metrics, which then hide other keys' prompts.
        let server = Server::start(kind, 512, &["sk-one", "sk-two"]);
        for key in ["sk-one", "sk-two"] {
            complete(&server, key, json!({"prompt": prompt(10)}));
        }
        assert_eq!(short_hits(&server, "sk-two", "other_key"), (0, 0), "{kind}");
        assert_eq!(short_hits(&server, "sk-two", "never_computed"), (2, 2 * 97), "{kind}");

        let server = Server::start(kind, 512, &[]);
        let end = |salt: &str| complete(&server, "", salted(salt))["cache_end"].clone();
        assert_eq!(
            [end("a"), end("b"), end("a")],
            [json!("never_computed"), json!("other_key"), Value::Null]
        );
    }
}

#[test]
fn chats_and_responses_report_the_reason_of_a_short_hit() {
    let server = Server::start(CacheKind::Radix, 512, &[]);
    let text = "one two three four five six seven eight nine ten ".repeat(3);
    let messages = json!([{"role": "user", "content": text}]);
    let chat = json!({"messages": messages, "max_tokens": 2, "ignore_eos": true});
    let (status, answer) = server.post("/v1/chat/completions", &chat);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cache_end"], "never_computed", "{answer}");
    let response = json!({"input": text, "max_output_tokens": 2, "cache_salt": "other"});
    let (status, answer) = server.post("/v1/responses", &response);
    assert_eq!(status, 200, "{answer}");
    let details = &answer["usage"]["input_tokens_details"];
    let expected = json!({"cached_tokens": 0, "matched_tokens": 0, "cache_end": "other_key"});
    assert_eq!(*details, expected, "{answer}");
}

#[test]
fn usage_names_the_reason_of_the_costliest_prompt() {
    let server = Server::start(CacheKind::Paged, 512, &[]);
    complete(&server, "", json!({"prompt": prompt(10)}));
    let long: Vec<u32> = (0..200).map(|i| 40 + i % 9).collect();
    let details = complete(&server, "", json!({"prompt": [prompt(10), long], "cache_salt": ""}));
    assert_eq!(details["cache_end"], "never_computed", "{details}");
}

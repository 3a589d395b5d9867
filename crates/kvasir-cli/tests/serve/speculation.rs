//! `kvasir serve --spec` with the built-in model: predicted outputs, fields of a request, metrics and
//! the log.
//!
//! A fixed number of drafts does not depend on measured times.

use super::server::{CHAT, Server};
use serde_json::{Value, json};
use std::io::BufRead;

/// A question whose answer repeats it, and its prediction.
const REPETITIVE: [&str; 2] =
    ["Sort these numbers: 17, 3, 25, 8, 42, 9, 1, 77", "1, 3, 8, 9, 17, 25, 42, 77"];
/// A question whose answer repeats nothing, and its prediction.
const STORY: [&str; 2] =
    ["Write a short story.", "Once a small model learned to count. It counted the stars, one by one."];

fn question(text: &str, extra: Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": text}], "max_tokens": 80, "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Text, answer tokens, and accepted and rejected drafts.
fn complete(server: &Server, body: &Value) -> (String, u64, [u64; 2]) {
    let (status, answer) = server.post(CHAT, body);
    assert_eq!(status, 200, "{answer}");
    let usage = &answer["usage"];
    let drafts = ["accepted", "rejected"].map(|kind| {
        usage["completion_tokens_details"][format!("{kind}_prediction_tokens")].as_u64().unwrap_or(0)
    });
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    (text.to_owned(), usage["completion_tokens"].as_u64().unwrap(), drafts)
}

/// A counter of `/metrics`, with what comes behind its name.
fn counter(server: &Server, name: &str) -> u64 {
    let page = server.send("GET", "/metrics", "", "").1;
    let line = page.lines().find(|line| line.starts_with(&format!("kvasir:spec_decode_num_{name}")));
    line.unwrap_or_else(|| panic!("{name}: {page}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn predicted_outputs_are_accepted_and_change_no_text() {
    let (server, _) = Server::built_in(&["--spec", "suffix:depth=4"]);
    for [text, predicted] in [REPETITIVE, STORY] {
        let (plain, _, none) = complete(&server, &question(text, json!({"speculation": false})));
        assert_eq!(none, [0, 0]);
        // A salt keeps the outputs of other requests from being drafts.
        let salted = |salt: u64, extra: Value| {
            let mut body = question(text, json!({"cache_salt": salt.to_string()}));
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let (output, tokens, [accepted, _]) = complete(&server, &body);
            assert_eq!(output, plain);
            assert!(accepted < tokens, "{accepted} of {tokens}");
            accepted
        };
        let own = if text == STORY[0] { salted(0, json!({})) } else { 0 };
        let prediction = json!({"prediction": {"type": "content", "content": predicted}});
        assert!(salted(1, prediction) > own, "{own} without it: {text}");
    }
}

#[test]
fn requests_choose_the_method_and_the_most_drafts() {
    let (server, _) = Server::built_in(&["--spec", "suffix:depth=4"]);
    let [text, predicted] = STORY;
    let limited = |most: u64| {
        let before = ["drafts_total", "draft_tokens_total"].map(|name| counter(&server, name));
        let prediction = json!({"type": "content", "content": predicted});
        let speculation = json!({"method": "suffix", "max_tokens": most});
        complete(&server, &question(text, json!({"speculation": speculation, "prediction": prediction})));
        let after = ["drafts_total", "draft_tokens_total"].map(|name| counter(&server, name));
        (after[0] - before[0], after[1] - before[1])
    };
    assert_eq!(limited(0), (0, 0));
    let (steps, drafts) = limited(1);
    assert!(drafts > 0 && steps == drafts, "one draft per step: {drafts} in {steps}");
    let (steps, drafts) = limited(2);
    assert!(drafts > steps && drafts <= 2 * steps, "{drafts} in {steps}");
    let names =
        ["accepted_tokens_total", "accepted_tokens_per_pos_total{model_name=\"tiny\",position=\"1\"}"];
    assert!(names.iter().all(|name| counter(&server, name) > 0));
    let other = question(text, json!({"speculation": {"method": "mtp"}}));
    let answer = server.exchange("POST", CHAT, super::server::JSON, &other.to_string());
    assert_eq!((answer.status, answer.param().as_str()), (400, "speculation.method"));
    assert!(answer.body.contains("`mtp`") && answer.body.contains("`suffix`"), "{}", answer.body);
}

#[test]
fn every_token_of_a_stream_with_drafts_has_its_log_probability() {
    for method in ["suffix", "eagle3:depth=3,topk=3,nodes=6"] {
        let (server, _) = Server::built_in(&["--spec", method]);
        let [text, _] = STORY;
        let extra = json!({"stream": true, "logprobs": true, "stream_options": {"include_usage": true}});
        let accepted: u64 = (0..3)
            .map(|_| {
                let events = server.events(CHAT, &question(text, extra.clone()));
                let usage = &events.last().unwrap()["usage"];
                let listed = events.iter().filter_map(|event| {
                    event["choices"][0]["logprobs"]["content"].as_array().map(|list| list.len() as u64)
                });
                assert_eq!(listed.sum::<u64>(), usage["completion_tokens"].as_u64().unwrap(), "{method}");
                usage["completion_tokens_details"]["accepted_prediction_tokens"].as_u64().unwrap_or(0)
            })
            .sum();
        assert!(method == "suffix" || accepted > 0, "a fixed depth drafts in every step");
    }
}

#[test]
fn the_log_has_a_line_for_a_thousand_drafts() {
    let (server, stderr) = Server::built_in(&["--spec", "mtp:4", "--log-format", "json"]);
    // Each answer has at least 19 steps with 4 drafts, even if all are accepted.
    while counter(&server, "draft_tokens_total") < 1000 {
        complete(&server, &question("Who are you?", json!({"max_tokens": 100, "ignore_eos": true})));
    }
    let lines = stderr.lines().map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let line = lines.into_iter().find(|line| line["message"] == "drafts verified").unwrap();
    let [drafted, accepted] = ["drafted", "accepted"].map(|name| line[name].as_u64().unwrap());
    assert!((1000..2000).contains(&drafted) && accepted <= drafted, "{line}");
    assert!((1.0..=5.0).contains(&line["tokens_per_step"].as_f64().unwrap()), "{line}");
}

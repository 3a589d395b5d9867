//! Encoders end to end: recorded embeddings and scores over HTTP, identical vectors in a batch,
//! text pairs, truncation, and rejection of generation and of unsupported options.

use super::operations::kvasir;
use super::server::Server;
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

/// Copies the recorded encoder `case` to a temporary folder.
fn copy_encoder(case: &str, name: &str) -> PathBuf {
    let from = kvasir_testkit::paths::repository().join("testdata/encoders").join(case);
    let folder = std::env::temp_dir().join(format!("kvasir-encoders-{}-{name}", std::process::id()));
    for directory in ["", "1_Pooling"] {
        let Ok(files) = fs::read_dir(from.join(directory)) else { continue };
        fs::create_dir_all(folder.join(directory)).unwrap();
        for file in files.map(Result::unwrap).filter(|file| file.path().is_file()) {
            fs::copy(file.path(), folder.join(directory).join(file.file_name())).unwrap();
        }
    }
    folder
}

fn serve(case: &str, name: &str, options: &[&str]) -> Server {
    Server::of_model(copy_encoder(case, name), options, &[])
}

fn expected(case: &str) -> Value {
    let folder = kvasir_testkit::paths::repository().join("testdata/encoders").join(case);
    serde_json::from_slice(&fs::read(folder.join("embedding_expected.json")).unwrap()).unwrap()
}

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let vector = |one: &Value| serde_json::from_value(one["embedding"].clone()).unwrap();
    answer["data"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(vector).collect()
}

#[test]
fn embeddings_match_the_records_alone_and_in_a_batch() {
    for (case, backend) in [
        ("embed_bert", "cpu"),
        ("embed_bert", "plain"),
        ("embed_xlmr", "cpu"),
        ("embed_modernbert", "cpu"),
        ("embed_qwen3", "cpu"),
    ] {
        let server = serve(case, &format!("{case}-{backend}"), &["--backend", backend]);
        let expected = expected(case);
        let prompts: Vec<&Value> = expected["prompts"].as_object().unwrap().values().collect();
        let (status, answer) = server.post("/v1/embeddings", &json!({"input": prompts}));
        assert_eq!(status, 200, "{answer}");
        let together = vectors(&answer);
        for ((name, prompt), vector) in expected["prompts"].as_object().unwrap().iter().zip(&together) {
            let recorded: Vec<f64> = serde_json::from_value(expected["embedding"][name].clone()).unwrap();
            let cosine: f64 = vector.iter().zip(&recorded).map(|(a, b)| a * b).sum();
            assert!(cosine > 1.0 - 1e-5, "{case} on {backend}, {name}: {cosine}");
            let alone = vectors(&server.post("/v1/embeddings", &json!({"input": prompt})).1);
            assert_eq!(&alone[0], vector, "{case} on {backend}, {name}");
        }
    }
}

#[test]
fn cross_encoders_rank_documents_by_their_recorded_scores() {
    let case = "rerank_xlmr";
    let server = serve(case, "rerank", &[]);
    let body = json!({"query": "what is a window", "documents": ["the cache, at last", "rings", "a slot"]});
    let (status, all) = server.post("/v1/rerank", &body);
    assert_eq!(status, 200, "{all}");
    let results = all["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|one| one["relevance_score"].as_f64().unwrap()).collect();
    assert!(
        scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..1.0).contains(score)),
        "{scores:?}"
    );
    for result in results {
        let document = &result["document"]["text"];
        let (_, one) = server.post("/v1/score", &json!({"text_1": body["query"], "text_2": document}));
        assert_eq!(one["data"][0]["score"], result["relevance_score"], "alone and in a batch");
    }
    // A document beyond the model's length is truncated.
    let long = "window ".repeat(1000);
    let (status, answer) = server.post("/v1/rerank", &json!({"query": "a", "documents": [long]}));
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(180)), "{answer}");
    let (status, error) =
        server.post("/v1/rerank", &json!({"query": "a", "documents": ["b"], "method": "prompt"}));
    assert_eq!((status, &error["error"]["param"]), (400, &json!("method")), "{error}");
    let (status, error) = server.post("/v1/embeddings", &json!({"input": "a"}));
    assert!(status == 400 && error.to_string().contains("/v1/rerank"), "{error}");
}

#[test]
fn texts_beyond_the_models_length_are_refused_or_truncated() {
    let server = serve("embed_bert", "length", &[]);
    let long = "window ".repeat(1000);
    let (status, error) = server.post("/v1/embeddings", &json!({"input": ["a", &long]}));
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("`input[1]`") && message.contains("at most 180"), "{error}");
    let (status, answer) = server.post("/v1/embeddings", &json!({"input": &long, "truncate": true}));
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(180)), "{answer}");
    let longest_accepted: Vec<u32> =
        std::iter::once(2).chain((0..178).map(|i| 5 + i % 400)).chain([3]).collect();
    assert_eq!(server.post("/v1/embeddings", &json!({"input": longest_accepted})).0, 200);
}

#[test]
fn encoders_reject_generation_and_decoder_options() {
    let server = serve("embed_bert", "refusals", &[]);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/messages", chat),
        ("/api/generate", json!({"prompt": "a"})),
        ("/completion", json!({"prompt": "a"})),
    ] {
        let (status, error) = server.post(path, &body);
        assert!(status == 400 && error.to_string().contains("is an encoder"), "{path}: {status} {error}");
    }
    for path in ["/v1/responses", "/v1/sessions"] {
        let (status, error) = server.send("GET", path, "", "");
        assert!(status == 400 && error.contains("is an encoder"), "{path}: {status} {error}");
    }
    let prompt_method = json!({"query": "a", "documents": ["b"], "method": "prompt"});
    assert!(server.post("/v1/rerank", &prompt_method).1.to_string().contains("is an encoder"));
    let folder = copy_encoder("embed_bert", "commands");
    let model = folder.to_str().unwrap();
    for args in [
        vec!["chat", model],
        vec!["generate", model, "--prompt", "a"],
        vec!["serve", model, "--port", "0", "--tp", "2"],
        vec!["serve", model, "--port", "0", "--policy", "rectangular"],
        vec!["serve", model, "--port", "0", "--prefix-cache", "on"],
        vec!["serve", model, "--port", "0", "--spec", "ngram"],
    ] {
        let output = kvasir(&args, &[]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("encoder"), "{args:?}: {error}");
    }
    let inspected = kvasir(&["inspect", model], &[]);
    let text = String::from_utf8_lossy(&inspected.stdout);
    assert!(text.contains("embeds texts; does not generate") && text.contains("both directions"), "{text}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn data_parallel_engines_give_the_same_vectors() {
    let input = json!({"input": ["the cache", "what is a window", "rings"]});
    let one = serve("embed_modernbert", "one", &[]).post("/v1/embeddings", &input).1;
    let two = serve("embed_modernbert", "two", &["--dp", "2"]).post("/v1/embeddings", &input).1;
    assert_eq!(vectors(&one), vectors(&two));
}

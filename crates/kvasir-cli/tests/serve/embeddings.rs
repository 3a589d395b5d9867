//! `/v1/embeddings`: equals the recorded hidden state, independent of batching.

use super::server::{JSON, Server, chat};
use serde_json::{Value, json};
use std::fs;

const EMBEDDINGS: &str = "/v1/embeddings";

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let vector =
        |one: &Value| one["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    answer["data"].as_array().unwrap_or_else(|| panic!("{answer}")).iter().map(vector).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Recorded hidden state of the last token of the 17-token prompt, after the final norm, as
/// computed by another engine.
fn recorded() -> (Vec<u64>, Vec<f64>) {
    let folder = kvasir_testkit::paths::model("qwen3");
    let expected: Value = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let prompt: Vec<u64> = serde_json::from_value(expected["prompts"]["p17"].clone()).unwrap();
    let file = fs::read(folder.join("debug_p17.safetensors")).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
    let end = start + header["after_final_norm"]["data_offsets"][1].as_u64().unwrap() as usize;
    let numbers = file[end - 64 * 4..end].chunks_exact(4);
    (prompt, numbers.map(|x| f32::from_le_bytes(x.try_into().unwrap()).into()).collect())
}

#[test]
fn a_vector_is_the_direction_of_the_last_hidden_state() {
    let (prompt, state) = recorded();
    let scale = length(&state);
    for backend in ["cpu", "plain"] {
        let server = Server::start(&format!("embed-{backend}"), &["--backend", backend]);
        let (status, answer) = server.post(EMBEDDINGS, &json!({"input": prompt, "model": "tiny"}));
        assert_eq!(status, 200, "{answer}");
        let vector = &vectors(&answer)[0];
        assert!((length(vector) - 1.0).abs() < 1e-5);
        for (ours, theirs) in vector.iter().zip(&state) {
            assert!((ours - theirs / scale).abs() < 1e-4, "{backend}: {ours} is not {}", theirs / scale);
        }
        assert_eq!(answer["usage"], json!({"prompt_tokens": 17, "total_tokens": 17}));
    }
}

#[test]
fn a_vector_is_the_same_whatever_else_runs() {
    let server = Server::start("embed-batch", &["--max-num-batched-tokens", "64"]);
    let inputs: Vec<Vec<u32>> =
        (0..24).map(|i| (0..5 + i * 4).map(|j| (i * 31 + j * 7) % 500).collect()).collect();
    let alone: Vec<Vec<f64>> = inputs
        .iter()
        .map(|input| vectors(&server.post(EMBEDDINGS, &json!({"input": input})).1).remove(0))
        .collect();
    let busy = server.streaming("", json!({"max_tokens": 300}));
    // In one request, in chunks, batched with each other and with a decoding request; then from the
    // cache.
    for salt in ["other", "other", "third"] {
        let (status, answer) = server.post(EMBEDDINGS, &json!({"input": inputs, "cache_salt": salt}));
        assert_eq!(status, 200, "{answer}");
        assert_eq!(vectors(&answer), alone);
        let tokens: usize = inputs.iter().map(Vec::len).sum();
        assert_eq!(answer["usage"]["prompt_tokens"], tokens);
        let indices = answer["data"].as_array().unwrap().iter().map(|one| one["index"].as_u64().unwrap());
        assert!(indices.eq(0..24));
    }
    drop(busy);
    // A text equals its ids, and both encodings agree.
    let (_, ids) = server.post("/tokenize", &json!({"prompt": "hello there"}));
    let embed = |extra: Value| {
        let (status, answer) = server.post(EMBEDDINGS, &extra);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let text =
        embed(json!({"input": "hello there", "dimensions": 64, "encoding_format": "float", "user": "u"}));
    assert_eq!(text["data"], embed(json!({"input": ids["tokens"]}))["data"]);
    let packed = embed(json!({"input": ["hello there"], "encoding_format": "base64"}));
    let packed = packed["data"][0]["embedding"].as_str().unwrap();
    let bytes: Vec<u8> = packed.bytes().collect::<Vec<_>>().chunks(4).flat_map(unpacked).collect();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    let written: Vec<f32> = vectors(&text)[0].iter().map(|x| *x as f32).collect();
    assert_eq!(numbers, written);
}

/// Decodes four base64 digits.
fn unpacked(digits: &[u8]) -> Vec<u8> {
    let value = |digit: &u8| match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let filled = digits.iter().filter(|digit| **digit != b'=');
    let bits = filled.clone().fold(0u32, |bits, digit| bits << 6 | u32::from(value(digit)));
    let count = filled.count();
    (bits << (6 * (4 - count))).to_be_bytes()[1..count].to_vec()
}

#[test]
fn more_inputs_than_may_be_under_way_take_turns() {
    for limit in [["--max-requests", "3"], ["--max-request-tokens", "64"]] {
        let server = Server::start("embed-turns", &limit);
        let (status, answer) = server.post(EMBEDDINGS, &json!({"input": vec!["one two three"; 50]}));
        assert_eq!((status, answer["data"].as_array().map(Vec::len)), (200, Some(50)), "{limit:?}: {answer}");
    }
}

#[test]
fn invalid_embedding_inputs_are_refused_by_name() {
    let server = Server::start("embed-bad", &["--max-model-len", "64"]);
    let refused = |body: Value| {
        let answer = server.exchange("POST", EMBEDDINGS, JSON, &body.to_string());
        (answer.status, answer.param())
    };
    for (body, status, param) in [
        (json!({}), 400, "input"),
        (json!({"input": []}), 400, "input"),
        (json!({"input": ""}), 400, "input"),
        (json!({"input": [[1], [512]]}), 400, "input[1]"),
        (json!({"input": ["a", "b ".repeat(200)]}), 400, "input[1]"),
        (json!({"input": vec![7; 64]}), 400, "input"),
        (json!({"input": vec!["a"; 2049]}), 400, "input"),
        (json!({"input": "a", "dimensions": 65}), 400, "dimensions"),
        (json!({"input": "a", "encoding_format": "int8"}), 400, "encoding_format"),
        (json!({"input": "a", "model": "huge"}), 404, "model"),
    ] {
        assert_eq!(refused(body.clone()), (status, param.into()), "{body}");
    }
    assert_eq!(server.post("/v1/chat/completions", &chat(json!({}))).0, 200);
    let sim = Server::start("embed-sim", &["--backend", "sim"]);
    let (status, answer) = sim.post(EMBEDDINGS, &json!({"input": "a"}));
    assert_eq!((status, answer["error"]["code"].as_str()), (501, Some("not_offered")));
}

#[test]
fn shorter_vectors_are_the_leading_part() {
    let server = Server::start("embed-short", &[]);
    let vector = |body: Value| vectors(&server.post(EMBEDDINGS, &body).1).remove(0);
    let (whole, short) = (vector(json!({"input": "a b"})), vector(json!({"input": "a b", "dimensions": 8})));
    let scale = length(&whole[..8]);
    assert_eq!(short.len(), 8);
    assert!(short.iter().zip(&whole).all(|(short, whole)| (short - whole / scale).abs() < 1e-5));
}

#[test]
fn documents_are_ranked_by_their_similarity() {
    let server = Server::start("rerank", &[]);
    let documents = ["hello there", "a b c", "one two three"];
    let body = json!({"model": "tiny", "query": "a b c", "documents": documents, "top_n": 2});
    let (status, ranked) = server.post("/v1/rerank", &body);
    assert_eq!(status, 200, "{ranked}");
    let results = ranked["results"].as_array().unwrap();
    assert_eq!(
        (results.len(), &results[0]["index"], &results[0]["document"]["text"]),
        (2, &json!(1), &json!("a b c"))
    );
    assert!((results[0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-4, "equal texts: {ranked}");
    let (_, scored) = server.post("/v1/score", &json!({"text_1": "a b c", "text_2": documents}));
    let scores: Vec<f64> =
        scored["data"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect();
    assert!(scores[1] > scores[0] && scores[1] > scores[2], "{scores:?}");
    for (body, param) in [
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": ""}), "documents"),
        (json!({"query": "", "documents": ["a"]}), "query"),
        (json!({"query": "a", "documents": ["a"], "texts": ["a"]}), "texts"),
        (json!({"query": "a", "documents": ["a"], "method": "guess"}), "method"),
        (
            json!({"query": "a", "documents": ["a"], "method": "embeddings", "instruction": "b"}),
            "instruction",
        ),
    ] {
        let (status, error) = server.post("/v1/rerank", &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{body}");
    }
    // The form of text-embeddings-inference.
    let body = json!({"query": "a b c", "texts": documents, "return_text": true});
    let (_, tei) = server.post("/rerank", &body);
    let tei = tei.as_array().unwrap();
    assert_eq!((tei.len(), &tei[0]["index"], &tei[0]["text"]), (3, &json!(1), &json!("a b c")));
    assert_eq!(tei[0]["score"], results[0]["relevance_score"]);
    // Cohere's form.
    let body = json!({"model": "tiny", "query": "a b c", "documents": documents, "top_n": 9});
    let (_, cohere) = server.post("/v2/rerank", &body);
    let best = json!({"index": 1, "relevance_score": results[0]["relevance_score"]});
    assert_eq!((&cohere["results"][0], &cohere["meta"]["api_version"]["version"]), (&best, &json!("2")));
    assert_eq!(cohere["results"].as_array().unwrap().len(), 3);
    let cut = json!({"query": "a", "documents": ["a b c", "a"], "max_tokens_per_doc": 1});
    let (_, cut) = server.post("/v2/rerank", &cut);
    let scores: Vec<_> = (0..2).map(|i| &cut["results"][i]["relevance_score"]).collect();
    assert_eq!(scores[0], scores[1], "both documents are cut to the same token: {cut}");
    // llama.cpp's form of vectors.
    let (_, native) = server.post("/embedding", &json!({"content": "a b c"}));
    let (_, vector) = server.post(EMBEDDINGS, &json!({"input": "a b c"}));
    assert_eq!(native, json!([{"index": 0, "embedding": [vector["data"][0]["embedding"]]}]));
}

/// The log-probability of `token` behind the prompt that judges a document.
fn verdict(server: &Server, task: &str, query: &str, document: &str, token: &Value) -> f64 {
    let system = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
                  Note that the answer can only be \"yes\" or \"no\".";
    let question = format!("<Instruct>: {task}\n\n<Query>: {query}\n\n<Document>: {document}");
    let body = json!({
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "enable_thinking": false, "max_tokens": 1, "logprobs": true, "allowed_token_ids": [token],
        "ignore_eos": true,
    });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    answer["choices"][0]["logprobs"]["content"][0]["logprob"].as_f64().unwrap()
}

#[test]
fn a_judgment_is_the_softmax_of_yes_and_no() {
    let server = Server::start("judge", &["--rerank-by", "prompt", "--max-model-len", "1024"]);
    let token = |text: &str| {
        let (_, ids) = server.post("/tokenize", &json!({"prompt": text, "add_special_tokens": false}));
        ids["tokens"][0].clone()
    };
    let (yes, no) = (token("yes"), token("no"));
    let (query, documents) = ("a b", ["hello there", "a b c", "one two three"]);
    let expected = |task: &str| {
        documents.map(|document| {
            let of = |token| verdict(&server, task, query, document, token).exp();
            of(&yes) / (of(&yes) + of(&no))
        })
    };
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5;
    let web = "Given a web search query, retrieve relevant passages that answer the query";
    let (status, scored) = server.post("/v1/score", &json!({"text_1": query, "text_2": documents}));
    assert_eq!(status, 200, "{scored}");
    for (one, expected) in scored["data"].as_array().unwrap().iter().zip(expected(web)) {
        assert!(close(one["score"].as_f64().unwrap(), expected), "{scored}");
    }
    let own = expected("find it");
    let body = json!({"query": query, "documents": documents, "instruction": "find it", "method": "prompt"});
    let (_, ranked) = server.post("/v1/rerank", &body);
    let results = ranked["results"].as_array().unwrap();
    for one in results {
        let index = one["index"].as_u64().unwrap() as usize;
        assert!(close(one["relevance_score"].as_f64().unwrap(), own[index]), "{ranked}");
    }
    let scores: Vec<f64> = results.iter().map(|one| one["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b), "{ranked}");
    // The other way is a request away; a document that does not fit is cut.
    let (_, cosine) =
        server.post("/v1/score", &json!({"text_1": "a", "text_2": "a", "method": "embeddings"}));
    assert!(close(cosine["data"][0]["score"].as_f64().unwrap(), 1.0), "{cosine}");
    let (status, cut) = server.post("/v1/score", &json!({"text_1": "a", "text_2": "b ".repeat(2_000)}));
    assert_eq!(status, 200, "{cut}");
    let (status, error) = server.post("/v1/score", &json!({"text_1": "a ".repeat(2_000), "text_2": "b"}));
    assert_eq!((status, &error["error"]["code"]), (400, &json!("context_length_exceeded")), "{error}");
}

//! Fuzz entry points of the server: request bodies, and specifications of structured output.
//!
//! The fuzz targets call these; `crates/kvasir-serve/tests/corpus.rs` runs the saved corpus through them
//! as ordinary tests.
#![allow(dead_code, clippy::unwrap_used)] // each target uses one entry point; a missing vocabulary aborts the run

use kvasir_chat::grammar::{Shape, Vocabulary};
use kvasir_formats::TextFiles;
use kvasir_sample::Sampling;
use kvasir_serve::request::{
    Body, CHAT, COMPLETIONS, ChatRequest, CompletionRequest, EMBEDDINGS, EmbeddingsRequest, Field, INFILL,
    IgnoredFields, LLAMA_COMPLETION, LlamaCppRequest, MESSAGES, MessagesRequest, OLLAMA_CHAT,
    OLLAMA_GENERATE, OllamaRequest, RERANK, RESPONSES, Reader, RerankRequest, ResponsesRequest,
};
use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

/// Vocabulary size of the test tokenizer.
const VOCAB: u32 = 512;

type Endpoint = (&'static [Field], fn(&Reader<'_>));

/// Field tables, with the parser of each endpoint.
const ENDPOINTS: [Endpoint; 10] = [
    (CHAT, |body| drop(ChatRequest::read(body, &Sampling::default(), VOCAB))),
    (COMPLETIONS, |body| drop(CompletionRequest::read(body, &Sampling::default(), VOCAB))),
    (EMBEDDINGS, |body| drop(EmbeddingsRequest::read(body, VOCAB))),
    (RESPONSES, |body| drop(ResponsesRequest::read(body, &Sampling::default(), VOCAB))),
    (MESSAGES, |body| drop(MessagesRequest::read(body, &Sampling::default(), VOCAB, true))),
    (RERANK, |body| drop(RerankRequest::read(body))),
    (LLAMA_COMPLETION, |body| drop(LlamaCppRequest::completion(body))),
    (INFILL, |body| drop(LlamaCppRequest::infill(body))),
    (OLLAMA_CHAT, |body| drop(OllamaRequest::chat(body))),
    (OLLAMA_GENERATE, |body| drop(OllamaRequest::generate(body))),
];

/// A request body, read by the endpoint that the first byte selects.
pub(crate) fn body(bytes: &[u8]) {
    let Some((first, json)) = bytes.split_first() else { return };
    let (fields, read) = ENDPOINTS[usize::from(*first) % ENDPOINTS.len()];
    if let Ok(body) = Body::parse(json, fields, IgnoredFields::default()) {
        read(&body.reader());
    }
}

fn compile(shape: Shape) {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    let vocabulary = VOCABULARY.get_or_init(|| {
        let files = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .map(|folder| folder.join("crates/kvasir-formats/tests/data/tokenizers/qwen"))
            .find(|folder| folder.exists());
        let tokenizer = TextFiles::open(&files.unwrap()).unwrap().tokenizer().unwrap();
        Vocabulary::new(Arc::new(tokenizer), VOCAB, &[505, 503]).unwrap()
    });
    let _ = vocabulary.compile(&shape, &[]);
}

/// A JSON schema.
pub(crate) fn schema(bytes: &[u8]) {
    if let Ok(schema) = serde_json::from_slice(bytes) {
        compile(Shape::JsonSchema(schema));
    }
}

/// A grammar in Lark's notation or in EBNF.
pub(crate) fn grammar(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        compile(Shape::Grammar(text.into()));
    }
}

/// A regular expression.
pub(crate) fn regex(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        compile(Shape::Regex(text.into()));
    }
}

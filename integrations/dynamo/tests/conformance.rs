//! Dynamo's conformance kit, and properties that it does not test: equal answers, constraints,
//! prefix cache hits, and KV events that Dynamo's router can decode.

use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{
    FinishReason, GenerateContext, GuidedDecodingOptions, KvEventSource, LLMEngine, LLMEngineOutput,
    OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use dynamo_kv_router::zmq_wire::decode_event_batch;
use futures::StreamExt;
use kvasir::{Kvasir, Options};
use kvasir_dynamo::{EngineSetup, KvasirEngine};
use kvasir_engine::EngineConfig;
use std::time::Duration;
use zeromq::{Socket, SocketRecv, SubSocket};

fn engine() -> KvasirEngine {
    KvasirEngine::new(EngineSetup {
        model: None,
        name: "kvasir-mini".into(),
        threads: Some(1),
        config: EngineConfig {
            cache: Some(kvasir::CacheKind::Paged),
            kv_capacity: Some(4096),
            ..EngineConfig::default()
        },
        kv_events: "127.0.0.1:0".parse().unwrap(),
    })
}

fn request(ids: Vec<u32>, max_tokens: u32, guided: Option<GuidedDecodingOptions>) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("kvasir-mini".to_owned())
        .token_ids(ids)
        .stop_conditions(StopConditions { max_tokens: Some(max_tokens), ..StopConditions::default() })
        .sampling_options(SamplingOptions { guided_decoding: guided, ..SamplingOptions::default() })
        .output_options(OutputOptions { logprobs: Some(2), ..OutputOptions::default() })
        .build()
        .unwrap()
}

async fn generate(engine: &KvasirEngine, request: PreprocessedRequest) -> (Vec<u32>, LLMEngineOutput) {
    let stream = engine.generate(request, GenerateContext::new(mock_context(), None)).await.unwrap();
    let chunks: Vec<_> = stream.map(Result::unwrap).collect().await;
    let ids = chunks.iter().flat_map(|chunk| chunk.token_ids.iter().copied()).collect();
    for chunk in &chunks {
        let tokens = chunk.token_ids.len();
        if tokens > 0 {
            assert_eq!(chunk.log_probs.as_ref().map(Vec::len), Some(tokens));
            assert!(chunk.top_logprobs.iter().flatten().all(|top| top.len() == 2));
        }
    }
    (ids, chunks.into_iter().next_back().unwrap())
}

#[tokio::test]
async fn the_engine_conforms() {
    run_conformance(engine).await.unwrap();
}

#[tokio::test]
async fn answers_equal_those_of_the_library() {
    let engine = engine();
    engine.start(0).await.unwrap();
    let mut library = Kvasir::built_in(Options::default()).unwrap();
    let prompt: Vec<u32> = (300..340).collect();
    let params = kvasir::Params { max_tokens: 12, ..kvasir::Params::default() };
    let expected = library.generate(prompt.clone(), &params).unwrap().ids;
    let (ids, last) = generate(&engine, request(prompt.clone(), 12, None)).await;
    assert_eq!(ids, expected);
    assert!(matches!(last.finish_reason, Some(FinishReason::Length | FinishReason::Stop)));
    let cached = |last: &LLMEngineOutput| {
        last.completion_usage.as_ref().unwrap().prompt_tokens_details.as_ref().unwrap().cached_tokens
    };
    assert_eq!(cached(&last), Some(0));
    let (again, last) = generate(&engine, request(prompt, 12, None)).await;
    assert_eq!((again, cached(&last)), (ids, Some(32)));
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn guided_answers_match_their_constraint() {
    let engine = engine();
    engine.start(0).await.unwrap();
    let library = Kvasir::built_in(Options::default()).unwrap();
    let guided = GuidedDecodingOptions { regex: Some("[0-9]{3}".into()), ..GuidedDecodingOptions::default() };
    let (ids, _) = generate(&engine, request(vec![300, 301], 12, Some(guided))).await;
    let text = library.model().text(&ids).unwrap();
    assert!(text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    let broken = GuidedDecodingOptions { regex: Some("(".into()), ..GuidedDecodingOptions::default() };
    let context = GenerateContext::new(mock_context(), None);
    let error = engine.generate(request(vec![300], 4, Some(broken)), context).await.err().unwrap();
    assert!(error.to_string().contains("shape"), "{error}");
    engine.cleanup().await.unwrap();
}

#[tokio::test]
async fn dynamos_router_decodes_the_kv_events() {
    let engine = engine();
    engine.start(0).await.unwrap();
    let sources = engine.kv_event_sources().await.unwrap();
    let [KvEventSource::Zmq { endpoint, .. }] = &sources[..] else { panic!("one source") };
    let mut subscription = SubSocket::new();
    subscription.connect(endpoint).await.unwrap();
    subscription.subscribe("").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    generate(&engine, request((300..340).collect(), 4, None)).await;
    let message = tokio::time::timeout(Duration::from_secs(30), subscription.recv()).await;
    let frames = message.unwrap().unwrap().into_vec();
    let batch = decode_event_batch(&frames[2]).unwrap();
    assert!(!batch.events.is_empty());
    engine.cleanup().await.unwrap();
}

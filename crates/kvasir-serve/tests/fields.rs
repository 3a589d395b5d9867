//! Checks every field of every endpoint against the table: supported, ignored by contract, or
//! rejected.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_sample::Sampling;
use kvasir_serve::{ApiError, request::*};
use serde_json::{Map, Value, json};

const VOCAB: u32 = 1000;

/// An endpoint's field table, a valid body, and a parser that returns the request as text for
/// comparison.
struct Read {
    fields: &'static [Field],
    body: Value,
    read: fn(&Reader) -> Result<String, ApiError>,
}

fn endpoints() -> Vec<Read> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    vec![
        Read {
            fields: CHAT,
            body: json!({"messages": messages}),
            read: |body| Ok(format!("{:?}", ChatRequest::read(body, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: COMPLETIONS,
            body: json!({"prompt": "hi"}),
            read: |body| Ok(format!("{:?}", CompletionRequest::read(body, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: EMBEDDINGS,
            body: json!({"input": "hi"}),
            read: |body| Ok(format!("{:?}", EmbeddingsRequest::read(body, VOCAB)?)),
        },
        Read {
            fields: LLAMA_EMBEDDING,
            body: json!({"content": "hi"}),
            read: |body| Ok(format!("{:?}", llama_embedding(body, VOCAB)?)),
        },
        Read {
            fields: RESPONSES,
            body: json!({"input": "hi"}),
            read: |body| Ok(format!("{:?}", ResponsesRequest::read(body, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: MESSAGES,
            body: json!({"model": "m", "max_tokens": 5, "messages": messages}),
            read: |body| Ok(format!("{:?}", MessagesRequest::read(body, &Sampling::default(), VOCAB, true)?)),
        },
        Read {
            fields: COUNT_TOKENS,
            body: json!({"model": "m", "messages": messages}),
            read: |body| {
                Ok(format!("{:?}", MessagesRequest::read_for_count(body, &Sampling::default(), VOCAB, true)?))
            },
        },
        Read {
            fields: RERANK,
            body: json!({"query": "a", "documents": ["b"]}),
            read: |body| Ok(format!("{:?}", RerankRequest::read(body)?)),
        },
        Read {
            fields: COHERE_RERANK,
            body: json!({"query": "a", "documents": ["b"]}),
            read: |body| Ok(format!("{:?}", RerankRequest::read_cohere(body)?)),
        },
        Read {
            fields: SCORE,
            body: json!({"text_1": "a", "text_2": "b"}),
            read: |body| Ok(format!("{:?}", ScoreRequest::read(body)?)),
        },
        Read {
            fields: LLAMA_COMPLETION,
            body: json!({"prompt": "hi"}),
            read: |body| llama_cpp(body, LlamaCppRequest::completion(body)?),
        },
        Read {
            fields: INFILL,
            body: json!({"input_prefix": "a", "input_suffix": "b"}),
            read: |body| {
                let mut request = LlamaCppRequest::infill(body)?;
                request.body.insert("prompt".into(), json!([1]));
                llama_cpp(body, request)
            },
        },
        Read {
            fields: OLLAMA_CHAT,
            body: json!({"messages": messages}),
            read: |body| ollama(body, OllamaRequest::chat(body)?),
        },
        Read {
            fields: OLLAMA_GENERATE,
            body: json!({"prompt": "hi"}),
            read: |body| ollama(body, OllamaRequest::generate(body)?),
        },
        Read {
            fields: OLLAMA_PULL,
            body: json!({"model": "m"}),
            read: |body| Ok(format!("{:?}", OllamaModel::pull(body)?)),
        },
        Read {
            fields: OLLAMA_PUSH,
            body: json!({"model": "m"}),
            read: |body| Ok(format!("{:?}", OllamaModel::push(body)?)),
        },
        Read {
            fields: OLLAMA_CREATE,
            body: json!({"model": "m"}),
            read: |body| Ok(format!("{:?}", OllamaModel::create(body)?)),
        },
        Read {
            fields: OLLAMA_DELETE,
            body: json!({"model": "m"}),
            read: |body| Ok(format!("{:?}", OllamaModel::delete(body)?)),
        },
        Read {
            fields: OLLAMA_COPY,
            body: json!({"source": "m", "destination": "n"}),
            read: |body| Ok(format!("{:?}", OllamaCopy::read(body)?)),
        },
        Read {
            fields: OLLAMA_EMBED,
            body: json!({"input": "hi"}),
            read: |body| {
                let fields = OllamaEmbedding::embed(body)?.fields.unwrap_or_default();
                Ok(format!("{:?}", EmbeddingsRequest::read(&body.derived(&fields), VOCAB)?))
            },
        },
        Read {
            fields: OLLAMA_EMBEDDINGS,
            body: json!({"prompt": "hi"}),
            read: |body| {
                let fields = OllamaEmbedding::embeddings(body)?.fields.unwrap_or_default();
                Ok(format!("{:?}", EmbeddingsRequest::read(&body.derived(&fields), VOCAB)?))
            },
        },
    ]
}

/// Validates a translated request as its endpoint does.
fn llama_cpp(body: &Reader, request: LlamaCppRequest) -> Result<String, ApiError> {
    let fields = &request.body;
    CompletionRequest::read(&body.derived(fields), &Sampling::default(), VOCAB)?;
    Ok(format!("{request:?}"))
}

/// Validates a translated request as its endpoint does.
fn ollama(body: &Reader, request: OllamaRequest) -> Result<String, ApiError> {
    if let OllamaTask::Chat(fields) = &request.task {
        ChatRequest::read(&body.derived(fields), &Sampling::default(), VOCAB)
            .map_err(|error| request.client_error(error))?;
    }
    Ok(format!("{request:?}"))
}

fn with(body: &Value, field: &str, value: Value) -> Map<String, Value> {
    let mut map = body.as_object().unwrap().clone();
    map.insert(field.into(), value);
    map
}

/// Parses a body under this rule for unknown fields.
fn read_by(
    rule: UnknownFields,
    map: &Map<String, Value>,
    read: fn(&Reader) -> Result<String, ApiError>,
) -> (Result<String, ApiError>, Vec<String>) {
    let ignored = IgnoredFields::default().with_rule(rule);
    (read(&Reader::new(map, &ignored)), ignored.names())
}

/// A value of each JSON type; some are invalid for every field.
fn values() -> [Value; 7] {
    [json!("zzz"), json!(true), json!(-7), json!(1e300), json!([{}]), json!({"zzz": 1}), json!(["", -1])]
}

#[test]
fn every_field_matches_its_class() {
    for Read { fields, body, read } in endpoints() {
        let read = |map: &Map<String, Value>| read_by(UnknownFields::Refuse, map, read).0;
        let plain = read(body.as_object().unwrap()).unwrap();
        for field in fields {
            let name = field.name;
            let answers = values().map(|value| read(&with(&body, name, value)));
            let named =
                |error: &ApiError| error.param.as_deref().is_some_and(|param| param.starts_with(name));
            match field.class {
                Class::Supported => {
                    // A parser that validates a field also reads it.
                    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
                    assert!(refused.clone().all(|error| error.status == 400), "{name}");
                    assert!(refused.clone().any(named), "{name} takes anything");
                }
                Class::Ignored(why) => {
                    assert!(!why.is_empty());
                    for answer in answers {
                        assert_eq!(answer.as_ref(), Ok(&plain), "{name} changes something");
                    }
                }
                Class::Rejected(why) => {
                    for answer in answers {
                        let error = answer.unwrap_err();
                        assert_eq!((error.status, error.param.as_deref()), (400, Some(name)));
                        assert_eq!(error.code, Some("unsupported_parameter"));
                        assert!(error.message.ends_with(why));
                    }
                    let neutral = field.neutral.map(|text| serde_json::from_str(text).unwrap());
                    for value in [Value::Null, json!([]), json!(false)].into_iter().chain(neutral) {
                        assert_eq!(
                            read(&with(&body, name, value)).as_ref(),
                            Ok(&plain),
                            "{name} asks for nothing"
                        );
                    }
                }
            }
        }
    }
}

/// Documented values of one field that the original servers take: null, the default, each value of an
/// enumeration, and both ends of a range. Values that request a missing feature are left out.
fn documented_values(fields: &[Field]) -> Vec<(&'static str, Vec<Value>)> {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let custom = json!({"type": "custom", "custom": {"name": "f", "format": {"type": "text"}}});
    let schema = json!({"name": "s", "schema": {"type": "object"}, "strict": true});
    let efforts = ["none", "minimal", "low", "medium", "high", "xhigh"].map(Value::from).to_vec();
    let flags = || vec![json!(false), json!(true)];
    let texts = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
    let objects =
        |name: &str, values: &[&str]| values.iter().map(|value| json!({name: value})).collect::<Vec<_>>();
    let sampled = |most: f64| vec![json!(0), json!(1), json!(most)];
    let kinds = |kinds: &[&str]| kinds.iter().map(|kind| json!([{"type": kind, "name": "x"}])).collect();
    match () {
        () if fields == CHAT => vec![
            ("temperature", sampled(2.0)),
            ("top_p", sampled(0.5)),
            ("n", vec![json!(1)]),
            ("logprobs", flags()),
            ("presence_penalty", vec![json!(-2), json!(0), json!(2)]),
            ("frequency_penalty", vec![json!(-2), json!(0), json!(2)]),
            ("logit_bias", vec![json!({}), json!({"5": -100})]),
            ("stop", vec![json!("x"), json!(["a", "b", "c", "d"]), json!([])]),
            ("max_tokens", vec![json!(1)]),
            ("max_completion_tokens", vec![json!(1)]),
            ("reasoning_effort", efforts),
            ("verbosity", texts(&["low", "medium", "high"])),
            ("service_tier", texts(&["auto", "default", "flex", "scale", "priority"])),
            ("modalities", vec![json!(["text"]), json!([])]),
            ("store", flags()),
            ("metadata", vec![json!({}), json!({"a": "b"})]),
            ("parallel_tool_calls", flags()),
            ("prediction", vec![json!({"type": "content", "content": [{"type": "text", "text": "a"}]})]),
            (
                "response_format",
                vec![
                    json!({"type": "text"}),
                    json!({"type": "json_object"}),
                    json!({"type": "json_schema", "json_schema": schema}),
                ],
            ),
            ("tools", vec![json!([]), json!([tool]), json!([custom])]),
            ("tool_choice", texts(&["none", "auto"])),
            ("prompt_cache_retention", texts(&["in-memory", "24h"])),
            ("user", texts(&["", "u"])),
            ("functions", vec![json!([])]),
            ("function_call", texts(&["none"])),
            ("web_search_options", vec![json!({})]),
            ("seed", vec![json!(i64::MIN), json!(i64::MAX)]),
        ],
        () if fields == COMPLETIONS => vec![
            ("best_of", vec![json!(1)]),
            ("echo", flags()),
            ("logprobs", vec![json!(0), json!(5)]),
            ("max_tokens", vec![json!(16)]),
            ("suffix", texts(&[""])),
            ("temperature", sampled(2.0)),
            ("top_p", sampled(0.5)),
            ("prompt", vec![json!("a"), json!(["a", "b"]), json!([1, 2]), json!([[1], [2]])]),
            ("stop", vec![json!("x"), json!(["a"])]),
            ("logit_bias", vec![json!({})]),
            ("user", texts(&["u"])),
        ],
        () if fields == RESPONSES => vec![
            ("background", flags()),
            (
                "include",
                [
                    "web_search_call.action.sources",
                    "code_interpreter_call.outputs",
                    "computer_call_output.output.image_url",
                    "file_search_call.results",
                    "message.input_image.image_url",
                    "message.output_text.logprobs",
                    "reasoning.encrypted_content",
                ]
                .map(|name| json!([name]))
                .to_vec(),
            ),
            ("input", vec![json!("a"), json!([{"role": "user", "content": "a"}])]),
            ("instructions", texts(&["", "a"])),
            ("max_output_tokens", vec![json!(16)]),
            ("max_tool_calls", vec![json!(1)]),
            ("metadata", vec![json!({}), json!({"a": "b"})]),
            ("parallel_tool_calls", flags()),
            (
                "reasoning",
                [
                    objects("effort", &["none", "low", "xhigh"]),
                    objects("summary", &["auto", "concise", "detailed"]),
                ]
                .concat(),
            ),
            ("service_tier", texts(&["auto", "default", "flex", "priority"])),
            ("store", flags()),
            ("stream", flags()),
            ("stream_options", vec![json!({}), json!({"include_obfuscation": true})]),
            ("temperature", sampled(2.0)),
            ("top_p", sampled(0.5)),
            ("top_logprobs", vec![json!(0), json!(20)]),
            (
                "text",
                [
                    vec![json!({"format": {"type": "text"}}), json!({"format": {"type": "json_object"}})],
                    objects("verbosity", &["low", "medium", "high"]),
                ]
                .concat(),
            ),
            ("tool_choice", texts(&["none", "auto"])),
            ("tools", kinds(&["function", "custom", "web_search", "file_search", "code_interpreter"])),
            ("truncation", texts(&["auto", "disabled"])),
            ("user", texts(&["", "u"])),
        ],
        () if fields == EMBEDDINGS => vec![
            ("input", vec![json!("a"), json!(["a", "b"]), json!([1, 2]), json!([[1], [2]])]),
            ("encoding_format", texts(&["float", "base64"])),
            ("dimensions", vec![json!(1)]),
            ("user", texts(&["", "u"])),
        ],
        () if fields == MESSAGES => vec![
            ("temperature", sampled(0.5)),
            ("top_p", sampled(0.5)),
            ("top_k", vec![json!(0), json!(5)]),
            ("stop_sequences", vec![json!([]), json!(["x"])]),
            ("stream", flags()),
            ("system", vec![json!(""), json!("a"), json!([]), json!([{"type": "text", "text": "a"}])]),
            ("metadata", vec![json!({}), json!({"user_id": "u"})]),
            ("service_tier", texts(&["auto", "standard_only"])),
            ("inference_geo", texts(&["global"])),
            ("diagnostics", vec![json!({}), json!({"previous_message_id": null})]),
            (
                "thinking",
                vec![
                    json!({"type": "disabled"}),
                    json!({"type": "adaptive"}),
                    json!({"type": "adaptive", "display": "omitted"}),
                    json!({"type": "adaptive", "display": "summarized"}),
                ],
            ),
            ("output_config", objects("effort", &["low", "medium", "high", "xhigh", "max"])),
            ("tool_choice", objects("type", &["auto", "none"])),
            ("tools", kinds(&["bash_20250124", "web_search_20250305", "code_execution_20250825"])),
            ("mcp_servers", vec![json!([])]),
            ("cache_control", vec![json!({"type": "ephemeral"}), json!({"type": "ephemeral", "ttl": "1h"})]),
            ("context_management", vec![json!({"edits": []})]),
        ],
        () => Vec::new(),
    }
}

#[test]
fn documented_values_are_not_refused() {
    let tables = [CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES];
    for Read { fields, body, read } in endpoints().into_iter().filter(|of| tables.contains(&of.fields)) {
        let values = documented_values(fields);
        assert!(!values.is_empty());
        let required = body.as_object().unwrap().keys();
        let absent =
            fields.iter().map(|field| field.name).filter(|name| required.clone().all(|own| own != name));
        let nulls = absent.map(|name| (name, vec![Value::Null]));
        for (name, values) in nulls.chain(values) {
            assert!(fields.iter().any(|field| field.name == name), "{name}");
            for value in values {
                let map = with(&body, name, value);
                let answer = read_by(UnknownFields::Refuse, &map, read).0;
                assert!(answer.is_ok(), "{}: {answer:?}", json!(map));
            }
        }
    }
}

#[test]
fn unknown_fields_are_named_or_refused() {
    for Read { fields, body, read } in endpoints() {
        for (i, field) in fields.iter().enumerate() {
            assert!(fields[..i].iter().all(|other| other.name != field.name), "{} stands twice", field.name);
        }
        for stranger in ["best_off", "n_kept", "n_discard", "tokenize"] {
            let map = with(&body, stranger, json!(1));
            let error = read_by(UnknownFields::Refuse, &map, read).0.unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(stranger)));
            assert_eq!(error.code, Some("unknown_parameter"));
            let (answer, ignored) = read_by(UnknownFields::Ignore, &map, read);
            let plain = read_by(UnknownFields::Refuse, body.as_object().unwrap(), read).0;
            assert_eq!(
                (answer, ignored),
                (plain, vec![stranger.to_owned()]),
                "it changes nothing and is named"
            );
        }
    }
}

#[test]
fn every_endpoint_with_a_body_has_its_table() {
    let no_body = [
        "/v1/sessions/{id}/keep",
        "/v1/responses/{id}/cancel",
        "/v1/admin/replicas/{id}/drain",
        "/v1/admin/replicas/{id}/restart",
    ];
    for endpoint in ENDPOINTS {
        let takes_body = match endpoint.path {
            "/api/delete" => true,
            path => endpoint.method == "post" && !no_body.contains(&path),
        };
        assert_eq!(takes_body, !endpoint.fields.is_empty(), "{}", endpoint.path);
    }
}

//! Every field of every endpoint is what the table says: supported, ignored by contract, or rejected.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_sample::Sampling;
use kvasir_serve::{ApiError, request::*};
use serde_json::{Map, Value, json};

const VOCAB: u32 = 1000;

/// An endpoint's table, a body that is right, and how a body is read: the request as text, to be compared.
struct Read {
    fields: &'static [Field],
    body: Value,
    read: fn(&Map<String, Value>) -> Result<String, ApiError>,
}

fn endpoints() -> Vec<Read> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    vec![
        Read {
            fields: CHAT,
            body: json!({"messages": messages}),
            read: |map| Ok(format!("{:?}", ChatRequest::read(map, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: COMPLETIONS,
            body: json!({"prompt": "hi"}),
            read: |map| Ok(format!("{:?}", CompletionRequest::read(map, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: EMBEDDINGS,
            body: json!({"input": "hi"}),
            read: |map| Ok(format!("{:?}", EmbeddingsRequest::read(map, VOCAB)?)),
        },
        Read {
            fields: RESPONSES,
            body: json!({"input": "hi"}),
            read: |map| Ok(format!("{:?}", ResponsesRequest::read(map, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: MESSAGES,
            body: json!({"model": "m", "max_tokens": 5, "messages": messages}),
            read: |map| Ok(format!("{:?}", MessagesRequest::read(map, &Sampling::default(), VOCAB)?)),
        },
        Read {
            fields: COUNT_TOKENS,
            body: json!({"model": "m", "messages": messages}),
            read: |map| {
                Ok(format!("{:?}", MessagesRequest::read_for_count(map, &Sampling::default(), VOCAB)?))
            },
        },
    ]
}

fn with(body: &Value, field: &str, value: Value) -> Map<String, Value> {
    let mut map = body.as_object().unwrap().clone();
    map.insert(field.into(), value);
    map
}

/// A value of each kind; for every field some of them are wrong.
fn values() -> [Value; 7] {
    [json!("zzz"), json!(true), json!(-7), json!(1e300), json!([{}]), json!({"zzz": 1}), json!(["", -1])]
}

#[test]
fn every_field_is_what_the_table_says() {
    for Read { fields, body, read } in endpoints() {
        let plain = read(body.as_object().unwrap()).unwrap();
        for field in fields {
            let name = field.name;
            let answers = values().map(|value| read(&with(&body, name, value)));
            let named =
                |error: &ApiError| error.param.as_deref().is_some_and(|param| param.starts_with(name));
            match field.class {
                Class::Supported => {
                    // Whoever checks a field reads it.
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
                    assert_eq!(read(&with(&body, name, Value::Null)).as_ref(), Ok(&plain), "null is absent");
                }
            }
        }
    }
}

#[test]
fn no_field_stands_twice_and_no_other_is_let_in() {
    for Read { fields, body, read } in endpoints() {
        for (i, field) in fields.iter().enumerate() {
            assert!(fields[..i].iter().all(|other| other.name != field.name), "{} stands twice", field.name);
        }
        for stranger in ["best_off", "n_keep", "n_discard", "tokenize"] {
            let error = read(&with(&body, stranger, json!(1))).unwrap_err();
            assert_eq!((error.status, error.param.as_deref()), (400, Some(stranger)));
            assert_eq!(error.code, Some("unknown_parameter"));
        }
    }
}

#[test]
fn every_endpoint_with_a_body_has_its_table() {
    for endpoint in ENDPOINTS {
        assert_eq!(endpoint.method == "post", !endpoint.fields.is_empty(), "{}", endpoint.path);
    }
}

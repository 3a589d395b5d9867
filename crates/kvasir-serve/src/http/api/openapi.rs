//! Generates the OpenAPI description from the same field tables that validate requests, so the two
//! cannot diverge.

use crate::request::endpoints::{ENDPOINTS, Endpoint};
use crate::request::field::{Class, Field};
use axum::Json;
use serde_json::{Map, Value, json};

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> Json<Value> {
    Json(description())
}

fn description() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        path[endpoint.method] = operation(endpoint);
    }
    let keys = json!({
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    });
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Kvasir", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": {"Error": error()}, "securitySchemes": keys},
        "security": [{}, {"bearer": []}, {"header": []}],
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let failed = json!({
        "description": "What was wrong, and with which parameter",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    });
    let mut operation = json!({
        "summary": endpoint.summary,
        "responses": {"200": {"description": "Done"}, "default": failed},
    });
    let parameters = endpoint.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameters: Vec<Value> = parameters
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if !endpoint.fields.is_empty() {
        let schema = json!({"schema": body(endpoint.fields)});
        operation["requestBody"] = json!({"required": true, "content": {"application/json": schema}});
    }
    operation
}

/// JSON Schema of a body; rejected fields are omitted and no others are allowed.
fn body(fields: &[Field]) -> Value {
    let mut properties = Map::new();
    for field in fields {
        let mut property = kind(field.name);
        match field.class {
            Class::Supported => {}
            Class::Ignored(why) => property["description"] = format!("Ignored: {why}.").into(),
            Class::Rejected(_) => continue,
        }
        properties.insert(field.name.into(), property);
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

/// Type of a field by name. Names have one meaning everywhere; where an endpoint accepts less, its
/// error says so.
fn kind(name: &str) -> Value {
    let number = |low: f64, high: f64| json!({"type": ["number", "null"], "minimum": low, "maximum": high});
    match name {
        "model" | "instructions" | "cache_salt" | "user" | "session" => json!({"type": ["string", "null"]}),
        "stream"
        | "ignore_eos"
        | "parallel_tool_calls"
        | "add_generation_prompt"
        | "store"
        | "background"
        | "continue_final_message"
        | "echo"
        | "add_special_tokens"
        | "return_token_strs" => json!({"type": ["boolean", "null"]}),
        "logprobs" => json!({"type": ["boolean", "integer", "null"]}),
        "temperature" => number(0.0, 2.0),
        "top_p" | "min_p" => number(0.0, 1.0),
        "presence_penalty" | "frequency_penalty" => number(-2.0, 2.0),
        "repetition_penalty" => number(0.0, 2.0),
        "max_tokens" | "max_completion_tokens" | "max_output_tokens" | "n" => {
            json!({"type": ["integer", "null"], "minimum": 1})
        }
        "top_logprobs" => json!({"type": ["integer", "null"], "minimum": 0, "maximum": 20}),
        "min_tokens" | "top_k" | "seed" | "priority" | "prompt_logprobs" => {
            json!({"type": ["integer", "null"]})
        }
        "messages" | "tools" | "stop_token_ids" | "stop_sequences" | "include" | "tokens" => {
            json!({"type": ["array", "null"]})
        }
        "stop" | "system" | "input" => json!({"type": ["string", "array", "null"]}),
        "prompt" => json!({"type": ["string", "array"]}),
        "stream_options"
        | "logit_bias"
        | "response_format"
        | "chat_template_kwargs"
        | "thinking"
        | "text"
        | "reasoning"
        | "output_config"
        | "metadata" => json!({"type": ["object", "null"]}),
        "tool_choice" => json!({"type": ["string", "object", "null"]}),
        // Any type: the field's own error says what it accepts.
        _ => json!({}),
    }
}

fn error() -> Value {
    let text = json!({"type": ["string", "null"]});
    // On llama.cpp's routes the HTTP status.
    let code = json!({"type": ["string", "integer", "null"]});
    json!({
        "type": "object",
        "required": ["error"],
        "properties": {"error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}, "param": text, "code": code},
        }},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::api::messages::{COUNT_TOKENS_PATH, MESSAGES_PATH};

    #[test]
    fn every_field_is_described_and_no_other() {
        let all = description();
        for endpoint in ENDPOINTS {
            let operation = &all["paths"][endpoint.path][endpoint.method];
            assert_eq!(operation["summary"], endpoint.summary);
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let rejected = |field: &&Field| matches!(field.class, Class::Rejected(_));
            for field in endpoint.fields {
                let property = &schema["properties"][field.name];
                assert_eq!(property.is_null(), rejected(&field), "{} {}", endpoint.path, field.name);
                let says = property["description"].as_str().is_some_and(|text| text.starts_with("Ignored"));
                assert_eq!(says, matches!(field.class, Class::Ignored(_)));
            }
            let described = schema["properties"].as_object().map_or(0, Map::len);
            assert_eq!(described, endpoint.fields.iter().filter(|field| !rejected(field)).count());
        }
    }

    /// Finds undocumented routes by their `.route(` line in the router's source.
    #[test]
    fn openapi_describes_every_route_and_no_other() {
        let source = include_str!("../router.rs");
        let routes = source.split(".route(").skip(1).map(|rest| {
            let name = rest.split(',').next().unwrap_or_default().trim();
            match name {
                "MESSAGES_PATH" => MESSAGES_PATH,
                "COUNT_TOKENS_PATH" => COUNT_TOKENS_PATH,
                literal => literal.trim_matches('"'),
            }
        });
        let routes: Vec<&str> = routes.collect();
        for route in &routes {
            assert!(ENDPOINTS.iter().any(|endpoint| endpoint.path == *route), "{route} is not described");
        }
        for endpoint in ENDPOINTS {
            assert!(routes.contains(&endpoint.path), "{} is described and not served", endpoint.path);
        }
    }
}

//! Parses structured output parameters: `response_format`, `structured_outputs`, vLLM's older
//! `guided_*`, SGLang's `regex` and `ebnf`, and
//! llama.cpp's `grammar` and `json_schema`.
//!
//! An empty text is no constraint, in every spelling: clients send all fields they know. Only a typed
//! `response_format` rejects it, since its type requests a constraint.

use crate::error::ApiError;
use crate::request::reader::Reader;
use kvasir_chat::{ResponseFormat, Shape};
use serde_json::{Value, json};

/// Maximum number of choices; the compiler has limits of its own.
const MAX_CHOICES: usize = 4096;

/// Parses `response_format`, `structured_outputs`, `guided_*`, `regex`, `ebnf`, `grammar` and
/// `json_schema`; at most one may be set.
pub(crate) fn read_response_format(body: &Reader) -> Result<Option<ResponseFormat>, ApiError> {
    let mut formats = Vec::new();
    formats.extend(response_format(body)?);
    if let Some(outer) = body.object("structured_outputs")? {
        outer.only(&["json", "json_object", "regex", "choice", "grammar"])?;
        formats.extend(constraint(&outer, "")?);
    }
    formats.extend(constraint(body, "guided_")?);
    // SGLang's names, and llama.cpp's.
    for (name, shape) in [
        ("regex", Shape::Regex as fn(String) -> Shape),
        ("ebnf", Shape::Grammar),
        ("grammar", Shape::Grammar),
    ] {
        let text = unless_empty(body, name)?;
        formats.extend(text.map(|text| ResponseFormat { shape: shape(text), param: body.name(name) }));
    }
    if body.get("json_schema").is_some_and(|schema| *schema != "")
        && let Some(schema) = body.object("json_schema")?
    {
        formats.push(ResponseFormat {
            shape: Shape::JsonSchema(schema.to_value()),
            param: body.name("json_schema"),
        });
    }
    match formats.len() {
        0 => Ok(None),
        1 => Ok(formats.pop()),
        _ => Err(ApiError::param(
            &formats[1].param,
            format!("`{}` and `{}` exclude each other", formats[1].param, formats[0].param),
        )),
    }
}

/// Parses the schema in the field `schema`. Schemas are always enforced or rejected, whatever
/// `strict` says.
pub(super) fn read_schema_format(outer: &Reader) -> Result<ResponseFormat, ApiError> {
    let schema = outer.need("schema")?;
    outer.flag("strict", false)?;
    if schema.is_object() || schema.is_boolean() {
        Ok(ResponseFormat { shape: Shape::JsonSchema(schema.clone()), param: outer.name("schema") })
    } else {
        Err(outer.error("schema", "must be an object"))
    }
}

/// Parses a format of type `json_object`: a JSON object, or JSON that satisfies the field `schema`,
/// as llama.cpp's clients send it.
pub(super) fn read_json_object_format(format: &Reader) -> Result<ResponseFormat, ApiError> {
    match format.get("schema") {
        Some(schema) if *schema != json!({}) => read_schema_format(format),
        _ => Ok(ResponseFormat { shape: Shape::JsonObject, param: format.name("type") }),
    }
}

fn response_format(body: &Reader) -> Result<Option<ResponseFormat>, ApiError> {
    let Some(format) = body.object("response_format")? else { return Ok(None) };
    let text = |field: &str| {
        format.only(&["type", field])?;
        match format.need_text(field)? {
            "" => Err(format.error(field, "must not be empty")),
            text => Ok(text.to_owned()),
        }
    };
    let found = |field: &str, shape: Shape| Ok(Some(ResponseFormat { shape, param: format.name(field) }));
    match format.text("type")? {
        Some("text") => {
            format.only(&["type"])?;
            Ok(None)
        }
        Some("json_object") => {
            format.only(&["type", "schema", "strict"])?;
            read_json_object_format(&format).map(Some)
        }
        Some("json_schema") => {
            format.only(&["type", "json_schema"])?;
            let outer = format.need_object("json_schema")?;
            outer.only(&["name", "description", "schema", "strict"])?;
            read_schema_format(&outer).map(Some)
        }
        Some("grammar") => found("grammar", Shape::Grammar(text("grammar")?)),
        Some("regex") => found("regex", Shape::Regex(text("regex")?)),
        _ => Err(format.error("type", "must be text, json_object, json_schema, grammar or regex")),
    }
}

/// A text field; `None` if it is absent or empty.
fn unless_empty(body: &Reader, field: &str) -> Result<Option<String>, ApiError> {
    Ok(body.text(field)?.filter(|text| !text.is_empty()).map(str::to_owned))
}

/// Parses the constraints whose names have this prefix.
fn constraint(body: &Reader, prefix: &str) -> Result<Vec<ResponseFormat>, ApiError> {
    let field = |name: &str| format!("{prefix}{name}");
    let mut formats = Vec::new();
    let mut add =
        |name: &str, shape: Shape| formats.push(ResponseFormat { shape, param: body.name(&field(name)) });
    match body.get(&field("json")) {
        None => {}
        Some(Value::String(text)) if text.is_empty() => {}
        // A schema may be given as a JSON string.
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(schema) => add("json", Shape::JsonSchema(schema)),
            Err(error) => return Err(body.error(&field("json"), format!("is no JSON: {error}"))),
        },
        Some(schema) => add("json", Shape::JsonSchema(schema.clone())),
    }
    if body.flag(&field("json_object"), false)? {
        add("json_object", Shape::JsonObject);
    }
    if let Some(pattern) = unless_empty(body, &field("regex"))? {
        add("regex", Shape::Regex(pattern));
    }
    if let Some(text) = unless_empty(body, &field("grammar"))? {
        add("grammar", Shape::Grammar(text));
    }
    if let Some(items) = body.list(&field("choice"), MAX_CHOICES)? {
        let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        let texts = texts.ok_or_else(|| body.error(&field("choice"), "must hold texts"))?;
        add("choice", Shape::Choice(texts));
    }
    Ok(formats)
}

//! Tools of `/v1/responses`: functions, free-form (custom) tools, namespaces, and hosted tools.
//!
//! Models are offered plain functions only. A `custom` tool becomes a function with one string
//! argument, `input`. Tools of a namespace become functions named `NAMESPACE__NAME`. Hosted tools,
//! which the provider would run itself, are left out and recorded as ignored, whatever the rule for
//! unknown fields. [`ToolKind`] tells how a call is reported to the client.

use crate::error::ApiError;
use crate::request::reader::Reader;
use crate::request::tools::{read_custom, read_function, tool_list};
use kvasir_chat::{Tool, ToolKind};
use serde_json::Value;

/// Maximum tools per namespace.
const MAX_TOOLS: usize = 128;
/// Maximum length of a function name, in bytes.
const MAX_NAME: usize = 64;

/// The flat function name of a namespaced tool, as the model sees it.
pub(crate) fn flat_name(namespace: &str, name: &str) -> String {
    let flat = format!("{}__{name}", namespace.trim_end_matches("__"));
    if flat.len() <= MAX_NAME { flat } else { name.to_owned() }
}

/// The functions that a request offers: in `tools`, and in items of `input` of type
/// `additional_tools`.
pub(crate) fn all(body: &Reader) -> Result<Vec<Tool>, ApiError> {
    let mut tools = tool_list(body, "name", read)?;
    let items = body.get("input").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (i, item) in items.iter().enumerate() {
        if item["type"] == ADDITIONAL_TOOLS {
            let more = tool_list(&body.item("input", i, item)?, "name", read)?;
            let is_new = |tool: &Tool| tools.iter().all(|other| other.name != tool.name);
            let new: Vec<Tool> = more.into_iter().filter(is_new).collect();
            tools.extend(new);
        }
    }
    Ok(tools)
}

/// The item of `input` that offers tools.
pub(crate) const ADDITIONAL_TOOLS: &str = "additional_tools";

/// Parses one entry of `tools` into functions.
pub(super) fn read(tool: &Reader) -> Result<Vec<Tool>, ApiError> {
    match tool.text("type")? {
        Some("function") => Ok(vec![function(tool)?]),
        Some("custom") => Ok(vec![custom(tool)?]),
        Some("namespace") => namespace(tool),
        Some(hosted) => {
            tool.ignore(hosted);
            Ok(Vec::new())
        }
        None => Err(tool.error("type", "is missing")),
    }
}

fn function(tool: &Reader) -> Result<Tool, ApiError> {
    tool.only(&["type", "name", "description", "parameters", "strict"])?;
    read_function(tool, "parameters")
}

fn custom(tool: &Reader) -> Result<Tool, ApiError> {
    tool.only(&["type", "name", "description", "format"])?;
    let format = tool.object("format")?;
    let grammar = format.filter(|format| format.get("type").is_some_and(|kind| kind == "grammar"));
    if let Some(grammar) = &grammar {
        grammar.only(&["type", "syntax", "definition"])?;
    }
    read_custom(tool, grammar)
}

fn namespace(outer: &Reader) -> Result<Vec<Tool>, ApiError> {
    outer.only(&["type", "name", "description", "tools"])?;
    let namespace = outer.need_text("name")?;
    let items = outer.list("tools", MAX_TOOLS)?.unwrap_or(&[]);
    let mut tools = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let inner = outer.item("tools", i, item)?;
        if inner.text("type")? == Some("namespace") {
            return Err(inner.error("type", "must not be another namespace"));
        }
        for tool in read(&inner)? {
            let (name, flat) = (tool.name.clone(), flat_name(namespace, &tool.name));
            let is_custom = tool.kind.is_custom();
            let kind = ToolKind::Namespaced { namespace: namespace.to_owned(), name, is_custom };
            tools.push(Tool { kind, ..tool.renamed(flat) });
        }
    }
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::{IgnoredFields, UnknownFields};
    use crate::request::tools::custom_input;
    use serde_json::json;

    fn read_one(tool: Value) -> (Result<Vec<Tool>, ApiError>, Vec<String>) {
        let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        let map = json!({"tools": [tool]});
        let body = Reader::new(map.as_object().unwrap(), &ignored);
        let tool = body.at(map["tools"][0].as_object().unwrap(), "tools[0]");
        (read(&tool), ignored.names())
    }

    #[test]
    fn namespaced_tools_become_prefixed_functions() {
        let close =
            json!({"type": "function", "name": "close", "strict": false, "parameters": {"type": "object"}});
        let (tools, ignored) =
            read_one(json!({"type": "namespace", "name": "agents", "description": "d", "tools": [close]}));
        let tools = tools.unwrap();
        assert_eq!((tools.len(), tools[0].name.as_str(), ignored.len()), (1, "agents__close", 0));
        assert_eq!(tools[0].source["function"]["name"], "agents__close");
        assert_eq!(
            tools[0].kind,
            ToolKind::Namespaced { namespace: "agents".into(), name: "close".into(), is_custom: false }
        );
        assert_eq!(flat_name("mcp__files__", "read"), "mcp__files__read");
        assert_eq!(flat_name(&"n".repeat(60), "read"), "read", "no longer than a name may be");
    }

    #[test]
    fn custom_tools_take_one_string() {
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /x+/"});
        let (tools, _) =
            read_one(json!({"type": "custom", "name": "patch", "description": "Patches.", "format": format}));
        let tool = tools.unwrap().remove(0);
        assert_eq!(tool.kind, ToolKind::Custom);
        let description = tool.source["function"]["description"].as_str().unwrap();
        assert!(description.starts_with("Patches.") && description.contains("start: /x+/"));
        assert_eq!(tool.parameters.as_ref().unwrap()["required"], json!(["input"]));
        assert_eq!(custom_input(r#"{"input": "a\nb"}"#), "a\nb");
        assert_eq!(custom_input("plain"), "plain");
    }

    #[test]
    fn hosted_tools_are_dropped_and_recorded() {
        for kind in ["web_search", "local_shell", "image_generation", "mcp"] {
            let (tools, ignored) = read_one(json!({"type": kind, "external_web_access": false}));
            assert_eq!((tools.unwrap().len(), ignored), (0, vec![format!("tools[].{kind}")]));
        }
        assert_eq!(read_one(json!({"name": "x"})).0.unwrap_err().param.as_deref(), Some("tools[0].type"));
    }
}

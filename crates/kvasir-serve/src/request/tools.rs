//! Parses tools (function definitions) and `tool_choice`.

use crate::error::ApiError;
use crate::request::reader::Reader;
use kvasir_chat::{Tool, ToolChoice, ToolKind};
use serde_json::json;

/// Maximum tools per request.
const MAX_TOOLS: usize = 128;
/// Maximum length of a tool name, in bytes.
const MAX_NAME: usize = 128;

/// Parses `tools` of a chat request.
pub(crate) fn read_tools(body: &Reader) -> Result<Vec<Tool>, ApiError> {
    tool_list(body, "function.name", |tool| {
        if tool.text("type")? != Some("function") {
            return Err(tool.error("type", "must be `function`"));
        }
        tool.only(&["type", "function", "cache_control"])?;
        let function = tool.need_object("function")?;
        // `return` is in the definitions that Transformers derives from Python functions.
        function.only(&["name", "description", "parameters", "strict", "return", "cache_control"])?;
        Ok(vec![Tool { source: tool.to_value(), ..read_function(&function, "parameters")? }])
    })
}

/// Parses `tools`. `one` parses an entry, which may yield several functions; `name` is the path
/// of an entry's name, for errors.
pub(super) fn tool_list(
    body: &Reader,
    name: &str,
    one: impl Fn(&Reader) -> Result<Vec<Tool>, ApiError>,
) -> Result<Vec<Tool>, ApiError> {
    let items = body.list("tools", MAX_TOOLS)?.unwrap_or(&[]);
    let mut tools: Vec<Tool> = Vec::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let entry = body.item("tools", i, item)?;
        for tool in one(&entry)? {
            if tools.iter().any(|other| other.name == tool.name) {
                return Err(entry.error(name, "occurs twice"));
            }
            tools.push(tool);
        }
    }
    Ok(tools)
}

/// Parses a function: name, description, and the argument schema in the field `schema`.
pub(super) fn read_function(function: &Reader, schema: &str) -> Result<Tool, ApiError> {
    let name = function.need_text("name")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(plain) {
        return Err(
            function.error("name", format!("must be 1 to {MAX_NAME} letters, digits, `_`, `-` or `.`"))
        );
    }
    let parameters = function.object(schema)?.map(|schema| schema.to_value());
    let mut source = json!({"type": "function", "function": {"name": name}});
    for (key, value) in
        [("description", function.get("description").cloned()), ("parameters", parameters.clone())]
    {
        if let Some(value) = value {
            source["function"][key] = value;
        }
    }
    let (name, schema) = (name.to_owned(), function.name(schema));
    let strict = function.flag("strict", false)?;
    Ok(Tool { name, parameters, schema, source, strict, kind: ToolKind::Function })
}

/// Parses `tool_choice`; a named tool must be among `tools`. The type `allowed_tools` leaves only
/// these in `tools`.
pub(crate) fn read_tool_choice(body: &Reader, tools: &mut Vec<Tool>) -> Result<ToolChoice, ApiError> {
    let Some(value) = body.get("tool_choice") else { return Ok(ToolChoice::Auto) };
    let choice = match value.as_str() {
        Some("auto") => return Ok(ToolChoice::Auto),
        Some("none") => return Ok(ToolChoice::None),
        Some("required") => ToolChoice::Required,
        Some(_) => return Err(body.error("tool_choice", "must be auto, none, required or a function")),
        None => {
            let object =
                body.object("tool_choice")?.ok_or_else(|| body.error("tool_choice", "must be an object"))?;
            match object.text("type")? {
                None | Some("function") => {
                    object.only(&["type", "function"])?;
                    let function = object.need_object("function")?;
                    function.only(&["name"])?;
                    read_named_tool(&function, tools)?
                }
                Some("allowed_tools") => {
                    object.only(&["type", "allowed_tools"])?;
                    let allowed = object.need_object("allowed_tools")?;
                    allowed.only(&["mode", "tools"])?;
                    return read_allowed_tools(&allowed, tools, |item| {
                        item.only(&["type", "function"])?;
                        let function = item.need_object("function")?;
                        function.only(&["name"])?;
                        Ok(function)
                    });
                }
                Some(_) => return Err(object.error("type", "must be function or allowed_tools")),
            }
        }
    };
    if tools.is_empty() { Err(body.error("tool_choice", "needs `tools`")) } else { Ok(choice) }
}

/// Parses the `mode` of a choice among some tools, and leaves only its `tools` in `offered`.
/// `function` finds the object with a tool's name in an item.
pub(super) fn read_allowed_tools<'a>(
    choice: &Reader<'a>,
    offered: &mut Vec<Tool>,
    function: impl Fn(Reader<'a>) -> Result<Reader<'a>, ApiError>,
) -> Result<ToolChoice, ApiError> {
    let mut allowed = Vec::new();
    for (i, item) in choice.list("tools", MAX_TOOLS)?.unwrap_or(&[]).iter().enumerate() {
        allowed.push(read_named_tool(&function(choice.item("tools", i, item)?)?, offered)?);
    }
    offered.retain(|tool| allowed.contains(&ToolChoice::Named(tool.name.clone())));
    match choice.text("mode")? {
        None | Some("auto") => Ok(ToolChoice::Auto),
        Some("required") if !offered.is_empty() => Ok(ToolChoice::Required),
        Some("required") => Err(choice.error("tools", "must not be empty")),
        Some(_) => Err(choice.error("mode", "must be auto or required")),
    }
}

/// Parses the tool named by the field `name`.
pub(super) fn read_named_tool(reader: &Reader, tools: &[Tool]) -> Result<ToolChoice, ApiError> {
    let name = reader.need_text("name")?;
    if tools.iter().any(|tool| tool.name == name) {
        Ok(ToolChoice::Named(name.to_owned()))
    } else {
        Err(reader.error("name", "is none of `tools`"))
    }
}

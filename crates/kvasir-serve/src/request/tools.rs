//! Parses tools (function definitions) and `tool_choice`.

use crate::error::ApiError;
use crate::request::reader::Reader;
use kvasir_chat::{Tool, ToolChoice, ToolKind};
use serde_json::{Value, json};

/// Maximum tools per request.
const MAX_TOOLS: usize = 128;
/// Maximum length of a tool name, in bytes.
const MAX_NAME: usize = 128;

/// Parses `tools` of a chat request.
pub(crate) fn read_tools(body: &Reader) -> Result<Vec<Tool>, ApiError> {
    tool_list(body, "function.name", |tool| {
        match tool.text("type")? {
            Some("function") => {}
            Some("custom") => return Ok(vec![chat_custom(tool)?]),
            _ => return Err(tool.error("type", "must be `function` or `custom`")),
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

/// A free-form tool: a function with one string argument, `input`. `grammar` has the `syntax`
/// and the `definition` of the input.
pub(super) fn read_custom(tool: &Reader, grammar: Option<Reader>) -> Result<Tool, ApiError> {
    let mut description = tool.text("description")?.unwrap_or_default().to_owned();
    if let Some(grammar) = grammar {
        let definition = grammar.text("definition")?.unwrap_or_default();
        let syntax = grammar.text("syntax")?.unwrap_or("lark");
        description.push_str(&format!("\nThe input follows this {syntax} grammar:\n{definition}"));
    }
    let parameters = json!({
        "type": "object", "properties": {"input": {"type": "string"}},
        "required": ["input"], "additionalProperties": false,
    });
    let function = read_function(tool, "parameters")?.offering(&description, parameters);
    Ok(Tool { kind: ToolKind::Custom, ..function })
}

/// A free-form tool of a chat request.
fn chat_custom(tool: &Reader) -> Result<Tool, ApiError> {
    tool.only(&["type", "custom"])?;
    let custom = tool.need_object("custom")?;
    custom.only(&["name", "description", "format"])?;
    let mut grammar = None;
    if let Some(format) = custom.object("format")? {
        match format.text("type")? {
            Some("text") => format.only(&["type"])?,
            Some("grammar") => {
                format.only(&["type", "grammar"])?;
                let own = format.need_object("grammar")?;
                own.only(&["syntax", "definition"])?;
                grammar = Some(own);
            }
            _ => return Err(format.error("type", "must be text or grammar")),
        }
    }
    read_custom(&custom, grammar)
}

/// The input of a call of a free-form tool, extracted from the model's arguments.
pub fn custom_input(arguments: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(arguments).ok();
    let input = parsed.as_ref().and_then(|value| value.get("input")?.as_str());
    input.unwrap_or(arguments).to_owned()
}

/// The arguments of the function that represents a free-form tool.
pub(super) fn custom_arguments(input: &str) -> Value {
    json!({"input": input})
}

/// The object with the tool's name in `tool_choice`, or in an item of `allowed_tools`.
fn named_object<'a>(choice: &Reader<'a>) -> Result<Reader<'a>, ApiError> {
    let field = if choice.text("type")? == Some("custom") { "custom" } else { "function" };
    choice.only(&["type", field])?;
    let tool = choice.need_object(field)?;
    tool.only(&["name"])?;
    Ok(tool)
}

/// Parses `tool_choice`; a named tool must be among `tools`. The type `allowed_tools` leaves
/// only these in `tools`.
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
                None | Some("function" | "custom") => read_named_tool(&named_object(&object)?, tools)?,
                Some("allowed_tools") => {
                    object.only(&["type", "allowed_tools"])?;
                    let allowed = object.need_object("allowed_tools")?;
                    allowed.only(&["mode", "tools"])?;
                    return read_allowed_tools(&allowed, tools, |item| named_object(&item));
                }
                Some(_) => return Err(object.error("type", "must be function, custom or allowed_tools")),
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

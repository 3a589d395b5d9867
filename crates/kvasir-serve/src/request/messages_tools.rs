//! Tools of `/v1/messages`: functions of the client, Anthropic's tools that the client runs, and
//! those that the provider runs.
//!
//! The client runs `bash_*`, `text_editor_*`, `memory_*` and `computer_*`, and their schemas are
//! Anthropic's: they become functions under their `name`, whose calls go back as `tool_use`. A
//! version that [`CLIENT_TOOLS`] lacks is refused, since its schema is unknown. Tools that the
//! provider runs ([`PROVIDER_TOOLS`]) are left out and recorded as ignored, whatever the rule for
//! unknown fields. Other types are unknown: left out and recorded, or refused.

use crate::error::ApiError;
use crate::request::reader::Reader;
use crate::request::tools::{read_function, read_named_tool, tool_list};
use kvasir_chat::{Tool, ToolChoice};
use serde_json::{Value, json};

/// The functions that a request offers.
pub(super) fn all(body: &Reader) -> Result<Vec<Tool>, ApiError> {
    let tools = tool_list(body, "name", |tool| match tool.text("type")? {
        None | Some("custom") => Ok(vec![function(tool)?]),
        Some(kind) => match client_tool(kind, tool)? {
            Some((description, schema)) => Ok(vec![known_tool(tool, &description, schema)?]),
            None if is_provider_tool(kind) => {
                tool.ignore(kind);
                Ok(Vec::new())
            }
            None => tool.unknown(kind).map(|()| Vec::new()).map_err(|_| unknown_type(tool, kind)),
        },
    })?;
    Ok(without_deferred(body, tools))
}

/// Fields of every tool.
const COMMON: [&str; 7] =
    ["type", "name", "cache_control", "strict", "defer_loading", "allowed_callers", "input_examples"];

fn function(tool: &Reader) -> Result<Tool, ApiError> {
    // `eager_input_streaming` is accepted: arguments are always streamed.
    tool.only(&[&COMMON[..], &["description", "input_schema", "eager_input_streaming"]].concat())?;
    tool.need("input_schema")?;
    read_function(tool, "input_schema")
}

/// A tool that the client runs, with Anthropic's schema.
fn known_tool(tool: &Reader, description: &str, schema: Value) -> Result<Tool, ApiError> {
    let own: &[&str] =
        &["max_characters", "display_width_px", "display_height_px", "display_number", "enable_zoom"];
    tool.only(&[&COMMON[..], own].concat())?;
    Ok(read_function(tool, "input_schema")?.offering(description, schema))
}

/// Tools that the client runs, each with the dates of its versions.
const CLIENT_TOOLS: &[(&str, &[u32])] = &[
    ("bash", &[20_241_022, 20_250_124]),
    ("text_editor", &[20_241_022, 20_250_124, 20_250_429, 20_250_728]),
    ("memory", &[20_250_818]),
    ("computer", &[20_241_022, 20_250_124, 20_251_124]),
];

/// Tools that the provider runs; a date may follow the name.
const PROVIDER_TOOLS: &[&str] = &[
    "web_search",
    "web_fetch",
    "code_execution",
    "tool_search_tool_regex",
    "tool_search_tool_bm25",
    "advisor",
    "mcp_toolset",
];

/// Whether this type is a tool that the provider runs, of any version.
fn is_provider_tool(kind: &str) -> bool {
    let is_date = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    let dated = kind.rsplit_once('_').filter(|(_, date)| is_date(date));
    PROVIDER_TOOLS.contains(&dated.map_or(kind, |(family, _)| family))
}

/// Description and input schema of a tool that the client runs; none for other tools. Refuses an
/// unknown version.
fn client_tool(kind: &str, tool: &Reader) -> Result<Option<(String, Value)>, ApiError> {
    let own =
        |(family, _): &&(&str, &[u32])| kind.strip_prefix(family).is_some_and(|rest| rest.starts_with('_'));
    let Some((family, versions)) = CLIENT_TOOLS.iter().find(own) else { return Ok(None) };
    let version = versions.iter().find(|version| format!("{family}_{version}") == kind);
    let version = *version.ok_or_else(|| {
        let known: Vec<String> = versions.iter().map(|version| format!("`{family}_{version}`")).collect();
        tool.error(
            "type",
            format!("is `{}`, an unknown version; known are {}", shortened(kind), known.join(", ")),
        )
    })?;
    Ok(Some(match *family {
        "text_editor" => text_editor(version, tool)?,
        "computer" => computer(version, tool)?,
        "memory" => memory(),
        _ => bash(),
    }))
}

/// The error for a type that is neither in [`CLIENT_TOOLS`] nor in [`PROVIDER_TOOLS`].
fn unknown_type(tool: &Reader, kind: &str) -> ApiError {
    let client = CLIENT_TOOLS
        .iter()
        .flat_map(|(family, versions)| versions.iter().map(move |version| format!("`{family}_{version}`")));
    let provider = PROVIDER_TOOLS.iter().map(|family| match *family {
        "mcp_toolset" => format!("`{family}`"),
        _ => format!("`{family}_DATE`"),
    });
    let known: Vec<String> = ["`custom`".to_owned()].into_iter().chain(client).chain(provider).collect();
    tool.error("type", format!("is `{}`, which is unknown; known are {}", shortened(kind), known.join(", ")))
}

/// The beginning of a type, for an error message.
fn shortened(kind: &str) -> &str {
    &kind[..kind.floor_char_boundary(64)]
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn integer(description: &str) -> Value {
    json!({"type": "integer", "description": description})
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required})
}

fn bash() -> (String, Value) {
    let properties = json!({
        "command": text("The command to run; required unless the tool is restarted."),
        "restart": {"type": "boolean", "description": "Restarts the session of the shell."},
    });
    ("Runs commands in a persistent bash session.".into(), object(properties, &[]))
}

/// First version of the text editor without `undo_edit`, and with `insert_text` in place of
/// `new_str`.
const EDITOR_WITHOUT_UNDO: u32 = 20_250_429;

fn text_editor(version: u32, tool: &Reader) -> Result<(String, Value), ApiError> {
    let max_characters = tool.integer("max_characters", 1..=i64::from(u32::MAX))?;
    let mut commands = vec!["view", "create", "str_replace", "insert"];
    let mut properties = json!({
        "command": {"type": "string"},
        "path": text("Absolute path of a file or directory."),
        "view_range": {
            "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
            "description": "First and last line of `view`, from 1; a last line of -1 is the end of the file.",
        },
        "file_text": text("Text of the file that `create` writes."),
        "old_str": text("Text that `str_replace` replaces; it must occur once."),
        "new_str": text("Text that `str_replace` puts in its place."),
        "insert_line": integer("Line behind which `insert` inserts; 0 for the beginning."),
    });
    if version < EDITOR_WITHOUT_UNDO {
        commands.push("undo_edit");
        properties["new_str"] = text("Text that `str_replace` puts in its place, or that `insert` inserts.");
    } else {
        properties["insert_text"] = text("Text that `insert` inserts.");
    }
    properties["command"]["enum"] = commands.into();
    let mut description = "Views, creates and edits text files.".to_owned();
    if let Some(max) = max_characters {
        description.push_str(&format!(" `view` shows at most {max} characters."));
    }
    Ok((description, object(properties, &["command", "path"])))
}

fn memory() -> (String, Value) {
    let properties = json!({
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        "path": text("Path below /memories; required by all commands but `rename`."),
        "view_range": {
            "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
            "description": "First and last line of `view`, from 1.",
        },
        "file_text": text("Text of the file that `create` writes."),
        "old_str": text("Text that `str_replace` replaces."),
        "new_str": text("Text that `str_replace` puts in its place."),
        "insert_line": integer("Line behind which `insert` inserts; 0 for the beginning."),
        "insert_text": text("Text that `insert` inserts."),
        "old_path": text("Path that `rename` renames."),
        "new_path": text("Its new path."),
    });
    let description =
        "Reads and writes files of the directory /memories, which persists between conversations.";
    (description.into(), object(properties, &["command"]))
}

/// First versions of the computer tool with scrolling, and with `zoom`.
const COMPUTER_WITH_SCROLL: u32 = 20_250_124;
const COMPUTER_WITH_ZOOM: u32 = 20_251_124;

fn computer(version: u32, tool: &Reader) -> Result<(String, Value), ApiError> {
    let pixels = |field| tool.integer(field, 1..=i64::from(u16::MAX));
    let (width, height) = (pixels("display_width_px")?, pixels("display_height_px")?);
    tool.integer("display_number", 0..=i64::from(u16::MAX))?;
    let has_zoom = tool.flag("enable_zoom", false)? && version >= COMPUTER_WITH_ZOOM;
    let mut actions = vec![
        "key",
        "type",
        "mouse_move",
        "left_click",
        "left_click_drag",
        "right_click",
        "middle_click",
        "double_click",
        "screenshot",
        "cursor_position",
    ];
    let point = |description: &str| {
        json!({
            "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
            "description": description,
        })
    };
    let mut properties = json!({
        "action": {"type": "string"},
        "coordinate": point("Position [x, y] in pixels from the upper left corner."),
        "text": text("Text of `type`, key or chord of `key`, or keys held during a click."),
    });
    if version >= COMPUTER_WITH_SCROLL {
        actions.extend(["left_mouse_down", "left_mouse_up", "triple_click", "scroll", "hold_key", "wait"]);
        properties["start_coordinate"] = point("Position [x, y] at which `left_click_drag` begins.");
        properties["scroll_direction"] = json!({"type": "string", "enum": ["up", "down", "left", "right"]});
        properties["scroll_amount"] = integer("Number of clicks of the wheel.");
        properties["duration"] =
            json!({"type": "number", "description": "Seconds of `hold_key` and `wait`."});
    }
    if has_zoom {
        actions.push("zoom");
        properties["region"] = json!({
            "type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4,
            "description": "Region [x0, y0, x1, y1] that `zoom` shows in full resolution.",
        });
    }
    properties["action"]["enum"] = actions.into();
    let mut description = "Uses mouse and keyboard of a computer, and takes screenshots of it.".to_owned();
    if let (Some(width), Some(height)) = (width, height) {
        description.push_str(&format!(" The screen has {width} × {height} pixels."));
    }
    Ok((description, object(properties, &["action"])))
}

/// Drops tools with deferred loading that no tool search result refers to.
fn without_deferred(body: &Reader, mut tools: Vec<Tool>) -> Vec<Tool> {
    fn list(value: Option<&Value>) -> std::slice::Iter<'_, Value> {
        value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice).iter()
    }
    let is_deferred = |tool: &&Value| tool["defer_loading"] == true;
    let deferred: Vec<&Value> =
        list(body.get("tools")).filter(is_deferred).map(|tool| &tool["name"]).collect();
    if deferred.is_empty() {
        return tools;
    }
    let results = list(body.get("messages")).flat_map(|message| list(message.get("content")));
    let references = results.flat_map(|result| list(result.get("content"))).map(|part| &part["tool_name"]);
    let referenced: Vec<&Value> = references.filter(|name| deferred.contains(name)).collect();
    let is_named = |names: &[&Value], tool: &Tool| names.iter().any(|name| **name == tool.name);
    tools.retain(|tool| !is_named(&deferred, tool) || is_named(&referenced, tool));
    // Loaded tools go last, so that the prompt prefix stays unchanged.
    tools.sort_by_key(|tool| is_named(&deferred, tool));
    tools
}

/// The tool choice, and whether parallel calls are allowed.
pub(super) fn choice(body: &Reader, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let Some(choice) = body.object("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    choice.only(&["type", "name", "disable_parallel_tool_use"])?;
    let parallel = !choice.flag("disable_parallel_tool_use", false)?;
    let choice = match choice.text("type")? {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") => ToolChoice::Required,
        Some("tool") => read_named_tool(&choice, tools)?,
        _ => return Err(choice.error("type", "must be auto, any, tool or none")),
    };
    if tools.is_empty() && choice == ToolChoice::Required {
        Err(body.error("tool_choice", "needs `tools`"))
    } else {
        Ok((choice, parallel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::{IgnoredFields, UnknownFields};

    fn read(tools: Value) -> (Result<Vec<Tool>, ApiError>, Vec<String>) {
        let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
        let body = json!({"tools": tools});
        (all(&Reader::new(body.as_object().unwrap(), &ignored)), ignored.names())
    }

    fn property(tool: &Tool, name: &str) -> Value {
        tool.source["function"]["parameters"]["properties"][name].clone()
    }

    #[test]
    fn tools_that_the_client_runs_become_functions() {
        let (tools, ignored) = read(json!([
            {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 900},
            {"type": "text_editor_20241022", "name": "str_replace_editor"},
            {"type": "memory_20250818", "name": "memory"},
            {"type": "computer_20251124", "name": "computer", "display_width_px": 800, "display_height_px": 600,
             "display_number": null, "enable_zoom": true},
            {"name": "own", "input_schema": {"type": "object"}},
        ]));
        let tools = tools.unwrap();
        let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let expected =
            ["bash", "str_replace_based_edit_tool", "str_replace_editor", "memory", "computer", "own"];
        assert_eq!((names, ignored), (expected.to_vec(), Vec::new()));
        assert!(tools[..5].iter().all(|tool| tool.source["function"]["description"].is_string()));
        let has = |tool: &Tool, name: &str, value: &str| {
            property(tool, name)["enum"].as_array().unwrap().contains(&json!(value))
        };
        assert!(has(&tools[2], "command", "undo_edit") && !has(&tools[1], "command", "undo_edit"));
        assert!(
            property(&tools[1], "insert_text").is_object() && property(&tools[2], "insert_text").is_null()
        );
        assert!(has(&tools[4], "action", "zoom") && has(&tools[4], "action", "scroll"));
        assert_eq!(tools[0].parameters.as_ref(), Some(&tools[0].source["function"]["parameters"]));
    }

    #[test]
    fn tools_that_the_provider_runs_are_dropped_and_recorded() {
        for kind in ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "mcp_toolset"] {
            let (tools, ignored) = read(json!([{"type": kind, "name": "x", "max_uses": 5}]));
            assert_eq!((tools.unwrap().len(), ignored), (0, vec![format!("tools[].{kind}")]));
        }
    }

    #[test]
    fn errors_of_unknown_types_list_known_ones() {
        for (kind, known) in [
            ("bash_20990101", "`bash_20241022`, `bash_20250124`"),
            ("bash_", "`bash_20250124`"),
            ("bash_latest", "`bash_20250124`"),
            ("memory_20250124", "`memory_20250818`"),
            ("computer_use_20250124", "`computer_20251124`"),
            ("browser", "`web_search_DATE`"),
            ("web_search_new", "`web_search_DATE`"),
        ] {
            let (refused, ignored) = read(json!([{"type": kind, "name": "x"}]));
            let error = refused.unwrap_err();
            assert_eq!(error.param.as_deref(), Some("tools[0].type"), "{kind}");
            assert!(error.message.contains(kind) && error.message.contains(known), "{}", error.message);
            assert_eq!(ignored, Vec::<String>::new());
        }
        let ignored = IgnoredFields::default();
        let body = json!({"tools": [{"type": "browser", "name": "x"}]});
        let tools = all(&Reader::new(body.as_object().unwrap(), &ignored)).unwrap();
        assert_eq!((tools.len(), ignored.names()), (0, vec!["tools[].browser".to_owned()]));
    }

    #[test]
    fn fields_of_known_tools_are_checked() {
        for (tool, param) in [
            (json!({"type": "bash_20250124"}), "tools[0].name"),
            (json!({"type": "bash_20250124", "name": "bash", "shell": "zsh"}), "tools[0].shell"),
            (
                json!({"type": "computer_20250124", "name": "computer", "display_width_px": "wide"}),
                "tools[0].display_width_px",
            ),
            (
                json!({"type": "text_editor_20250728", "name": "edit", "max_characters": 0}),
                "tools[0].max_characters",
            ),
        ] {
            assert_eq!(read(json!([tool])).0.unwrap_err().param.as_deref(), Some(param));
        }
    }
}

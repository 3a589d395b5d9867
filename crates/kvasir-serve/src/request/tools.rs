//! Parses tools (function definitions) and `tool_choice`.

use crate::error::ApiError;
use crate::request::reader::Reader;
use serde_json::{Value, json};

/// Maximum tools per request.
const MAX_TOOLS: usize = 128;
/// Maximum length of a tool name, in bytes.
const MAX_NAME: usize = 128;

/// A function offered to the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON Schema of its arguments.
    pub parameters: Option<Value>,
    /// Path of that schema in the request, for errors.
    pub schema: String,
    /// The definition for the chat template.
    pub source: Value,
    /// Whether the schema must be enforced, or the request rejected.
    pub strict: bool,
    /// Its client-side kind.
    pub kind: ToolKind,
}

/// Client-side kind of a function offered to the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolKind {
    /// A plain function.
    #[default]
    Function,
    /// A free-form tool: its input is the function's only argument.
    Custom,
    /// A function in a namespace.
    Namespaced {
        /// The namespace.
        namespace: String,
        /// Name within the namespace.
        name: String,
        /// Whether it is free-form.
        is_custom: bool,
    },
}

impl ToolKind {
    /// Whether its calls go back with an input instead of arguments.
    pub fn is_custom(&self) -> bool {
        matches!(self, Self::Custom | Self::Namespaced { is_custom: true, .. })
    }
}

/// Which tool the model must call, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

impl Tool {
    /// Parses `tools` of a chat request.
    pub fn read_all(body: &Reader) -> Result<Vec<Self>, ApiError> {
        Self::all(body, "function.name", |tool| {
            if tool.text("type")? != Some("function") {
                return Err(tool.error("type", "must be `function`"));
            }
            tool.only(&["type", "function", "cache_control"])?;
            let function = tool.need_object("function")?;
            // `return` is in the definitions that Transformers derives from Python functions.
            function.only(&["name", "description", "parameters", "strict", "return", "cache_control"])?;
            Ok(vec![Self { source: tool.to_value(), ..Self::of(&function, "parameters")? }])
        })
    }

    /// Parses `tools`. `one` parses an entry, which may yield several functions; `name` is the path
    /// of an entry's name, for errors.
    pub(super) fn all(
        body: &Reader,
        name: &str,
        one: impl Fn(&Reader) -> Result<Vec<Self>, ApiError>,
    ) -> Result<Vec<Self>, ApiError> {
        let items = body.list("tools", MAX_TOOLS)?.unwrap_or(&[]);
        let mut tools: Vec<Self> = Vec::with_capacity(items.len());
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
    pub(super) fn of(function: &Reader, schema: &str) -> Result<Self, ApiError> {
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
        Ok(Self { name, parameters, schema, source, strict, kind: ToolKind::Function })
    }

    /// Renames the function, in the template's definition as well.
    pub(super) fn renamed(mut self, name: String) -> Self {
        self.source["function"]["name"] = name.as_str().into();
        Self { name, ..self }
    }

    /// Replaces description and argument schema.
    pub(super) fn offering(mut self, description: &str, parameters: Value) -> Self {
        self.source["function"]["description"] = description.into();
        self.source["function"]["parameters"] = parameters.clone();
        Self { parameters: Some(parameters), ..self }
    }
}

impl ToolChoice {
    /// Parses `tool_choice`; a named tool must be among `tools`. The type `allowed_tools` leaves only
    /// these in `tools`.
    pub fn read(body: &Reader, tools: &mut Vec<Tool>) -> Result<Self, ApiError> {
        let Some(value) = body.get("tool_choice") else { return Ok(Self::Auto) };
        let choice = match value.as_str() {
            Some("auto") => return Ok(Self::Auto),
            Some("none") => return Ok(Self::None),
            Some("required") => Self::Required,
            Some(_) => return Err(body.error("tool_choice", "must be auto, none, required or a function")),
            None => {
                let object = body
                    .object("tool_choice")?
                    .ok_or_else(|| body.error("tool_choice", "must be an object"))?;
                match object.text("type")? {
                    None | Some("function") => {
                        object.only(&["type", "function"])?;
                        let function = object.need_object("function")?;
                        function.only(&["name"])?;
                        Self::named(&function, tools)?
                    }
                    Some("allowed_tools") => {
                        object.only(&["type", "allowed_tools"])?;
                        let allowed = object.need_object("allowed_tools")?;
                        allowed.only(&["mode", "tools"])?;
                        return Self::allowed(&allowed, tools, |item| {
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
    pub(super) fn allowed<'a>(
        choice: &Reader<'a>,
        offered: &mut Vec<Tool>,
        function: impl Fn(Reader<'a>) -> Result<Reader<'a>, ApiError>,
    ) -> Result<Self, ApiError> {
        let mut allowed = Vec::new();
        for (i, item) in choice.list("tools", MAX_TOOLS)?.unwrap_or(&[]).iter().enumerate() {
            allowed.push(Self::named(&function(choice.item("tools", i, item)?)?, offered)?);
        }
        offered.retain(|tool| allowed.contains(&Self::Named(tool.name.clone())));
        match choice.text("mode")? {
            None | Some("auto") => Ok(Self::Auto),
            Some("required") if !offered.is_empty() => Ok(Self::Required),
            Some("required") => Err(choice.error("tools", "must not be empty")),
            Some(_) => Err(choice.error("mode", "must be auto or required")),
        }
    }

    /// Parses the tool named by the field `name`.
    pub(super) fn named(reader: &Reader, tools: &[Tool]) -> Result<Self, ApiError> {
        let name = reader.need_text("name")?;
        if tools.iter().any(|tool| tool.name == name) {
            Ok(Self::Named(name.to_owned()))
        } else {
            Err(reader.error("name", "is none of `tools`"))
        }
    }
}

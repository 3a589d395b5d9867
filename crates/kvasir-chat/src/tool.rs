//! Tools offered to a model: functions with a JSON Schema of their arguments.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A function offered to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON Schema of its arguments.
    pub parameters: Option<Value>,
    /// Path of that schema in the request, for errors.
    pub schema: String,
    /// The definition that the chat template reads.
    pub source: Value,
    /// Whether to reject a request if the schema cannot be enforced.
    pub strict: bool,
    /// How the client declared it.
    pub kind: ToolKind,
}

/// How the client declared a tool; the model sees a function in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolKind {
    /// A plain function.
    #[default]
    Function,
    /// A free-form tool: its input text is the function's only argument.
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
    /// Whether its calls are returned with an input text instead of arguments.
    pub fn is_custom(&self) -> bool {
        matches!(self, Self::Custom | Self::Namespaced { is_custom: true, .. })
    }
}

/// Which tool the model must call, if any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// A function whose arguments are an object with this JSON Schema. Its calls are constrained to
    /// the schema if it can be compiled.
    pub fn function(name: &str, description: &str, parameters: Value) -> Self {
        let function = json!({"name": name, "description": description, "parameters": parameters});
        Self {
            name: name.to_owned(),
            parameters: Some(parameters),
            schema: format!("{name}.parameters"),
            source: json!({"type": "function", "function": function}),
            strict: false,
            kind: ToolKind::Function,
        }
    }

    /// Renames the function, in the template's definition as well.
    pub fn renamed(mut self, name: String) -> Self {
        self.source["function"]["name"] = name.as_str().into();
        Self { name, ..self }
    }

    /// Replaces description and argument schema, in the template's definition as well.
    pub fn offering(mut self, description: &str, parameters: Value) -> Self {
        self.source["function"]["description"] = description.into();
        self.source["function"]["parameters"] = parameters.clone();
        Self { parameters: Some(parameters), ..self }
    }
}

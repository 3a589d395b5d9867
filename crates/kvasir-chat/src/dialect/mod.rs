//! How model families write reasoning and tool calls: detection, marker tables, grammars of calls.
//!
//! Knows no parser; builds on `grammar` and on the tools of a `request`.

pub(crate) mod call_layout;
pub(crate) mod call_parts;
pub(crate) mod call_syntax;
pub(crate) mod markers;
pub(crate) mod reasoning;
pub(crate) mod schema_types;
pub(crate) mod tool_calls;

pub use crate::dialect::reasoning::ReasoningDialect;
pub use crate::dialect::tool_calls::ToolDialect;

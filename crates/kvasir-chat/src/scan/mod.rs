//! Incremental scanners of generated text: incomplete markers, prefixes of JSON, Python-style
//! calls, Gemma 4's calls.
//!
//! Knows no dialect. The call scanner (`grammar`) and the parsers (`answer`) build on it, so that
//! both read a call alike.

use serde_json::Value;

/// The name and the arguments of a call.
pub(crate) type NamedCall = (String, Value);

pub(crate) mod gemma_calls;
pub(crate) mod hold_back;
pub(crate) mod json_prefix;
mod literals;
pub(crate) mod python_calls;
pub(crate) mod stop_regex;

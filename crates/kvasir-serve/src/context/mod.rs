//! Context of one HTTP request: its ids, and the fields of its body that were ignored.
//!
//! Knows no endpoint and no body; builds on `error`.

pub(crate) mod ignored_fields;
pub(crate) mod request_context;

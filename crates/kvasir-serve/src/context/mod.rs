//! Context of one HTTP request: its ids, the fields of its body that were ignored, and the maximum
//! that was clamped.
//!
//! Knows no endpoint and no body; builds on `error`.

pub(crate) mod clamped_limit;
pub(crate) mod ignored_fields;
pub(crate) mod request_context;

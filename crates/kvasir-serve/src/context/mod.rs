//! Context of one HTTP request: its ids, the fields of its body that were ignored, the maximum that
//! was clamped, and the switch that cuts its connection.
//!
//! Knows no endpoint and no body; builds on `error`.

pub(crate) mod clamped_limit;
pub(crate) mod connection_cut;
pub(crate) mod ignored_fields;
pub(crate) mod request_context;

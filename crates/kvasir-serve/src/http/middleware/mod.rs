//! Middleware of all routes, outermost first: CORS, request context and access log, authentication,
//! rejection of generation by encoders.
//!
//! Builds on `http::app` and `http::access`.

pub(crate) mod authorize;
pub(crate) mod cors;
pub(crate) mod reject_generation;
pub(crate) mod request_context;

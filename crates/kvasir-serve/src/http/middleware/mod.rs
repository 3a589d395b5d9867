//! What wraps every request, outermost first: CORS, request context and access log, authentication,
//! refusals of encoders.
//!
//! Builds on `http::app` and `http::access`.

pub(crate) mod authorize;
pub(crate) mod cors;
pub(crate) mod encoder_routes;
pub(crate) mod request_context;

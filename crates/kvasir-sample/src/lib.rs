//! From logits to a token: pure functions over one row, the reference for every device.
//!
//! Nothing here knows where a row came from.
#![forbid(unsafe_code)]

pub mod accept;
mod params;

pub use params::Sampling;

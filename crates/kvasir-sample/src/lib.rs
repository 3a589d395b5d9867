//! From logits to a token: pure functions over one row, the reference for every device.
//!
//! [`draw`] is the whole way: what a [`Constraint`] allows, bias, penalties, suppressed ids, temperature, top-k, top-p, min-p, then the token by
//! [`Noise`]. Nothing here knows where a row came from.
#![forbid(unsafe_code)]

pub mod accept;
mod constraint;
mod draw;
mod logprobs;
mod mix;
mod noise;
mod params;
pub mod processors;

pub use constraint::{Allowed, Constrained, Constraint, Follower};
pub use draw::{Context, can_be_drawn_from, draw, draw_from};
pub use logprobs::{log_probability, top_log_probabilities};
pub use mix::{STRIDE, mix};
pub use noise::Noise;
pub use params::Sampling;

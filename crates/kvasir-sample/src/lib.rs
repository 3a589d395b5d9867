//! Sampling: logits processors, Gumbel-max sampling, constrained decoding, and acceptance of
//! speculative drafts.
//!
//! Pure functions over one row of logits; the reference that every device must reproduce. [`draw`]
//! is the whole pipeline, in this order:
//!
//! 1. token mask of a [`Constraint`] (constrained decoding)
//! 2. logit bias
//! 3. repetition, presence and frequency penalties
//! 4. suppressed ids (`min_tokens`)
//! 5. temperature, top-k, top-p (nucleus), min-p
//! 6. `argmax(logit + Gumbel noise)`, with [`Noise`] keyed by (seed, position, id)
//!
//! For a request that names samplers of llama.cpp, a [`SamplerChain`] replaces steps 3 and 5, in
//! llama.cpp's order or its own.
//!
//! Invariant: the sampled token does not depend on the batch, the step or earlier draws. This crate
//! must not know where a row of logits came from.

#![forbid(unsafe_code)]

pub mod accept;
mod chain;
mod chain_processing;
mod constraint;
mod context;
mod draw;
mod dry;
mod logprobs;
mod mirostat;
mod mix;
mod noise;
mod params;
pub mod processors;
mod rejection;

pub use crate::chain::{Sampler, SamplerChain};
pub use crate::constraint::{Allowed, Constrained, Constraint, Follower};
pub use crate::context::Context;
pub use crate::draw::{can_be_drawn_from, draw, draw_from};
pub use crate::dry::{Breakers, Dry};
pub use crate::logprobs::{log_probability, top_log_probabilities};
pub use crate::mirostat::{Mirostat, MirostatState, MirostatVersion};
pub use crate::mix::{STRIDE, mix};
pub use crate::noise::Noise;
pub use crate::params::Sampling;
pub use crate::rejection::{Acceptance, accept_or_redraw, draw_draft};

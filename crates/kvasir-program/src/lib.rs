//! Frozen programs: a short list of ops made once from an architecture's description and a checkpoint's config.
//!
//! [`Model::build`] takes a [`Source`] (config, tensor names and shapes; no bytes) and gives a [`Program`] per computation:
//! the target, and a second one for each prediction layer. A program is plain data. It never mentions a backend, a cache,
//! a batch or a way of decoding; [`Op::UpdateAndAttend`] is where they meet.
//!
//! ```
//! # fn main() -> kvasir_program::Result<()> {
//! let config = serde_json::json!({
//!     "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
//!     "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
//! });
//! let model = kvasir_program::Model::build(&kvasir_program::Source::of_config(config))?;
//! assert_eq!(model.target.kv_width(), 2 * 2 * 64);
//! # Ok(()) }
//! ```
//!
//! A new architecture is one file in `arch`, made of `blocks`.
#![forbid(unsafe_code)]

mod arch;
mod blocks;
mod buffers;
mod builder;
mod config;
mod error;
mod layer;
mod model;
mod op;
mod print;
mod program;
mod rope;
mod rope_config;
mod sampled;
mod source;
mod value;
mod weight;

pub use arch::Architecture;
pub use buffers::Buffers;
pub use error::{ProgramError, Result};
pub use layer::{LayerFacts, LayerId};
pub use model::Model;
pub use op::{Activation, Collective, Experts, Groups, NormKind, NumberType, Op, Pairs, Routing, Score};
pub use program::{Program, Purpose, Tap};
pub use rope::{LongRope, Rope, RopeId};
pub use source::{Layout, Source};
pub use value::{Holds, Rows, Value, ValueId};
pub use weight::{Matrices, Matrix, Role, Vector, Weight, WeightId};

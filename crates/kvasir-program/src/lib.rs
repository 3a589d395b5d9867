//! Model architectures as frozen op lists (a small compute graph IR), built once from a config and
//! tensor shapes.
//!
//! [`Model::build`] takes a [`Source`] (config, tensor names and shapes; no bytes) and returns one
//! [`Program`] for the target and one per multi-token-prediction (MTP) layer. A program is plain
//! data in SSA form: each op makes one value.
//!
//! Invariant: a program never mentions a backend, a KV cache, a batch or a decoding method.
//! [`Op::UpdateAndAttend`] is where they meet: it writes K and V to the cache and attends to what
//! the step's plan makes visible.
//!
//! ```
//! # fn main() -> kvasir_program::Result<()> {
//! let config = serde_json::json!({
//!     "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
//!     "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
//!     "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
//! });
//! let model = kvasir_program::Model::build(&kvasir_program::Source::of_config(config))?;
//! assert_eq!(model.target.kv_width(), 2 * 2 * 64);
//! # Ok(()) }
//! ```
//!
//! [`Program::for_rank`] shards a program for tensor-parallel ranks, [`Program::for_replica`] its
//! experts for expert-parallel replicas.
//!
//! In reading order: `ir` (ops, values, weights, ropes, layers), `builder` (configs and shapes in,
//! ops out), `blocks`, `gguf` (the other spelling), `arch`, `passes` (over a finished program),
//! `model`.
//!
//! A new architecture is one file in `arch/`, composed of `blocks/` (attention, MLA, feed-forward,
//! MoE) and the rules of `gguf/`, plus one line in the table of `arch/mod.rs`.

#![forbid(unsafe_code)]

mod arch;
mod blocks;
mod builder;
mod eagle3;
mod error;
mod gguf;
pub(crate) mod ir;
mod model;
pub(crate) mod passes;

pub use crate::arch::Architecture;
pub use crate::arch::canonical_name::canonical_name;
pub use crate::arch::class::{Class, Multimodal, Rename};
pub use crate::builder::position_table::skipped_position_rows;
pub use crate::builder::source::{Layout, Source};
pub use crate::eagle3::Eagle3;
pub use crate::error::{ProgramError, Result};
pub use crate::gguf::Gguf;
pub use crate::gguf::metadata::Metadata;
pub use crate::gguf::tensor_name::{COMMON_TENSORS, TensorName};
pub use crate::gguf::transform::{HeadLocation, StoredAs, Transform};
pub use crate::gguf::writer::{MetadataValue, WrittenMetadata};
pub use crate::ir::activation::Activation;
pub use crate::ir::collective::Collective;
pub use crate::ir::elementwise::Elementwise;
pub use crate::ir::grouping::{Grouping, LayerGroup, Windows};
pub use crate::ir::hyper_connection::HyperForm;
pub use crate::ir::key_pool::{KeyPool, KeyPooling};
pub use crate::ir::layer::{LayerFacts, LayerId};
pub use crate::ir::lookup::LookupIndex;
pub use crate::ir::moe::{Experts, Groups, Routing, Score};
pub use crate::ir::ngram::NgramForm;
pub use crate::ir::number_type::NumberType;
pub use crate::ir::op::{NormKind, Op, Pairs};
pub use crate::ir::pooling::Pooling;
pub use crate::ir::program::{Program, Purpose, Shard, Tap};
pub use crate::ir::recurrent::{
    DecayGate, DecayRate, DeltaForm, HeadMap, ScanForm, StateFacts, StateId, TimeStepLimits,
};
pub use crate::ir::rope::{LongRope, Rope, RopeId, Temperature};
pub use crate::ir::state_layout::{StateLayout, StateSpan};
pub use crate::ir::value::{Holds, Rows, Value, ValueId};
pub use crate::ir::weight::{Matrices, Matrix, Role, StoredRows, Vector, Weight, WeightId};
pub use crate::model::Model;
pub use crate::passes::buffers::Buffers;
pub use crate::passes::expert_parallel::DispatchShape;
pub use crate::passes::split::error::SplitError;

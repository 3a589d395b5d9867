//! Draft models for speculative decoding: [`ModelDrafter`] runs a draft program behind the target, in
//! the same executor. The program is an EAGLE-3 head, a multi-token-prediction (MTP) layer, or a
//! smaller model. Drafters without a model are in `kvasir-engine`, because they read requests.
//!
//! In reading order: `tree`, `plan`, `written` → `model`.
//!
//! This crate knows tokens, plans and logits. It must not know a request, a policy or a kernel.

#![forbid(unsafe_code)]

pub(crate) mod model;
pub(crate) mod plan;
pub(crate) mod tree;
pub(crate) mod written;

pub use crate::model::{DraftModelKind, Forward, ModelDrafter};
pub use crate::tree::TreeShape;

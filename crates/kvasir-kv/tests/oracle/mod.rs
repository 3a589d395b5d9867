//! Test oracle: a naive cache model, and a device that runs plans on real rows.
//!
//! The model keeps maps from positions to tags and nothing else. The device keeps a tag per slot,
//! runs steps in order and as late as possible, and reads what a plan's mask shows each query. A
//! slot reused too early, a lost slot copy or a wrong mask changes a tag.

pub(crate) mod device;
pub(crate) mod model;

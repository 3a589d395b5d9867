//! A naive model of what every cache must do, and a device that runs its plans on real rows.
//!
//! The model keeps maps from positions to tags and nothing else; the device keeps a tag per slot, runs steps as late as
//! it may and in order, and sees what a plan's mask lets each query see. So a slot that is handed out too early, a
//! move that is lost or a mask that is wrong changes a tag.

pub(crate) mod device;
pub(crate) mod model;

//! Simulated devices: one whose output depends on every slot that is read, one that takes the time a real one would.
#![forbid(unsafe_code)]

mod fault;
mod toy;

pub use fault::Faults;
pub use toy::Toy;

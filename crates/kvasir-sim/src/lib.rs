//! Simulated devices: one whose output depends on every slot that is read, one that takes the time a real one would.
#![forbid(unsafe_code)]

mod answers;
mod clock;
mod cost;
mod fault;
mod load;
mod paced;
mod preset;
mod rectangle;
mod shape;
mod toy;

pub use answers::{Answers, Words};
pub use clock::Clock;
pub use cost::{CostDevice, Spent};
pub use fault::Faults;
pub use paced::Paced;
pub use preset::{Figure, MACHINES, Machine, Preset, Recorded, Source};
pub use rectangle::StaticShape;
pub use shape::{SHAPES, Shape};
pub use toy::Toy;

//! Simulated devices that implement `Executor`, to test and benchmark the scheduler without a
//! model.
//!
//! - [`Toy`]: correctness. Its tokens depend on every KV slot that is read, so a wrong slot changes
//!   the output.
//! - [`CostDevice`]: performance. Advances a simulated clock by the roofline time of each step.
//! - [`Paced`]: the same in real time, to measure engine and server overhead.
//! - [`StaticShape`]: checks that steps fit a device of static shapes (padded rectangles).
//!
//! [`Faults`] injects refused, failed, late and lost steps. A simulated run is a function of its
//! options and seeds.
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

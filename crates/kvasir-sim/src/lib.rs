//! Simulated devices that implement `Executor`, to test and benchmark the scheduler without a
//! model.
//!
//! - [`Toy`]: correctness. Its tokens depend on every KV slot that is read, so a wrong slot changes
//!   the output.
//! - [`CostDevice`]: performance. Advances a simulated clock by the roofline time of each step.
//! - [`Paced`]: the same in real time, to measure engine and server overhead.
//! - [`DraftProfile`]: a draft model of the cost device, with a given acceptance.
//! - [`StaticShape`]: checks that steps fit a device of static shapes (padded rectangles).
//!
//! [`Faults`] injects refused, failed, late and lost steps. A simulated run is a function of its
//! options and seeds.

#![forbid(unsafe_code)]

mod clock;
mod cost;
mod draft;
mod fault;
mod figure;
mod link;
mod machine;
mod output_source;
mod paced;
mod preset;
mod rectangle;
mod shape;
mod step_time;
mod step_work;
mod toy;

pub use crate::clock::Clock;
pub use crate::cost::{CostDevice, Totals};
pub use crate::draft::DraftProfile;
pub use crate::fault::Faults;
pub use crate::figure::{Figure, Source};
pub use crate::link::{Link, Links};
pub use crate::machine::{Arithmetic, MACHINES, Machine, Recorded, WeightType};
pub use crate::output_source::{OutputSource, TokenList};
pub use crate::paced::Paced;
pub use crate::preset::{Preset, RankError};
pub use crate::rectangle::StaticShape;
pub use crate::shape::{SHAPES, Shape};
pub use crate::step_time::StepBreakdown;
pub use crate::toy::Toy;
pub use crate::toy::model::ToyShape;

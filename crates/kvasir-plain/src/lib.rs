//! The plain backend: f32 and explicit masks only. The example of how little a backend needs, and the oracle for the others.
//!
//! [`PlainModel::load`] unpacks a checkpoint's weights; a [`PlainExecutor`] runs steps over a pool of its own. A mask is built for
//! every query from positions alone, so that a cache's plan is checked and not repeated. Where the plan has explicit bits they
//! narrow the mask further.
//!
//! It must not become clever: no threads, no fusion, no path that only some plans take.
#![forbid(unsafe_code)]

mod attention;
mod executor;
mod mask;
mod math;
mod mixture;
mod model;
mod pool;
mod run;
mod weights;

pub use executor::{Limits, PlainExecutor};
pub use model::{Pass, PlainModel};
pub use pool::Pool;

//! Arithmetic of static-shape batching: prefill padding to chunks, decode batches padded to
//! rectangles, and admission tests that bound a rectangle's volume. Pure functions; the policy is
//! `policy/rectangular.rs`.
//!
//! **tkv** of a row is its padded position behind its last token. **volume** is rows times the
//! largest tkv.

mod admission;
mod config;
mod prefill;
mod rectangle;
mod rotation;
mod rules;

pub use crate::record::{ChunkRecord, Projection, RectangleRecord, Skipped};
pub use admission::{Decoder, Newcomer, length_allows};
pub use config::RectangularConfig;
pub use prefill::{HitPlan, PrefillShape};
pub use rectangle::Rectangle;
pub use rotation::{Turn, rotate};
pub use rules::Rules;

//! Arithmetic of static-shape batching: prefill padding to chunks, decode batches padded to
//! rectangles, and admission tests that bound a rectangle's volume. Pure functions; the policy is
//! `policy/rectangular.rs`.
//!
//! **tkv** of a row is its padded position behind its last token. **volume** is rows times the
//! largest tkv.

mod config;
mod hit;
mod length;
mod prefill;
mod record;
mod rectangle;
mod rotation;
mod rules;
mod volume;

pub use config::RectangularConfig;
pub use hit::HitPlan;
pub use length::length_allows;
pub use prefill::PrefillShape;
pub use record::{ChunkRecord, RectangleRecord, Skipped};
pub use rectangle::Rectangle;
pub use rotation::{Turn, rotate};
pub use rules::Rules;
pub use volume::{Decoder, Newcomer, Projection};

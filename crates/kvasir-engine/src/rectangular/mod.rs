//! The arithmetic of static-shape scheduling: prompts padded to chunks, decode batches padded to rectangles, and the
//! tests that keep a rectangle's volume below a limit; what all that is set to. Pure functions; the policy that uses them is a file of its own.
//!
//! **tkv** is a row's padded position behind its last token; **volume** is rows times the largest tkv.

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

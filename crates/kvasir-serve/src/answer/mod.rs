//! From generated text to an answer: stop texts cut, reasoning told apart, tool calls read, piece by piece.
//!
//! Each part takes text as it comes and gives out what is certain. Whatever the pieces, the sum is the same.

mod calls;
mod choice;
mod hold;
mod items;
mod reasoning;
mod stop;

pub use calls::{CallEvent, Calls};
pub use choice::{Choice, Delta, Reading};
pub use items::{Item, ItemEvent, ItemKind, Items};
pub use reasoning::{Part, Reasoning};
pub use stop::StopFilter;

//! From generated text to an answer: stop texts cut, reasoning told apart, tool calls read, piece by piece.
//!
//! Each part takes text as it comes and gives out what is certain. Whatever the pieces, the sum is the same.

mod call_start;
mod calls;
mod choice;
mod dialect;
mod harmony;
mod hold;
mod items;
mod json_calls;
mod json_text;
mod python;
mod pythonic_calls;
mod reasoning;
mod said;
mod schema;
mod stop;
mod tagged_calls;

pub use call_start::{Bare, CallSyntax, Next, Opened, Scanner};
pub use calls::{CallEvent, Calls};
pub use choice::{Choice, Delta, Reading};
pub use dialect::ToolDialect;
pub(crate) use dialect::takes_objects;
use harmony::Harmony;
pub use items::{Item, ItemEvent, ItemKind, Items};
pub use reasoning::{Part, Reasoning, ReasoningDialect};
pub use stop::StopFilter;
